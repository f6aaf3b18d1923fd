"""Tables and figures from result files alone: those of `benchmark/run.py`, or result.json of single runs.

    python benchmark/report.py

Scores are those of the last evaluation and the mean of the last ten, never of the best one; ± is the standard deviation
over seeds, and stands only where there are two or more. Beside them stand the paper's numbers (Wu et al., 2021, Tables 1
and 2, in benchmark/paper/). The aggregates are those of Agarwal et al. (2021): the interquartile mean over tasks and
seeds and the probability of improvement, with 95% intervals from 2,000 bootstrap samples of seeds, drawn for each task
apart.
"""

import csv
import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from matplotlib.figure import Figure
from scipy.stats import bootstrap, trim_mean

BENCHMARK = Path(__file__).resolve().parent
FIGURES = {  # the paper's figures: which methods, and what it says of them
    "training": (("bear", "uwac"), "BEAR degrades while its Q target explodes, UWAC does neither (section 4.4)"),
    "spectral_norm": (("bear", "bear+sn"), "spectral norm alone: Q bounded, lower scores (section 4.6)"),
    "dropout": (("bear+sn", "bear+dropout+sn"), "dropout without weights changes nothing (section 4.6)"),
    "weighting": (("uwac", "bear+dropout+sn", "uwac-unweighted"), "without weights the score drops (section 4.6)"),
    "ablations": (("bear", "bear+sn", "bear+dropout+sn", "uwac"), "the last three together (section 4.6)"),
    "ensembles": (("bear", "uwac", "uwac-ensemble", "uwac-rem"), "ensembles do as well as dropout (section 4.6)"),
    "deviation": (("uwac", "uwac-std"), "weights by variance or by standard deviation: the same (section 4.6)"),
    "estimates": (("uwac", "uwac-analytic", "uwac-code"), "ours: the estimate of Var[Q], and the code's settings"),
}
COLOURS = dict(zip(("bear", "uwac", "uwac-analytic", "bear+sn", "bear+dropout+sn"), ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7")))  # fmt: skip
COLOURS |= {"uwac-code": "#E69F00", "uwac-std": "#56B4E9", "uwac-ensemble": "#7F5FBF", "uwac-rem": "#8C6D31"}


@dataclass
class Args:
    results: Path = BENCHMARK / "results" / "grid"  # folder: every .json file in it and below
    out: Path = BENCHMARK / "results" / "report"  # folder for report.md, the tables as CSV and LaTeX, and the figures


class Cell:
    """All seeds of a method on a task."""

    def __init__(self, results: list[dict]):
        first, settings = results[0], [settings_of(result) for result in results]
        for other in settings[1:]:
            if differing := [name for name in settings[0] if settings[0][name] != other.get(name)]:
                values = ", ".join(f"{name} {settings[0][name]} and {other.get(name)}" for name in differing)
                sys.exit(f"error: {task_of(first)}, {method_of(first)}: results of different arguments: {values}")
        self.data, self.updates = first["data"]["origin"], first["args"]["total_steps"]
        self.steps = [row["step"] for row in first["history"]]
        self.hours = np.mean([r["ms_per_update"] * self.updates / 3.6e6 / r["args"]["num_seeds"] for r in results])
        self.hardware = ", ".join(sorted({result["hardware"] for result in results}))
        names = set.intersection(*(set(result["history"][0]) for result in results)) - {"step"}
        self.curves = {
            name: np.concatenate([np.array([row[name] for row in r["history"]]) for r in results], axis=1)
            for name in names
        }  # (evaluations, seeds)
        self.last, self.last_ten = self.curves["score"][-1], self.curves["score"][-10:].mean(0)  # (seeds,)


def settings_of(result: dict) -> dict:
    """What must be the same in all seeds."""
    return {k: v for k, v in result["args"].items() if k not in ("seed", "num_seeds", "resume")} | result["data"]


def task_of(result: dict) -> str:
    """The paper's name: it gives no versions."""
    return re.sub(r"-v\d+$", "", result["task"])


def method_of(result: dict) -> str:
    return result.get("method", result["algorithm"])


def read(folder: Path) -> dict[tuple[str, str], Cell]:
    """(task, method) -> its cell. Files that are no results are left out, with a line on standard error."""
    groups = {}
    for file in sorted(folder.rglob("*.json")):
        try:
            result = json.loads(file.read_text())
            key = task_of(result), method_of(result)
            result["history"][0]["score"], result["data"]["origin"], result["ms_per_update"]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            print(f"{file}: not a result ({type(error).__name__} {error}), left out", file=sys.stderr)
            continue
        groups.setdefault(key, []).append(result)
    if not groups:
        sys.exit(f"error: {folder} holds no results; benchmark/run.py makes some")
    return {key: Cell(results) for key, results in groups.items()}


def paper(table: int) -> dict[str, dict[str, str]]:
    """Task -> method -> score, as printed."""
    with open(BENCHMARK / "paper" / f"table{table}.csv") as file:
        return {row["task"]: row for row in csv.DictReader(file)}


def score(values: np.ndarray | None) -> str:
    if values is None:
        return "–"
    return f"{values.mean():.1f}" + (f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else "")


def wide(table: int, cells: dict) -> list[list[str]]:
    """The paper's table: a row for each of its tasks, its UWAC and BEAR, and last evaluations of ours."""
    methods = list(dict.fromkeys(method for task, method in sorted_keys(cells) if task in paper(table)))
    rows = [["task", "paper: UWAC", "paper: BEAR", *methods]]
    for task, numbers in paper(table).items():
        ours = [cells.get((task, method)) for method in methods]
        rows.append([task, f"{numbers['UWAC']} ± {numbers['UWAC_std']}", numbers["BEAR"]])
        rows[-1] += [score(cell and cell.last) for cell in ours]
    return rows


def sorted_keys(cells: dict) -> list[tuple[str, str]]:
    """Tasks as in the paper, then others; methods as in COLOURS, then others."""
    tasks, methods = [*paper(1), *paper(2)], list(COLOURS)
    place = {name: i for i, name in enumerate(tasks + methods)}
    return sorted(cells, key=lambda key: [(place.get(name, 99), name) for name in key])


def long(cells: dict) -> list[list[str]]:
    """A row for each task and method: all that there is to say of it."""
    names = ["task", "data", "method", "seeds", "updates", "hours a seed", "last", "last ten", "Q target", "ood_auroc"]
    rows = [names]
    for task, method in sorted_keys(cells):
        cell = cells[task, method]
        row = [task, cell.data, method, str(len(cell.last)), f"{cell.updates:,}", f"{cell.hours:.2f}"]
        row += [score(cell.last), score(cell.last_ten), score(cell.curves["target_q"][-1])]
        auroc = cell.curves.get("ood_auroc")
        rows.append([*row, f"{auroc[-1].mean():.2f}" if auroc is not None else "–"])
    return rows


def markdown(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def latex(rows: list[list[str]]) -> str:
    lines = [" & ".join(cell.replace("_", r"\_").replace(" ± ", r" $\pm$ ") for cell in row) + r" \\" for row in rows]
    begin = r"\begin{tabular}{l" + "r" * (len(rows[0]) - 1) + "}"
    return "\n".join([begin, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}", ""])


def as_csv(rows: list[list[str]]) -> str:
    csv.writer(text := io.StringIO(), lineterminator="\n").writerows(rows)
    return text.getvalue()


def interquartile_mean(*scores: np.ndarray) -> float:
    """Of all tasks' seeds together, the mean of the middle half."""
    return float(trim_mean(np.concatenate(scores), 0.25))


def probability_of_improvement(*scores: np.ndarray) -> float:
    """That a seed of the first method scores more than one of the second, a tie counting half, averaged over tasks:
    the first half of `scores` are the first method's tasks, the others the second's."""
    ours, theirs = scores[: len(scores) // 2], scores[len(scores) // 2 :]
    return float(np.mean([(np.sign(a[:, None] - b).mean() + 1) / 2 for a, b in zip(ours, theirs)]))


def interval(statistic, scores: list[np.ndarray], digits: int) -> str:
    """The statistic, with its 95% interval where every task has two seeds or more."""
    value = f"{statistic(*scores):.{digits}f}"
    if min(map(len, scores)) < 2:
        return value
    settings = {"vectorized": False, "method": "percentile", "n_resamples": 2000, "rng": np.random.default_rng(0)}
    low, high = bootstrap(scores, statistic, **settings).confidence_interval
    return f"{value} ({low:.{digits}f} to {high:.{digits}f})"


def aggregates(cells: dict) -> list[list[str]]:
    """Of every method the interquartile mean over the tasks that all of them share with BEAR, and how likely it is better
    than BEAR there."""
    rows = [["method", "tasks", "interquartile mean", "BEAR's there", "probability of improvement on BEAR"]]
    for method in dict.fromkeys(method for _, method in sorted_keys(cells)):
        tasks = [task for task, name in sorted_keys(cells) if name == method and (task, "bear") in cells]
        if not tasks or method == "bear":
            continue
        ours, theirs = ([cells[task, name].last for task in tasks] for name in (method, "bear"))
        means = [interval(interquartile_mean, scores, 1) for scores in (ours, theirs)]
        rows.append([method, str(len(tasks)), *means, interval(probability_of_improvement, ours + theirs, 2)])
    return rows


def plot(cells: dict, methods: tuple[str, ...], path: Path, names: dict[str, str]) -> bool:
    """The paper's layout: a row for each task, a column for each of `names` (metric -> label), a line a method with a
    band of ± a standard deviation. Draws the tasks with results for two of the methods, if any; returns whether."""
    of = {task: [m for m in methods if (task, m) in cells] for task in dict.fromkeys(t for t, _ in sorted_keys(cells))}
    rare = set(methods) - {"bear", "uwac"} or {"uwac"}  # without these it would be the first figure once more
    of = {task: present for task, present in of.items() if len(present) > 1 and rare & set(present)}
    if not of:
        return False
    figure = Figure(figsize=(4.5 * len(names), 2.6 * len(of)), layout="constrained")
    grid = figure.subplots(len(of), len(names), squeeze=False)
    for row, (task, present) in zip(grid, of.items()):
        for axes, (name, label) in zip(row, names.items()):
            for method in (m for m in present if name in cells[task, m].curves):
                cell, colour = cells[task, method], COLOURS.get(method)
                mean, steps = cell.curves[name].mean(1), np.array(cell.steps) / 1000
                axes.plot(
                    steps, mean, color=colour, label=method, marker="o" if len(steps) < 30 else None, markersize=3
                )
                if len(cell.last) > 1:
                    std = cell.curves[name].std(1, ddof=1)
                    axes.fill_between(steps, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
            axes.set(title=task, xlabel="thousand updates", ylabel=label)
            axes.grid(alpha=0.3)
    grid[0, 0].legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=110)
    return True


def main(args: Args) -> None:
    cells = read(args.results)
    args.out.mkdir(parents=True, exist_ok=True)
    text = [
        "# Report",
        "Made by `python benchmark/report.py` from result files alone; its docstring says what is what.",
    ]
    text += [f"Hardware: {'; '.join(sorted({cell.hardware for cell in cells.values()}))}."]
    text += ["## Every task and method", markdown(long(cells)), "## Aggregates", markdown(aggregates(cells))]
    (args.out / "runs.csv").write_text(as_csv(long(cells)))
    for table, title in ((1, "Table 1: walkers"), (2, "Table 2: Adroit")):
        rows = wide(table, cells)
        if len(rows[0]) > 3:
            text += [f"## {title}", "Last evaluations; – is not run.", markdown(rows)]
            (args.out / f"table{table}.csv").write_text(as_csv(rows))
            (args.out / f"table{table}.tex").write_text(latex(rows))
    both = {"score": "normalized score", "target_q": "mean Q target"}
    for name, (methods, claim) in FIGURES.items():
        if plot(cells, methods, args.out / f"{name}.png", both):
            text += [f"## {' against '.join(methods)}", f"The paper: {claim}.", f"![{name}]({name}.png)"]
    certain = tuple(name for name in COLOURS if name != "bear")
    if plot(cells, certain, args.out / "ood_auroc.png", {"ood_auroc": "AUROC, random against data actions"}):
        text += ["## Does Var[Q] know random actions?", "0.5 is chance.", "![ood_auroc](ood_auroc.png)"]
    (args.out / "report.md").write_text("\n\n".join(text) + "\n")
    print(markdown(long(cells)))
    print(f"\n{args.out / 'report.md'}")


if __name__ == "__main__":
    main(tyro.cli(Args))
