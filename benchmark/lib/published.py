"""Scores that others published, from paper/*.csv, and those of bc.py.

The paper's data are D4RL's first versions (v0), a rerun's those that reruns.csv names. A rerun's
columns may come from several sources, so their differences say nothing.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmark.lib.files import read_json

PAPER = Path(__file__).parents[1] / "paper"
CLONED = Path(__file__).parents[1] / "results" / "bc"
BC = "BC, the actor's network"


def others_scores() -> pd.DataFrame:
    """A row for each task, without its version: the paper's and reruns', as printed."""
    paper = pd.concat([pd.read_csv(PAPER / f"table{number}.csv") for number in (1, 2)])
    paper = paper.set_index("task")[["UWAC", "UWAC_std", "BEAR", "BC"]].add_prefix("paper: ")
    reruns = pd.read_csv(PAPER / "reruns.csv", comment="#")
    reruns["task"] = reruns["task"].str.replace(r"-v\d$", "", regex=True)
    reruns = reruns.pivot(index="task", columns="source", values=["UWAC", "BC"])
    reruns.columns = [f"{source}: {method}" for method, source in reruns]
    return paper.join(reruns)


def paper_scores(task: str) -> dict[str, float]:
    """The paper's UWAC and BEAR on a task, if it has them."""
    scores = others_scores()
    if task not in scores.index:
        return {}
    found = scores.loc[task, ["paper: UWAC", "paper: BEAR"]].dropna()
    return {f"{name} (v0)": score for name, score in found.items()}


def cloned_scores(task: str) -> dict[str, float]:
    """Behaviour cloning by the actor's network, if bc.py's result is in results/bc."""
    file = CLONED / f"{task}.json"
    if not file.exists():
        return {}
    scores = read_json(file)["history"][-1]["scores"]  # (seeds, episodes)
    return {BC: float(np.mean(scores))}
