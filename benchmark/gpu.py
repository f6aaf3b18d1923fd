"""Parts of gpu.sh: bear.py or uwac.py with an update as one CUDA graph, and whether that agrees.

    python benchmark/gpu.py uwac.py --env-id door-human --variance analytic
    python benchmark/gpu.py compare FOLDER

The first takes the script's own arguments, with --resume all of them. The second compares
FOLDER/VERSION-eager with FOLDER/VERSION-graph of each version, writes the largest relative
difference of each metric over all evaluations into FOLDER.json, and exits with 1 if one is over 1%.
"""

import functools
import sys
from pathlib import Path

import numpy as np
import torch
import tyro
from lib.files import errors_in_one_line, read_json, write_json

import bear
import uwac

TOLERANCE = 0.01
OF_EPISODES = (
    "score",
    "score_sample",
    "return",
    "return_std",
    "ood_auroc",
)  # may tip over by the least bit


def as_graph(update):
    """A script's `update` as one launch, recorded in its first calls, for one agent."""
    if not torch.cuda.is_available():
        raise ValueError("a CUDA graph needs a GPU")
    from tensordict.nn import CudaGraphModule  # pip install tensordict==0.15.3

    graph = None

    def launch(agent, data, step, args):
        nonlocal graph
        if graph is None:
            for optimizer in agent.optimizers.values():
                optimizer.param_groups[0]["capturable"] = True
            graph = CudaGraphModule(functools.partial(update, agent, data, args=args))
        return graph(torch.full((), step, device=uwac.DEVICE))

    return launch


def train(script, words: list[str]) -> None:
    """The script's command line, with its updates as a graph."""
    args = tyro.cli(script.Args, args=words)
    script.main(args, update=as_graph(script.update))


def differences(eager: list[dict], graph: list[dict]) -> dict[str, float]:
    """The largest relative difference of each metric, of histories as in result.json."""
    found = {}
    for name in eager[0]:
        if name not in ("step", "seconds", *OF_EPISODES):
            a, b = (np.array([row[name] for row in history]) for history in (eager, graph))
            found[name] = float(np.max(np.abs(a - b) / np.maximum(np.abs(a), 0.01)))
    return found


def compare(folder: Path) -> int:
    """The exit code. Raises ValueError."""
    found = {}
    for path in sorted(folder.glob("*-eager")):
        version = path.name.removesuffix("-eager")
        runs = path, folder / f"{version}-graph"
        found[version] = differences(*(read_json(run / "result.json")["history"] for run in runs))
    if not found:
        raise ValueError(f"{folder}: has no VERSION-eager")
    print(found)
    write_json(folder.with_suffix(".json"), found)
    worst = max(max(metrics.values()) for metrics in found.values())
    return int(not worst <= TOLERANCE)


if __name__ == "__main__":
    name, *words = sys.argv[1:] or [""]
    with errors_in_one_line():
        if name == "compare" and len(words) == 1:
            sys.exit(compare(Path(words[0])))
        if name not in ("bear.py", "uwac.py"):
            sys.exit(__doc__)
        train({"bear.py": bear, "uwac.py": uwac}[name], words)
