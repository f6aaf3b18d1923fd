"""Scores that others published, from paper/*.csv."""

from pathlib import Path

import pandas as pd


def others_scores() -> pd.DataFrame:
    """A row for each task, without its version: the paper's and reruns', as printed."""
    folder = Path(__file__).parent / "paper"
    paper = pd.concat([pd.read_csv(folder / f"table{number}.csv") for number in (1, 2)])
    paper = paper.set_index("task")[["UWAC", "UWAC_std", "BEAR", "BC"]].add_prefix("paper: ")
    reruns = pd.read_csv(folder / "reruns.csv", comment="#")
    reruns["task"] = reruns["task"].str.replace(r"-v\d$", "", regex=True)
    reruns = reruns.pivot(index="task", columns="source", values=["UWAC", "BC"])
    reruns.columns = [f"{source}: {method}" for method, source in reruns]
    return paper.join(reruns)


def paper_scores(task: str) -> dict[str, float]:
    """The paper's UWAC and BEAR on a task, if it has them."""
    scores = others_scores()
    if task not in scores.index:
        return {}
    return scores.loc[task, ["paper: UWAC", "paper: BEAR"]].dropna().to_dict()
