"""All figures: report.py's, and those of our pages."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from benchmark.methods import METHODS
from benchmark.store import FOLDER, HERE, PAPER, STEP, beside_the_paper

STYLE = {"savefig.dpi": 100, "lines.markersize": 5, "axes.grid": True, "grid.alpha": 0.3}
matplotlib.rcParams.update(STYLE | {"legend.frameon": False})
matplotlib.use("agg")  # pictures go into files, whatever a notebook has set

AXES = {  # what a metric's axis says; unit: a normalized score, or a return
    "target_q": "Q target, mean of a batch",
    "policy_q": "Q of the policy's actions",
    "score": "{unit}, best of {candidates}",
    "score_sample": "{unit}, one sample",
    "mmd": "MMD of actor and VAE",
    "alpha": "α, multiplier of the constraint",
    "variance": "Var[Q1] + Var[Q2]",
    "weight": "mean weight, critic's loss",
    "policy_weight": "mean weight, actor's loss",
    "policy_variance": "Var[Q1] + Var[Q2], policy's actions",
    "q_share": "Q's share of the actor's gradient",
    "ood_auroc": "AUROC of Var[Q], random actions",
}
SPARE = [colour for colour in sns.color_palette("tab10").as_hex() if colour != "#1f77b4"]
LIMIT = float(np.exp(10))  # of alpha
NEAR = 0.2  # MMD of a policy near the data


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of `width` x `height` inches (100 pixels each)."""
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """As PNG and PDF beside each other: `path` is one of the two names."""
    for suffix in (".png", ".pdf"):
        figure.savefig(path.with_suffix(suffix))


def colours_of(methods: dict[str, str]) -> dict[str, str]:
    """By label, where `methods` has a name in METHODS for each label: a method's own colour for its
    line with the fewest arguments, and others for its others."""
    own = {name: method.colour for name, method in METHODS.items()}
    found = {}
    for label in sorted(methods, key=lambda label: label.count(",")):
        spare = SPARE[len(found) % len(SPARE)]
        found[label] = own.pop(methods[label], None) or spare
    return {label: found[label] for label in methods}


