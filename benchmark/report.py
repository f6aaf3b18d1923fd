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
FIGURES = {  # which methods, and what the paper says of them; the last two are not in it
    "training": (("bear", "uwac"), "The paper: BEAR degrades while its Q target explodes, UWAC does neither (4.4)."),
    "spectral_norm": (("bear", "bear+sn"), "The paper: spectral norm alone bounds Q and scores lower (4.6)."),
    "dropout": (("bear+sn", "bear+dropout+sn"), "The paper: dropout without weights changes nothing (4.6)."),
    "weighting": (("uwac", "bear+dropout+sn", "uwac-unweighted"), "The paper: without weights scores drop (4.6)."),
    "ablations": (("bear", "bear+sn", "bear+dropout+sn", "uwac"), "The three above in one figure."),
    "ensembles": (("bear", "uwac", "uwac-ensemble", "uwac-rem"), "The paper: ensembles do as well as dropout (4.6)."),
    "deviation": (("uwac", "uwac-std"), "The paper: weights by variance and by standard deviation do the same (4.6)."),
    "norm_or_weights": (("bear", "bear+sn", "uwac-no-sn", "uwac-analytic"), "Ours: the norm or the weights alone."),
    "estimates": (("uwac", "uwac-analytic", "uwac-code"), "Ours: the estimate of Var[Q], and the code's settings."),
}
COLOURS = {
    "bear": "#000000",
    "uwac": "#D55E00",
    "uwac-analytic": "#0072B2",
    "uwac-code": "#E69F00",
    "uwac-std": "#56B4E9",
    "bear+sn": "#009E73",
    "bear+dropout+sn": "#CC79A7",
    "uwac-unweighted": "#999999",
    "uwac-no-sn": "#8B1A1A",
    "uwac-ensemble": "#7F5FBF",
    "uwac-rem": "#8C6D31",
}

LEGEND = """
Scores are D4RL's, of the last evaluation and the mean of the last ten, also where some of those fall into the warm-up on MMD
alone; ± is the standard deviation over seeds. How far ours are from the paper's conditions, the columns on data and updates
say; transitions are what is left of the data once the ends of episodes are cut. Hours are those of updates, without
evaluations, on a machine that other work may share; MB is the largest memory of a run's process. Q target, mmd and weight
(the critic's) are means over the updates since the evaluation before. Aggregates are of last evaluations, and every seed
counts alike; they have no interval where a task has a single seed, and then tell little. On walkers bear+sn, bear+dropout+sn
and uwac-code have spectral norm, uwac and uwac-analytic have none; on Adroit all have it but bear and uwac-no-sn.
""".strip()


@dataclass
class Args:
    results: Path = BENCHMARK.parent / "runs" / "results"  # folder: every .json file in it and below
    out: Path = BENCHMARK.parent / "runs" / "report"  # folder for report.md, tables as CSV and LaTeX, and figures


class Cell:
    """All seeds of a method on a task. Raises KeyError, TypeError or IndexError for what is no result, and SystemExit for
    results that do not belong together."""

    def __init__(self, results: dict[Path, dict]):
        first, *others = results
        settings, seeds = {file: settings_of(result) for file, result in results.items()}, {}
        for other in others:
            a, b = settings[first], settings[other]
            if differing := [name for name in a | b if a.get(name) != b.get(name)]:
                values = ", ".join(f"{name} {a.get(name)} and {b.get(name)}" for name in differing)
                sys.exit(f"error: {first} and {other}: the same task and method with different arguments: {values}")
        for file, result in results.items():
            args = result["args"]
            for seed in range(args["seed"], args["seed"] + args["num_seeds"]):
                if seed in seeds:
                    sys.exit(f"error: {seeds[seed]} and {file}: both have seed {seed}; one of them has to go")
                seeds[seed] = file
        every = [*results.values()]
        # With the size, because a file with D4RL's name may hold less than D4RL's own.
        self.data = f"{every[0]['data']['origin']}, {every[0]['transitions']:,} transitions"
        self.updates, self.warmup = every[0]["args"]["total_steps"], every[0]["args"].get("warmup_steps", 0)
        warmup = f"warm-up {self.warmup:,}" if self.warmup < self.updates else "all warm-up"
        self.length = f"{self.updates:,}, {warmup}"
        self.steps = [row["step"] for row in every[0]["history"]]
        self.hours = sum(result["ms_per_update"] for result in every) * self.updates / 3.6e6 / len(seeds)
        self.peak = max((result["peak_mb"] for result in every if "peak_mb" in result), default=None)
        self.hardware = {result["hardware"] for result in every}
        names = {"score", "target_q", "mmd", "weight", "ood_auroc"} & set(every[0]["history"][0])
        if every[0]["args"].get("dropout") == 0 and every[0]["args"]["critic"] == "dropout":
            names -= {"ood_auroc"}  # no variance at all
        self.curves = {
            name: np.concatenate([np.array([row[name] for row in r["history"]]) for r in every], axis=1)
            for name in names
        }  # (evaluations, seeds)
        self.last, self.last_ten = self.curves["score"][-1], self.curves["score"][-10:].mean(0)  # (seeds,)


