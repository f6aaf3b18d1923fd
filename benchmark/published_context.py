"""The paper's scores on the Gym-MuJoCo tasks, beside what others measured on the same data.

    python benchmark/published_context.py

Data are D4RL's own v0 files. From paper/: Table 1; logs of the official BEAR, three runs a task;
110 runs of eleven other algorithms a task, whose evaluations are 65,000. Prints the table that it
draws.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what `python FILE` leaves out

from dataclasses import dataclass

import pandas as pd
import tyro

from benchmark.lib.figures import new_figure, save
from benchmark.lib.files import errors_in_one_line, new_files
from benchmark.lib.methods import METHODS
from benchmark.lib.published import PAPER


@dataclass
class Args:
    folder: Path = Path("runs/published")  # of published.png and .pdf


def scores() -> pd.DataFrame:
    """A row for each task that all have."""
    paper = pd.read_csv(PAPER / "table1.csv").set_index("task")
    logs = pd.read_csv(PAPER / "bear_official_logs.csv", comment="#")
    others = pd.read_csv(PAPER / "d4rl_v0_evaluations.csv", comment="#")
    official = logs.groupby("task")[["score_last50", "score_best_epoch"]].mean()
    official.columns = ["official BEAR, last 50 epochs", "official BEAR, best epoch"]
    table = paper[["UWAC", "UWAC_std", "BEAR"]].add_prefix("paper: ").join(official, how="inner")
    table["highest of anyone"] = others.groupby("task")["highest"].max()
    return table.sort_values("paper: UWAC")


def draw(table: pd.DataFrame, path: Path) -> None:
    """A row for each task."""
    figure = new_figure(9, 5.5)
    axes = figure.subplots()
    rows = range(len(table))
    uwac, bear = METHODS["uwac"].colour, METHODS["bear"].colour
    last, best = "official BEAR, last 50 epochs", "official BEAR, best epoch"
    name = "official BEAR: last 50 epochs to best epoch"
    axes.hlines(rows, table[last], table[best], color="0.7", lw=7, label=name)
    highest = table["highest of anyone"]
    name = "highest of 65,000 evaluations of eleven algorithms"
    axes.plot(highest, rows, "|", color="0.3", ms=16, mew=2, label=name)
    axes.plot(table["paper: BEAR"], rows, "o", color=bear, ms=7, label="BEAR, paper")
    style = {"fmt": "D", "color": uwac, "ms": 7, "label": "UWAC, paper (± its std)"}
    axes.errorbar(table["paper: UWAC"], rows, xerr=table["paper: UWAC_std"], **style)
    axes.set_yticks(rows, table.index)
    axes.set_xlabel("normalized score on D4RL's v0 files")
    figure.legend(loc="outside lower center", ncols=2)
    save(figure, path)


def main(args: Args) -> None:
    """Raises ValueError and OSError where a file cannot be written."""
    table = scores()
    with new_files(args.folder, "published_context") as new:
        draw(table, new / "published.png")
    mean = table.mean().to_frame("mean of all").T
    print(pd.concat([table, mean]).to_markdown(floatfmt=".1f"))


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
