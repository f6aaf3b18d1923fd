"""Tables and figures from result files alone: those of benchmark/run.py, or folders of single runs.

    python benchmark/report.py
    python benchmark/report.py --results runs/RUN runs/OTHER_RUN --metrics mmd alpha

Seeds are averaged only where task, data, updates, warm-up, precision and the size of evaluations
are the same. Scores are the last evaluation's and the mean of the last ten, never the best.
Aggregates are Agarwal et al.'s (2021), with 95% intervals from 2,000 bootstrap samples of seeds,
drawn for each task apart.
"""

import csv
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro
from scipy.stats import bootstrap, trim_mean
from style import COLOURS, new_figure, save

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import bear

# Seeds that are averaged may differ in these arguments, the last four of which only old files have.
OF_A_RUN = {"seed", "num_seeds", "run_dir", "resume", "total_steps", "dataset_path", "log_every"}
OF_A_RUN |= {"checkpoint_every", "cuda_graph", "capture_video", "track"}
LABELS = {"target_q": "mean Q target"}
LEGEND = """
"Last" is the score of the last evaluation, "last ten" the mean of the last ten, warm-up or not; ±
is the standard deviation over seeds. Q target, mmd and weight (the critic's) are the last, hours a
seed's wall time (in old files without evaluations), MB a run's largest memory. – does not apply.
"""


@dataclass
class Args:
    results: tuple[Path, ...] = (Path("runs/grid"),)  # folders of result files, or of single runs
    metrics: tuple[str, ...] = ("target_q", "score")  # what the figures show, a panel each
    folder: Path = Path("runs/report")  # for report.md, tables as CSV, figures as PNG and PDF


class Setting(NamedTuple):
    """What results must share to stand in one row, figure or mean."""

    task: str  # the paper's name, which has no version
    data: str  # its file, and its size: one with D4RL's name may hold less than D4RL's own
    protocol: str  # updates, warm-up and, where they are not the default, precision and evaluations


Cells = dict[Setting, dict[str, list[dict]]]  # setting -> method -> results, each of a seed or more


