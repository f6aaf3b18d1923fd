"""Part of gpu.sh: how far runs with and without a CUDA graph are apart.

    python benchmark/gpu.py FOLDER

compares FOLDER/VERSION-eager with FOLDER/VERSION-graph of each version, writes the largest relative
difference of each metric over all evaluations into FOLDER.json, and exits with 1 if one is over 1%.
"""

import json
import sys
from pathlib import Path

import numpy as np

TOLERANCE = 0.01
OF_EPISODES = ("score", "return", "return_std", "ood_auroc")  # may tip over by the least bit


def differences(eager: list[dict], graph: list[dict]) -> dict[str, float]:
    """The largest relative difference of each metric, of histories as in result.json."""
    found = {}
    for name in eager[0]:
        if name not in ("step", "seconds", *OF_EPISODES):
            a, b = (np.array([row[name] for row in history]) for history in (eager, graph))
            found[name] = float(np.max(np.abs(a - b) / np.maximum(np.abs(a), 0.01)))
    return found


def main(folder: Path) -> int:
    found = {}
    for path in sorted(folder.glob("*-eager")):
        version = path.name.removesuffix("-eager")
        runs = path, folder / f"{version}-graph"
        histories = [json.loads((run / "result.json").read_text())["history"] for run in runs]
        found[version] = differences(*histories)
    print(json.dumps(found, indent=1))
    folder.with_suffix(".json").write_text(json.dumps(found, indent=1))
    worst = max(max(metrics.values()) for metrics in found.values())
    return int(not worst <= TOLERANCE)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
