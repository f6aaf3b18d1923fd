"""report.py's figures: metrics over updates, and scores of policies over updates."""

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmark.lib.figures import columns, mark, new_figure, shade_warmup
from benchmark.lib.methods import METHODS
from benchmark.lib.policies import POLICIES
from benchmark.lib.published import cloned_scores, paper_scores

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
    "q_share": "Q's share of the actor's gradient",
    "ood_auroc": "AUROC of Var[Q], random actions",
}


def references(run: pd.Series, metric: str) -> dict[str, float]:
    """Lines of comparison in a metric's panel, by what they are."""
    lines = {"mmd": {"threshold": run["args"]["mmd_threshold"]}}
    lines["ood_auroc"] = {"chance": 0.5, "paper, on walker2d-expert": 0.845}
    if pd.notna(run["bound"]):
        lines["target_q"] = lines["policy_q"] = {"largest reward\n/ (1 - γ)": run["bound"]}
    scores = paper_scores(run["task"]) | cloned_scores(run["task"])
    if pd.notna(run.get("vae_score")):
        scores[POLICIES["vae"]] = run["vae_score"]
    lines["score"] = lines["score_sample"] = scores
    return lines.get(metric, {})


def colours_of(methods: dict[str, str]) -> dict[str, tuple | str]:
    """By label, where `methods` has a name in METHODS for each label: a method's own colour for its
    line with the fewest arguments, and others for its others."""
    own = {name: method.colour for name, method in METHODS.items()}
    spare = iter(sns.color_palette("tab10", len(methods)))
    found = {}
    for label in sorted(methods, key=lambda label: label.count(",")):
        found[label] = own.pop(methods[label], None) or next(spare)
    return {label: found[label] for label in methods}


def panels(number: int) -> tuple[Figure, list[Axes]]:
    """A figure with so many axes."""
    width = columns(number)
    height = -(-number // width)
    figure = new_figure(4.6 * width, 4.2 * height + 0.6)
    axes = figure.subplots(height, width, squeeze=False).flatten()
    for empty in axes[number:]:
        empty.remove()
    return figure, list(axes[:number])


def finish(figure: Figure, axes: list[Axes], run: pd.Series, title: str) -> Figure:
    """What all panels have in common."""
    handles, labels = axes[0].get_legend_handles_labels()
    for panel in axes:
        if panel.get_legend():
            panel.get_legend().remove()
        panel.set(xlabel="updates")
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        shade_warmup(panel, run["args"]["warmup_steps"])
        panel.set_xlim(0)
    kernel = str(run["args"].get("mmd_kernel")).capitalize()
    figure.suptitle(f"{run['task']}, {kernel} kernel of the MMD")
    figure.legend(handles, labels, loc="outside lower center", title=title, ncols=2)
    return figure


def labels_of(found: pd.DataFrame) -> dict[str, str]:
    """Of each method, with its number of seeds in brackets where one has several."""
    agents = found.drop_duplicates(["method", "run", "agent"])
    seeds = agents["method"].value_counts(sort=False)
    return {name: f"{name} ({n})" if seeds.max() > 1 else name for name, n in seeds.items()}


def scale(panel: Axes, metric: str) -> None:
    low, high = panel.dataLim.intervaly
    if metric in ("score", "score_sample"):
        if high - low < 5:  # or noise would look like a difference
            panel.set_ylim((low + high) / 2 - 3, (low + high) / 2 + 3)
    # What explodes, or is a large share, would hide all else. A log scale leaves 0 out.
    elif metric == "q_share" or high > (10 * low if low > 0 else 1000):
        panel.set_yscale("symlog" if low < 0 else "log")


def curves_of(run: pd.Series, found: pd.DataFrame, metrics: list[str]) -> Figure:
    """A panel for each metric, a line for each method with a band over all its seeds; `found`
    are evaluations in the setting of `run`, and each metric has values in it."""
    drawn = found.dropna(subset=metrics, how="all")
    labels = labels_of(drawn)
    colours = colours_of(dict(zip(drawn["method"], drawn["name"])))
    style = {"palette": {labels[name]: colour for name, colour in colours.items()}}
    style |= {"hue_order": list(labels.values()), "style_order": list(labels.values())}
    style |= {"estimator": "median", "errorbar": ("pi", 100), "err_kws": {"alpha": 0.12}}
    drawn = drawn.assign(method=drawn["method"].map(labels))
    figure, axes = panels(len(metrics))
    for panel, metric in zip(
        axes, metrics
    ):  # of a Q that explodes in some seeds a mean says nothing
        sns.lineplot(
            drawn, x="step", y=metric, hue="method", style="method", markers=True, ax=panel, **style
        )
        words = {"unit": run["unit"], "candidates": run["args"].get("eval_candidates", 100)}
        panel.set_ylabel(AXES.get(metric, metric).format(**words))
        for i, line in enumerate(panel.lines):  # markers in turn show lines that hide each other
            points = len(line.get_xdata())
            if points > 2 * len(labels):
                line.set_markevery((i, max(len(labels), points // 12)))
        scale(panel, metric)
        mark(panel, references(run, metric))
    several = list(labels) != list(labels.values())
    title = "median and range over seeds, whose number is in brackets" if several else ""
    return finish(figure, axes, run, title)


def policies_of(run: pd.Series, rows: pd.DataFrame) -> Figure:
    """A panel for each method, a line for each of POLICIES with a band of a standard error; `rows`
    are of `played`, in the setting of `run`."""
    sizes = sorted(rows["N"].unique())
    order = dict.fromkeys(POLICIES[policy].format(N) for policy in POLICIES for N in sizes)
    order = [name for name in order if name in set(rows["who"])]
    methods = list(rows["method"].unique())
    figure, axes = panels(len(methods))
    style = {"hue": "who", "style": "who", "hue_order": order, "style_order": order}
    for panel, method in zip(axes, methods):
        some = rows[rows["method"] == method]
        sns.lineplot(
            some,
            x="updates",
            y="score",
            errorbar="se",
            palette="colorblind",
            markers=True,
            ax=panel,
            **style,
        )
        panel.set(title=method, ylabel=run["unit"])
        mark(panel, paper_scores(run["task"]) | cloned_scores(run["task"]))
    over = " or ".join(sorted(set(rows["over"])))
    return finish(figure, axes, run, f"mean, and standard error over {over}")
