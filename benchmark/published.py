"""Scores that others published, from paper/*.csv.

    python benchmark/published.py    # draws how far UWAC is from behaviour cloning

The figure holds the tasks of which a rerun of UWAC is published. The paper's data are D4RL's first
versions (v0), a rerun's those that reruns.csv names.
"""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import seaborn as sns
import tyro
from ending import errors_in_one_line
from style import COLOURS, new_figure, save


@dataclass
class Args:
    folder: Path = Path("runs/published")  # of uwac-less-bc.png and .pdf


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


def uwac_less_bc() -> pd.DataFrame:
    """UWAC's score less behaviour cloning's: a row for each task that was rerun, a column for each
    source. Both scores of a difference are of one source."""
    scores = others_scores()
    columns = {}
    for source in ("paper", "QDQ"):
        columns[source] = scores[f"{source}: UWAC"] - scores[f"{source}: BC"]
    return pd.DataFrame(columns).dropna().sort_values("paper", ascending=False)


def draw(differences: pd.DataFrame, path: Path) -> None:
    """A line of the figure for each task, a dot for each source."""
    long = differences.melt(ignore_index=False, var_name="source", value_name="difference")
    colours = {"paper": COLOURS["uwac"], "QDQ": COLOURS["uwac-analytic"]}
    figure = new_figure(8, 4)
    axes = figure.subplots()
    sns.scatterplot(
        long.reset_index(),
        x="difference",
        y="task",
        hue="source",
        style="source",
        palette=colours,
        s=70,
        ax=axes,
    )
    axes.axvline(0, color="0.3", linewidth=1)
    axes.set(xlabel="score of UWAC less score of behaviour cloning", ylabel="")
    axes.set_title("UWAC against behaviour cloning: the paper, and QDQ's rerun")
    axes.legend(title=None, loc="lower right")
    save(figure, path)


def main(args: Args) -> None:
    args.folder.mkdir(parents=True, exist_ok=True)
    differences = uwac_less_bc()
    draw(differences, args.folder / "uwac-less-bc.png")
    print(differences.round(1).to_markdown())


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
