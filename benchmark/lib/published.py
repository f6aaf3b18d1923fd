"""Scores that others published, from paper/*.csv, and those of bc.py.

The paper's data are D4RL's first versions (v0), a rerun's those that reruns.csv names. A rerun's
columns may come from several sources, so their differences say nothing.
"""

from pathlib import Path

import pandas as pd

PAPER = Path(__file__).parents[1] / "paper"
CLONED = Path(__file__).parents[1] / "results" / "bc.csv"
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
    """Behaviour cloning by the actor's network, if results/bc.csv has the task."""
    rows = pd.read_csv(CLONED).query("task == @task")
    last = rows[rows["step"] == rows["step"].max()]
    return {BC: float(last["score"].mean())} if len(last) else {}


def beside_the_paper() -> pd.DataFrame:
    """A row for each of the paper's Gym-MuJoCo tasks that all have, all on D4RL's own v0 files: its
    scores; three runs of the official BEAR; the highest of 65,000 evaluations of eleven others."""
    paper = pd.read_csv(PAPER / "table1.csv").set_index("task")
    logs = pd.read_csv(PAPER / "bear_official_logs.csv", comment="#")
    others = pd.read_csv(PAPER / "d4rl_v0_evaluations.csv", comment="#")
    official = logs.groupby("task")[["score_last50", "score_best_epoch"]].mean()
    official.columns = ["official BEAR, last 50 epochs", "official BEAR, best epoch"]
    table = paper[["UWAC", "UWAC_std", "BEAR"]].add_prefix("paper: ").join(official, how="inner")
    table["highest of anyone"] = others.groupby("task")["highest"].max()
    return table.sort_values("paper: UWAC")
