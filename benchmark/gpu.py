"""Does an update as a CUDA graph give the numbers that it gives without one? A part of gpu.sh.

    python benchmark/gpu.py FOLDER

Compares the runs FOLDER/VERSION-eager and FOLDER/VERSION-graph of each version. Writes the largest
relative difference of each metric over all evaluations into FOLDER/differences.json, and fails
where one is over 1%.
"""

from pathlib import Path

import numpy as np
import tyro
from lib.files import errors_in_one_line, read_json, write_json

TOLERANCE = 0.01
OF_EPISODES = ("score", "score_sample")  # may tip over by the least bit


def differences(eager: list[dict], graph: list[dict]) -> dict[str, float]:
    """The largest relative difference of each metric between two histories of result.json."""
    found = {}
    for name in eager[0]:
        if name in ("step", "seconds", *OF_EPISODES):
            continue
        a, b = (np.array([row[name] for row in history]) for history in (eager, graph))
        found[name] = float(np.max(np.abs(a - b) / np.maximum(np.abs(a), 0.01)))
    return found


def agree(found: dict[str, dict[str, float]]) -> bool:
    """Whether the differences of all versions are small. NaN is not."""
    return all(value <= TOLERANCE for metrics in found.values() for value in metrics.values())


def main(folder: tyro.conf.Positional[Path]) -> None:
    """Raises ValueError where there is nothing to compare."""
    found = {}
    for path in sorted(folder.glob("*-eager")):
        version = path.name.removesuffix("-eager")
        runs = path, folder / f"{version}-graph"
        found[version] = differences(*(read_json(run / "result.json")["history"] for run in runs))
    if not found:
        raise ValueError(f"{folder}: has no VERSION-eager")
    print(found)
    write_json(folder / "differences.json", found)
    if not agree(found):
        raise ArithmeticError(f"{folder}: a difference is over {TOLERANCE:.0%}")


if __name__ == "__main__":
    with errors_in_one_line():
        tyro.cli(main, description=__doc__)