def settings_of(result: dict) -> dict:
    """What must be the same in all seeds."""
    args = {k: v for k, v in result["args"].items() if k not in ("seed", "num_seeds", "resume")}
    return args | result["data"] | {"transitions": result["transitions"]}


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
            Cell({file: result})
            groups.setdefault((task_of(result), method_of(result)), {})[file] = result
        except (ValueError, KeyError, TypeError, IndexError) as error:
            print(f"{file}: not a result ({type(error).__name__}: {error}), left out", file=sys.stderr)
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
    """The paper's table: a row for each of its tasks, its UWAC and BEAR, and of our methods last evaluations and means of
    the last ten. Where the methods of a task do not share data or length, both are named."""
    methods = sorted_methods(cells, [*paper(table)])
    rows = [["task", "data", "updates", "paper: UWAC", "paper: BEAR", *methods, *(f"{m}, last ten" for m in methods)]]
    for task, numbers in paper(table).items():
        ours = [cells.get((task, method)) for method in methods]
        data = " or ".join(dict.fromkeys(cell.data for cell in ours if cell)) or "–"
        updates = " or ".join(dict.fromkeys(cell.length for cell in ours if cell)) or "–"
        rows.append([task, data, updates, f"{numbers['UWAC']} ± {numbers['UWAC_std']}", numbers["BEAR"]])
        rows[-1] += [score(cell and cell.last) for cell in ours] + [score(cell and cell.last_ten) for cell in ours]
    return rows


def sorted_keys(cells: dict) -> list[tuple[str, str]]:
    """Tasks as in the paper, then others; methods as in COLOURS, then others."""
    tasks, methods = [*paper(1), *paper(2)], list(COLOURS)
    place = {name: i for i, name in enumerate(tasks + methods)}
    return sorted(cells, key=lambda key: [(place.get(name, 99), name) for name in key])


def sorted_methods(cells: dict, tasks: list[str]) -> list[str]:
    """Those with results for any of the tasks, in the order of `sorted_keys`."""
    return [method for _, method in sorted_keys({("", method): 0 for task, method in cells if task in tasks})]


def long(cells: dict) -> list[list[str]]:
    """A row for each task and method: all that there is to say of it. Hours are of updates alone, MB the largest resident
    memory of a run; the highest Q target, and the last MMD, weight and ood_auroc, are of means over seeds."""
    rows = [["task", "data", "method", "seeds", "updates", "hours a seed", "MB", "last", "last ten"]]
    rows[0] += ["Q target", "Q target, highest", "mmd", "weight", "ood_auroc"]
    for task, method in sorted_keys(cells):
        cell = cells[task, method]
        row = [task, cell.data, method, str(len(cell.last)), cell.length, f"{cell.hours:.3g}"]
        row += [f"{cell.peak:.0f}" if cell.peak else "–", score(cell.last), score(cell.last_ten)]
        row += [score(cell.curves["target_q"][-1]), f"{cell.curves['target_q'].mean(1).max():.1f}"]
        for name, digits in (("mmd", 3), ("weight", 3), ("ood_auroc", 2)):
            row += [f"{cell.curves[name][-1].mean():.{digits}f}" if name in cell.curves else "–"]
        rows.append(row)
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
    """The interquartile mean of every method over its tasks; of BEAR over those of them that it has results for, and there
    how likely the method is better. Methods with different tasks are not to be compared with each other."""
    rows = [["method", "tasks", "interquartile mean", "tasks shared with BEAR", "BEAR's mean there"]]
    rows[0] += ["probability of improvement"]
    for method in sorted_methods(cells, [task for task, _ in cells]):
        tasks = [task for task, name in sorted_keys(cells) if name == method]
        rows.append([method, str(len(tasks)), interval(interquartile_mean, [cells[t, method].last for t in tasks], 1)])
        shared = [task for task in tasks if (task, "bear") in cells and method != "bear"]
        ours, theirs = ([cells[task, name].last for task in shared] for name in (method, "bear"))
        rows[-1] += [str(len(shared)), interval(interquartile_mean, theirs, 1)] if shared else ["–", "–"]
        rows[-1] += [interval(probability_of_improvement, ours + theirs, 2) if shared else "–"]
    return rows