def refuse(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def setting_of(result: dict) -> Setting:
    args, updates = result["args"], result["history"][-1]["step"]
    task = re.sub(r"-v\d+$", "", args["env_id"])
    data = f"{Path(result['data']['path']).name}, {result['transitions']:,} transitions"
    protocol = f"{updates:,} updates, warm-up {args['warmup_steps']:,}"
    precision = args.get("matmul_precision", "high")
    if precision != "high":
        protocol += f", {precision} precision"
    for name in ("eval_episodes", "eval_candidates"):
        usual = getattr(bear.Args, name)
        if args.get(name, usual) != usual:
            protocol += f", {name} {args[name]}"
    return Setting(task, data, protocol)


def check_together(old: dict, new: dict, file: Path) -> None:
    """Ends the program where two results of one method and setting cannot be averaged."""
    if old["data"].get("sha256") != new["data"].get("sha256"):
        refuse(f"{file}: its data have another checksum than others' of this name and size")
    updates = [[row["step"] for row in result["history"]] for result in (old, new)]
    if updates[0] != updates[1]:
        refuse(f"{file}: it was evaluated at other updates; report on such runs apart")
    a, b = old["args"], new["args"]
    for name in sorted(a.keys() & b.keys() - OF_A_RUN):
        if a[name] != b[name]:
            way_out = "report on such runs apart, or let run.py make and name them"
            refuse(f"{file}: {name} {b[name]}, elsewhere {a[name]}; {way_out}")
    if a["seed"] < b["seed"] + b["num_seeds"] and b["seed"] < a["seed"] + a["num_seeds"]:
        refuse(f"{file}: its seed {b['seed']} is in another file, too; leave one of them out")


def read(args: Args) -> Cells:
    """All results, in the order of the paper's tasks and of COLOURS."""
    cells: Cells = {}
    for folder in args.results:
        is_run = (folder / "result.json").exists()
        for file in sorted(folder.glob("result.json" if is_run else "*.json")):
            try:
                result = json.loads(file.read_text())
                setting = setting_of(result)
                method = result.get("method", result["algorithm"])
            except (ValueError, KeyError, TypeError, IndexError) as error:
                refuse(f"{file}: not a result ({type(error).__name__}: {error}); move it away")
            results = cells.setdefault(setting, {}).setdefault(method, [])
            for other in results:
                check_together(other, result, file)
            results.append(result)
    if not cells:
        refuse(f"no results in {', '.join(map(str, args.results))}; benchmark/run.py makes some")
    order = {name: place for place, name in enumerate([*paper(), *COLOURS])}
    ordered: Cells = {}
    for setting in sorted(cells, key=lambda s: (order.get(s.task, 99), s)):
        methods = sorted(cells[setting], key=lambda m: (order.get(m, 99), m))
        ordered[setting] = {method: cells[setting][method] for method in methods}
    return ordered


def paper() -> dict[str, dict[str, str]]:
    """Task -> method -> score as printed, of the paper's Tables 1 and 2."""
    rows = {}
    for name in ("table1.csv", "table2.csv"):
        with open(Path(__file__).parent / "paper" / name) as file:
            rows |= {row["task"]: row for row in csv.DictReader(file)}
    return rows


def curve(results: list[dict], name: str) -> np.ndarray | None:
    """A metric at every evaluation, (evaluations, seeds); None where the method has none."""
    args = results[0]["args"]
    no_variance = args.get("dropout") == 0 and "members" not in args
    if name not in results[0]["history"][0] or (name == "ood_auroc" and no_variance):
        return None
    return np.concatenate([[row[name] for row in r["history"]] for r in results], axis=1)


def number(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 1e5 else f"{value:.1e}"


def spread(values: np.ndarray) -> str:
    """Mean and standard deviation over seeds; a single seed has no deviation, and is marked."""
    if len(values) == 1:
        return f"{number(values[0])} (1 seed)"
    return f"{number(values.mean())} ± {number(values.std(ddof=1))}"


def run_table(cells: Cells) -> list[list[str]]:
    """A row for each setting and method: all there is to say of it."""
    rows = [["task", "data", "protocol", "method", "seeds", "last", "last ten", "Q target"]]
    rows[0] += ["highest Q target", "mmd", "weight", "ood_auroc", "hours a seed", "MB"]
    for setting, methods in cells.items():
        for method, results in methods.items():
            scores, target_q = curve(results, "score"), curve(results, "target_q")
            row = [setting.task, setting.data, setting.protocol, method, str(scores.shape[1])]
            row += [spread(scores[-1]), spread(scores[-10:].mean(0)), spread(target_q[-1])]
            row.append(number(target_q.mean(1).max()))
            for name, digits in (("mmd", 3), ("weight", 3), ("ood_auroc", 2)):
                values = curve(results, name)
                row.append("–" if values is None else f"{values[-1].mean():.{digits}f}")
            seconds = sum(r["history"][-1]["seconds"] for r in results) / scores.shape[1]
            row.append(f"{seconds / 3600:.3g}")
            peak = max(r.get("peak_mb", 0) for r in results)
            row.append(f"{peak:.0f}" if peak else "–")
            rows.append(row)
    return rows


def paper_table(cells: Cells) -> list[list[str]]:
    """The paper's UWAC and BEAR beside our last evaluations, for the tasks that were run."""
    there = {name for found in cells.values() for name in found}
    methods = sorted(there, key=lambda name: ([*COLOURS, name].index(name), name))
    rows = [["task", "data", "protocol", "paper: UWAC", "paper: BEAR", *methods]]
    for setting, found in cells.items():
        if numbers := paper().get(setting.task):
            row = [setting.task, setting.data, setting.protocol]
            row += [f"{numbers['UWAC']} ± {numbers['UWAC_std']}", numbers["BEAR"]]
            for method in methods:
                row.append(spread(curve(found[method], "score")[-1]) if method in found else "–")
            rows.append(row)
    return rows


def interquartile_mean(*scores: np.ndarray) -> float:
    """Of all tasks' seeds together, the mean of the middle half."""
    return float(trim_mean(np.concatenate(scores), 0.25))


def probability_of_improvement(*scores: np.ndarray) -> float:
    """That a seed of the first method scores more than one of the second, a tie counting half,
    averaged over tasks: the first half of `scores` is the first method's, the rest the second's."""
    pairs = zip(scores[: len(scores) // 2], scores[len(scores) // 2 :])
    return float(np.mean([(np.sign(a[:, None] - b).mean() + 1) / 2 for a, b in pairs]))


def interval(statistic, scores: list[np.ndarray], digits: int) -> str:
    """The statistic, with its 95% interval where every task has two seeds or more."""
    value = f"{statistic(*scores):.{digits}f}"
    if min(map(len, scores)) < 2:
        return f"{value} (single seeds)"
    settings = {"vectorized": False, "method": "percentile", "n_resamples": 2000, "rng": 0}
    low, high = bootstrap(scores, statistic, **settings).confidence_interval
    return f"{value} ({low:.{digits}f} to {high:.{digits}f})"


def aggregate_table(cells: Cells) -> list[list[str]]:
    """Every method and BEAR, over the data sets that have both under the same protocol."""
    rows = [["method", "protocol", "data sets", "interquartile mean", "BEAR's", "P(improvement)"]]
    shared: dict[tuple[str, str], list[dict]] = {}
    for setting, found in cells.items():
        for method in found:
            if method != "bear" and "bear" in found:
                shared.setdefault((method, setting.protocol), []).append(found)
    for (method, protocol), tasks in shared.items():
        ours = [curve(found[method], "score")[-1] for found in tasks]
        theirs = [curve(found["bear"], "score")[-1] for found in tasks]
        means = [interval(interquartile_mean, scores, 1) for scores in (ours, theirs)]
        improvement = interval(probability_of_improvement, ours + theirs, 2)
        rows.append([method, protocol, str(len(tasks)), *means, improvement])
    return rows


def draw(setting: Setting, found: dict[str, list[dict]], metrics: tuple[str, ...], path: Path):
    """A panel for each metric, a line for each method with a band of a standard deviation."""
    figure = new_figure(10, 4.5)
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    lines = {}
    for axes, name in zip(panels, metrics):
        for method, results in found.items():
            steps = np.array([row["step"] for row in results[0]["history"]]) / 1000
            values = curve(results, name)
            if values is None:
                continue
            mean, seeds = values.mean(1), values.shape[1]
            marker = "o" if len(steps) < 30 else None  # a lone evaluation is a dot, not a line
            (line,) = axes.plot(steps, mean, color=COLOURS.get(method), marker=marker)
            label = f"{method} (1 seed)"
            if seeds > 1:
                label = f"{method} ({seeds} seeds ± std)"
                std = values.std(1, ddof=1)
                band = {"color": line.get_color(), "alpha": 0.15, "linewidth": 0}
                axes.fill_between(steps, mean - std, mean + std, **band)
            lines[label] = line
        low, high = axes.dataLim.intervaly
        if name == "target_q" and high > 1000:
            axes.set_yscale("symlog", linthresh=10)  # or what explodes would hide all else
        elif name == "mmd":
            if high > 1:
                axes.set_yscale("log")  # or a policy far from the data would hide the threshold
            threshold = results[0]["args"]["mmd_threshold"]
            lines["threshold of MMD"] = axes.axhline(threshold, color="0.4", linestyle="--")
        elif name == "score" and high - low < 5:  # or noise would look like a difference
            axes.set_ylim((low + high) / 2 - 3, (low + high) / 2 + 3)
        warmup = results[0]["args"]["warmup_steps"] / 1000
        if 0 < warmup < steps[-1]:
            lines["end of warm-up"] = axes.axvline(warmup, color="0.4", linestyle=":")
        axes.set_ylabel(LABELS.get(name, name))
    figure.suptitle(f"{setting.task} ({setting.data}), {setting.protocol}", wrap=True)
    figure.supxlabel("thousand updates")
    figure.legend(lines.values(), lines.keys(), loc="outside right center")
    save(figure, path)


def main(args: Args) -> None:
    cells = read(args)
    results = [r for found in cells.values() for same in found.values() for r in same]
    metrics = {name for r in results for name in r["history"][0]} - {"step", "seconds"}
    unknown = sorted(set(args.metrics) - metrics)
    if unknown or not args.metrics:
        refuse(f"--metrics {' '.join(unknown)}: there are {', '.join(sorted(metrics))}")
    args.folder.mkdir(parents=True, exist_ok=True)
    hardware = sorted({r["hardware"] for r in results})
    text = ["# Report", LEGEND.strip(), f"Hardware: {', '.join(hardware)}."]
    tables = {"runs": run_table, "paper": paper_table, "aggregates": aggregate_table}
    for name, table in tables.items():
        rows = table(cells)
        path = args.folder / f"{name}.csv"
        path.unlink(missing_ok=True)  # an earlier report's
        if len(rows) > 1:
            with open(path, "w") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
            rows.insert(1, ["---"] * len(rows[0]))
            text.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    for number, (setting, found) in enumerate(cells.items(), 1):
        name = "-".join([f"{number:02}", setting.task.replace("/", "-"), *args.metrics])
        draw(setting, found, args.metrics, args.folder / f"{name}.png")
        text.append(f"![{setting.task}, {setting.protocol}]({name}.png)")
    (args.folder / "report.md").write_text("\n\n".join(text) + "\n")
    print(text[3], args.folder / "report.md", sep="\n\n")  # the table of runs


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except OSError as error:
        sys.exit(f"error: {error}")