def panels(number: int) -> tuple[Figure, list[Axes]]:
    """A figure with so many axes, in rows that leave as little as possible blank."""
    columns = 2 if number in (2, 4) else min(number, 3)
    rows = -(-number // columns)
    figure = new_figure(4.6 * columns, 4.2 * rows + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for empty in axes[number:]:
        empty.remove()
    return figure, list(axes[:number])


def updates_below(axes: Axes, warmup: int | None = None) -> None:
    """Updates on the x axis, grey as far as the actor learns from MMD alone."""
    axes.set(xlabel="updates")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(0)
    if warmup:
        axes.axvspan(0, warmup, color="0.93", zorder=0)


def mark(axes: Axes, values: dict[str, float]) -> None:
    """A dotted line at each value, named in the panel's legend. A value far from the data leaves
    the axis as it is: the legend has it."""
    low, high = axes.dataLim.intervaly
    near = [value for value in values.values() if abs(value - (low + high) / 2) < 2 * (high - low)]
    linear = axes.get_yscale() == "linear"
    shown = axes.get_ylim() if linear else (low, max([high, *near]))
    dots = [":", "--", "-.", (0, (1, 4)), (0, (5, 5))]
    lines = [
        axes.axhline(
            value, color="0.3", linestyle=style, linewidth=1, label=f"{name}: {value:,.4g}"
        )
        for style, (name, value) in zip(dots, values.items())
    ]
    if near and not shown[0] < min(near) < max(near) < shown[1]:
        room = 0.05 * (high - low) if linear else 0
        axes.set_ylim(min([shown[0], min(near) - room]), max([shown[1], max(near) + room]))
        if axes.get_yscale() == "log":  # else a curve at the end of the axis is hidden by the frame
            axes.set_ylim(axes.get_ylim()[0] / 1.2, axes.get_ylim()[1] * 1.2)
    if lines:
        axes.legend(handles=lines, fontsize=7, loc="best")


def finish(figure: Figure, axes: list[Axes], title: str, words: str) -> Figure:
    """One legend of the lines for all panels, below them, with words on what they are."""
    pairs = [pair for panel in axes for pair in zip(*panel.get_legend_handles_labels())]
    known = {label: one for one, label in pairs if ": " not in label}
    figure.suptitle(title)
    figure.legend(known.values(), known, loc="outside lower center", title=words, ncols=2)
    return figure


def scale(panel: Axes, metric: str) -> None:
    low, high = panel.dataLim.intervaly
    if metric in ("score", "score_sample"):
        if high - low < 5:  # or noise would look like a difference
            panel.set_ylim((low + high) / 2 - 3, (low + high) / 2 + 3)
    # What explodes, or is a large share, would hide all else. A log scale leaves 0 out.
    elif metric == "q_share" or high > (10 * low if low > 0 else 1000):
        panel.set_yscale("symlog" if low < 0 else "log")


def curves(rows: pd.DataFrame, metrics: list[str], title: str, references: dict, unit: str,
           candidates: int = 100) -> Figure:  # fmt: skip
    """A panel for each metric, a line for each `label` with a band over all its seeds; `rows` are
    of history, each with `label`, `method` and `warmup_steps`; lines of comparison by metric."""
    drawn = rows.dropna(subset=metrics, how="all")
    agents = drawn.drop_duplicates(["label", "run", "agent"])["label"].value_counts(sort=False)
    several = agents.max() > 1
    names = {one: f"{one} ({n})" if several else one for one, n in agents.items()}
    colours = colours_of(dict(zip(drawn["label"], drawn["method"])))
    style = {"palette": {names[label]: colour for label, colour in colours.items()}}
    style |= {"hue_order": list(names.values()), "style_order": list(names.values())}
    style |= {"estimator": "median", "errorbar": ("pi", 100), "err_kws": {"alpha": 0.12}}
    style |= {"x": "step", "hue": "label", "style": "label", "markers": True, "legend": "full"}
    drawn = drawn.assign(label=drawn["label"].map(names))
    figure, axes = panels(len(metrics))
    for panel, metric in zip(axes, metrics):
        # Of a Q that explodes in some seeds a mean says nothing.
        sns.lineplot(drawn, y=metric, ax=panel, **style)
        panel.set_ylabel(AXES.get(metric, metric).format(unit=unit, candidates=candidates))
        for i, line in enumerate(panel.lines):  # markers in turn show lines that hide each other
            points = len(line.get_xdata())
            if points > 2 * len(names):
                line.set_markevery((i, max(len(names), points // 12)))
        scale(panel, metric)
        panel.get_legend().remove()
        mark(panel, references.get(metric, {}))
        updates_below(panel, drawn["warmup_steps"].iloc[0])
    words = "median and range over seeds, whose number is in brackets" if several else ""
    return finish(figure, axes, title, words)


def policies(table: pd.DataFrame, title: str, references: dict, unit: str) -> Figure:
    """A panel for each method, a line for each policy with a band of a standard error; `table` has
    method, policy, updates, score and "score error"."""
    methods, names = list(table["method"].unique()), list(table["policy"].unique())
    colours = dict(zip(names, sns.color_palette("colorblind", len(names)).as_hex()))
    figure, axes = panels(len(methods))
    for panel, method in zip(axes, methods):
        for name, some in table[table["method"] == method].groupby("policy", sort=False):
            style = {"color": colours[name], "marker": "o", "capsize": 3, "label": name}
            panel.errorbar(some["updates"], some["score"], some["score error"], **style)
        panel.set(title=method, ylabel=unit)
        mark(panel, references)
        updates_below(panel)
    return finish(figure, axes, title, "mean and standard error")


# Figures of our pages.

HANDS = ["door-human", "pen-expert", "hammer-expert", "door-expert", "relocate-expert"]
DASHED = {"color": "0.3", "linestyle": "--", "linewidth": 1}
COLOURS = {method.name: method.colour for method in METHODS.values()}
COLOURS |= {"UWAC": METHODS["uwac-analytic"].colour, "UWAC + SN": METHODS["uwac-analytic"].colour}


def studies_of(t: SimpleNamespace, names: Iterable[str]) -> pd.DataFrame:
    """History of the runs of studies, with their runs' columns and the study's name."""
    found = []
    for name in names:
        runs = t.runs.query(t.studies[name]["where"])
        found.append(t.history.merge(runs, on="run", suffixes=("", "_of_run")).assign(of=name))
    rows = pd.concat(found, ignore_index=True)
    return rows.assign(who=rows["run"] + " " + rows["agent"].astype(str))


def seeds(axes: Axes, rows: pd.DataFrame, metric: str, **style) -> None:
    """A thin line for each agent, dotted where the kernel is Laplacian."""
    kernels = {"gaussian": "", "laplacian": (1, 1)}
    style = {"units": "who", "estimator": None, "lw": 1, "legend": False} | style
    style |= {"hue": "name", "palette": {name: colour_of(name) for name in rows["name"].unique()}}
    style |= {"style": "mmd_kernel", "dashes": kernels}
    sns.lineplot(rows, x="step", y=metric, ax=axes, **style)
    updates_below(axes, rows["warmup_steps"].iloc[0])


def colour_of(name: str) -> str:
    return COLOURS.get(name, METHODS["bear-fixed-w"].colour)


def legend_below(figure: Figure, names: Iterable[str], **others: dict) -> None:
    """Of methods' lines, and of other lines by what they are."""
    lines = {name: {"color": colour_of(name)} for name in names} | others
    handles = [Line2D([], [], label=name, **style) for name, style in lines.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=6)


def q_over_updates(t: SimpleNamespace) -> Figure:
    """Tasks by {without, with SN}, each seed a line, the bound dashed."""
    laplacian = [name for name in t.studies if name.endswith("-laplacian") and name[:5] != "early"]
    rows = studies_of(t, [*HANDS, *laplacian])
    rows = rows[rows["name"].isin(["BEAR", "UWAC", "BEAR + SN", "UWAC + SN"])]
    rows["name"] = rows["name"].str.removesuffix(" + SN")
    figure = new_figure(15, 6.4)
    axes = figure.subplots(2, len(HANDS), sharey=True, sharex="col")
    for (task, normed), some in rows.groupby(["task", "spectral_norm"]):
        panel = axes[int(normed), HANDS.index(task)]
        seeds(panel, some, "target_q")
        panel.axhline(some["bound"].max(), **DASHED)
        panel.set(yscale="log", ylim=(10, 5e10), ylabel=AXES["target_q"])
        panel.set_title(f"{task}, {'with' if normed else 'without'} SN", fontsize=10)
    dotted = {"Laplacian kernel": {"color": "0.3", "linestyle": ":"}}
    has = (rows["mmd_kernel"] == "laplacian").any()
    legend_below(figure, ["BEAR", "UWAC"], bound=DASHED, **(dotted if has else {}))
    return figure


def final_q(t: SimpleNamespace) -> Figure:
    """Of every variant on door-human without SN, a dot for each agent."""
    rows = studies_of(t, ["door-human"]).query("not spectral_norm and step in (70_000, 92_500)")
    rows = rows[(rows["step"] == 70_000) | (rows["study"] == "forks")]
    names = {70_000: "after 70,000 updates", 92_500: "after 92,500, with a common warm-up"}
    order = rows[rows["step"] == 70_000].groupby("name")["target_q"].median().sort_values()
    figure = new_figure(9, 5)
    axes = figure.subplots()
    style = {"hue_order": names.values(), "order": order.index[::-1], "dodge": True}
    style |= {"palette": ["0.3", "white"], "edgecolor": "0.3", "linewidth": 1}
    style |= {"log_scale": True, "jitter": False}
    rows = rows.assign(when=rows["step"].map(names))
    sns.stripplot(rows, x="target_q", y="name", hue="when", ax=axes, **style)
    axes.axvline(rows["bound"].max(), **DASHED, label="bound")
    axes.set(xlabel="Q target of each agent, door-human without SN", ylabel="")
    axes.legend(loc="lower right", fontsize=8)
    return figure


def warm_up(t: SimpleNamespace, task: str) -> Figure:
    """Score and MMD over updates, where Q sets in after the authors' warm-up."""
    rows = studies_of(t, [f"{task}-40000"])
    figure = new_figure(11, 4.2)
    for panel, metric in zip(figure.subplots(1, 2), ("score_sample", "mmd")):
        seeds(panel, rows, metric)
        panel.set_ylabel(AXES[metric].format(unit="score"))
    panel.set(yscale="log")
    panel.axhline(rows["mmd_threshold"].iloc[0], **DASHED)
    figure.suptitle(f"{task}, warm-up of 40,000 updates")
    legend_below(figure, rows["name"].unique(), threshold=DASHED)
    return figure


def q_share(t: SimpleNamespace) -> Figure:
    """MMD and alpha over updates beside the official BEAR's, and Q's share of the actor's gradient
    at checkpoints."""
    names = ["door-human", "early-q", "learning-rate", "hopper-medium", "hopper-medium-gaussian"]
    names += ["halfcheetah-medium", "walker2d-expert", "walker2d-expert-gaussian", "pen-expert"]
    rows = studies_of(t, names).query("updates > warmup_steps and study != 'forks'")
    rows = rows[(rows["algorithm"] != "weights") | rows["name"].str.match(r"BEAR \+|UWAC \(std")]
    rows["name"] = rows["of"] + ": " + rows["name"]
    last = rows[rows["step"] == rows["updates"]].set_index("who")["alpha"]
    rows["ends"] = np.where(rows["who"].map(last) > 0.99 * LIMIT, "α ends at its limit", "below")
    figure = new_figure(13, 11)
    upper, lower = figure.subfigures(2, 1, height_ratios=(2, 3))
    official = pd.read_csv(PAPER / "bear_official_curves.csv", comment="#")
    for panel, metric in zip(upper.subplots(1, 2), ("mmd", "alpha")):
        low, high = official[f"{metric}_lowest"], official[f"{metric}_highest"]
        panel.fill_between(official["update"], low, high, color="0.9", lw=0)
        name = "official BEAR: median and range of 36 runs"
        panel.plot(official["update"], official[f"{metric}_median"], color="black", label=name)
        style = {"units": "who", "estimator": None, "palette": ["0.6", "#D55E00"], "lw": 0.8}
        style |= {"hue_order": ["α ends at its limit", "below"]}
        sns.lineplot(rows, x="step", y=metric, hue="ends", ax=panel, **style)
        panel.set(xscale="log", yscale="log", xlim=(2_000, 600_000), xlabel="updates")
        panel.set_ylabel(AXES[metric])
        panel.legend(fontsize=8)
    found = t.diagnoses[[*STEP, "q_share"]].dropna()
    dots = rows.drop(columns="q_share").merge(found, on=STEP).query("step > warmup_steps")
    dots["α"] = np.where(dots["alpha"] > 0.99 * LIMIT, "at its limit, ", "below its limit, ")
    dots["α"] += np.where(dots["mmd"] < NEAR, "near the data", "off the data")
    dots["q_share"] = dots["q_share"].clip(lower=1e-7)
    order = dots.groupby("name")["q_share"].median().sort_values().index[::-1]
    axes = lower.subplots()
    style = {"palette": "colorblind", "log_scale": True, "jitter": False, "alpha": 0.7}
    sns.stripplot(dots, x="q_share", y="name", hue="α", order=order, ax=axes, **style)
    axes.set(xlabel="Q's share of the actor's gradient (at least 0.00001%)", ylabel="")
    sns.move_legend(axes, "lower right")
    return figure


def published() -> Figure:
    """The paper's scores beside others', a row for each task."""
    table = beside_the_paper()
    figure = new_figure(9, 5.5)
    axes = figure.subplots()
    rows = range(len(table))
    last, best = "official BEAR, last 50 epochs", "official BEAR, best epoch"
    name = "official BEAR: last 50 epochs to best epoch"
    axes.hlines(rows, table[last], table[best], color="0.7", lw=7, label=name)
    name = "highest of 65,000 evaluations of eleven algorithms"
    axes.plot(table["highest of anyone"], rows, "|", color="0.3", ms=16, mew=2, label=name)
    bear, uwac = METHODS["bear"].colour, METHODS["uwac"].colour
    axes.plot(table["paper: BEAR"], rows, "o", color=bear, ms=7, label="BEAR, paper")
    style = {"fmt": "D", "color": uwac, "ms": 7, "label": "UWAC, paper (± its std)"}
    axes.errorbar(table["paper: UWAC"], rows, xerr=table["paper: UWAC_std"], **style)
    axes.set_yticks(rows, table.index)
    axes.set_xlabel("normalized score on D4RL's v0 files")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def of_readme(t: SimpleNamespace) -> Figure:
    """Q of BEAR and UWAC on door-human."""
    rows = studies_of(t, ["forks"]).query("name in ('BEAR', 'UWAC')").sort_values("method")
    rows = rows.assign(label=rows["name"])
    references = {"target_q": {"largest reward / (1 - γ)": rows["bound"].iloc[0]}}
    return curves(rows, ["target_q"], "door-human, Gaussian kernel of the MMD", references, "score")


def ours(t: SimpleNamespace) -> dict[Path, Figure]:
    """Each figure by its file."""
    return {
        HERE.parent / "docs" / "door-human.png": of_readme(t),
        FOLDER / "q.png": q_over_updates(t),
        FOLDER / "bounds.png": final_q(t),
        FOLDER / "late-door.png": warm_up(t, "door-expert"),
        FOLDER / "late-relocate.png": warm_up(t, "relocate-expert"),
        FOLDER / "q-share.png": q_share(t),
        FOLDER / "published.png": published(),
    }