def plot(cells: dict, methods: tuple[str, ...], path: Path, names: dict[str, str], fewest: int = 2) -> bool:
    """The paper's layout: a row for each task, a column for each of `names` (metric -> label), a line a method with a
    band of ± a standard deviation, and dotted where a warm-up on MMD alone ended. Draws the tasks that have
    `fewest` of the methods, if any; returns whether."""
    found = [key for key in sorted_keys(cells) if names.keys() <= cells[key].curves.keys()]
    of = {task: [m for m in methods if (task, m) in found] for task, _ in found}
    first = set(FIGURES["training"][0])  # which are not drawn once more where all others are missing
    rare = set(methods) - first if first < set(methods) else set(methods)
    of = {task: present for task, present in of.items() if len(present) >= fewest and rare & set(present)}
    if not of:
        return False
    figure = Figure(figsize=(4.5 * len(names), 2.6 * len(of)), layout="constrained")
    grid = figure.subplots(len(of), len(names), squeeze=False)
    for row, (task, present) in zip(grid, of.items()):
        for axes, (name, label) in zip(row, names.items()):
            for i, method in enumerate(present):
                cell, colour = cells[task, method], COLOURS.get(method)
                width = 3.5 - 2.5 * i / len(present)  # so that none hides another
                mean, steps = cell.curves[name].mean(1), np.array(cell.steps) / 1000
                marker = "o" if len(steps) < 30 else None  # a lone evaluation is a dot, not a line
                style = {"color": colour, "linewidth": width, "marker": marker, "markersize": width + 1}
                axes.plot(steps, mean, label=method, **style)
                if len(cell.last) > 1:
                    std = cell.curves[name].std(1, ddof=1)
                    axes.fill_between(steps, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
            axes.set(title=task, xlabel="thousand updates", ylabel=label)
            axes.grid(alpha=0.3)
            axes.locator_params("x", nbins=6)
            values = np.concatenate([cells[task, m].curves[name].mean(1) for m in present])
            if name == "target_q" and values.max() > 10 * values.min() > 0:
                axes.set_yscale("log")  # or what explodes would hide all else
            elif name == "score" and (missing := 5 - np.ptp(values)) > 0:  # or noise would look like a difference
                axes.set_ylim(values.min() - missing / 2, values.max() + missing / 2)
            elif name == "ood_auroc":
                axes.set_ylim(0, 1)
                axes.axhline(0.5, color="0.5", linewidth=1, label="chance")
            for warmup in {
                cells[task, m].warmup for m in present if 0 < cells[task, m].warmup < cells[task, m].updates
            }:
                axes.axvline(warmup / 1000, color="0.5", linestyle=":", linewidth=1, label="end of warm-up")
    lines = {line.get_label(): line for axes in grid.flat for line in axes.get_lines()}
    labels = sorted(lines, key=[*COLOURS, *lines].index)  # the other lines behind those of methods
    settings = {"loc": "outside upper center", "ncols": 3 * len(names), "frameon": False, "fontsize": "small"}
    figure.legend([lines[label] for label in labels], labels, **settings)
    figure.savefig(path, dpi=110)
    return True


def main(args: Args) -> None:
    cells = read(args.results)
    args.out.mkdir(parents=True, exist_ok=True)
    text = [
        "# Report",
        "Made by `benchmark/report.py` from result files alone.",
        LEGEND,
    ]
    text += [f"Hardware: {', '.join(sorted(set.union(*(cell.hardware for cell in cells.values()))))}."]
    tables = {"runs": ("Every task and method", long(cells)), "aggregates": ("Aggregates", aggregates(cells))}
    tables |= {"table1": ("Table 1: walkers", wide(1, cells)), "table2": ("Table 2: Adroit", wide(2, cells))}
    for name, (title, rows) in tables.items():
        if len(rows[0]) > 5:  # a method has results for it
            text += [f"## {title}", "– is not run, or does not apply.", markdown(rows)]
            (args.out / f"{name}.csv").write_text(as_csv(rows))
            (args.out / f"{name}.tex").write_text(latex(rows))
    both = {"score": "normalized score", "target_q": "mean Q target"}
    for name, (methods, claim) in FIGURES.items():
        if plot(cells, methods, args.out / f"{name}.png", both):
            there = [method for method in methods if any(method == m for _, m in cells)]
            text += [f"## {' against '.join(there)}", claim, f"![{name}]({name}.png)"]
    certain = tuple(name for name in COLOURS if name != "bear")
    if plot(cells, certain, args.out / "ood_auroc.png", {"ood_auroc": "ood_auroc"}, fewest=1):
        text += [
            "## Does Var[Q] know random actions?",
            "The chance that a random action has the larger variance (AUROC): 1 always, 0.5 no difference, 0 never.",
            "![ood_auroc](ood_auroc.png)",
        ]
    (args.out / "report.md").write_text("\n\n".join(text) + "\n")
    print(markdown(long(cells)))
    print(f"\n{args.out / 'report.md'}")


if __name__ == "__main__":
    main(tyro.cli(Args))
