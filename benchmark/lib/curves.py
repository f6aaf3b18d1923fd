"""report.py's figure of metrics over updates."""

from pathlib import Path

import pandas as pd
import seaborn as sns
from evaluate import POLICIES
from matplotlib.ticker import EngFormatter

from lib.figures import mark, save, shade_warmup
from lib.methods import METHODS
from lib.published import cloned_scores, paper_scores

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
    "ood_auroc": "AUROC of Var[Q], random actions",
}


def references(run: pd.Series, metric: str) -> dict[str, float]:
    """Lines of comparison in a metric's panel, by what they are."""
    lines = {"mmd": {"threshold": run["args"]["mmd_threshold"]}}
    lines["ood_auroc"] = {"chance": 0.5, "paper, on walker2d-expert": 0.845}
    if pd.notna(run["mean_reward"]):
        worth = run["mean_reward"] / (1 - run["args"]["gamma"])
        lines["target_q"] = lines["policy_q"] = {"mean reward of the data / (1 - γ)": worth}
    scores = paper_scores(run["task"]) | cloned_scores(run["task"])
    if pd.notna(run["vae_score"]):
        scores[POLICIES["vae"]] = run["vae_score"]
    lines["score"] = lines["score_sample"] = scores
    return lines.get(metric, {})


def draw_curves(run: pd.Series, found: pd.DataFrame, metrics: list[str], path: Path) -> None:
    """A panel for each metric, a line for each method with a band over all its seeds; `found`
    are evaluations in the setting of `run`."""
    long = found.melt(["step", "method"], metrics, "metric", "value").dropna()
    methods = list(long["method"].unique())
    own = {method.name: method.colour for method in METHODS.values()}
    spare = sns.color_palette("tab10", len(methods))
    colours = {}
    for name, other in zip(methods, spare):
        base = name.split(", ")[0]  # the method, without arguments that are not its defaults
        alone = sum(method.split(", ")[0] == base for method in methods) == 1
        colours[name] = own.get(base, other) if alone else own.get(name, other)
    seeds = found.drop_duplicates(["method", "run", "agent"])["method"].value_counts()
    labels = {name: f"{name} ({seeds[name]})" for name in methods}
    long["method"] = long["method"].map(labels)
    grid = sns.relplot(
        long,
        x="step",
        y="value",
        hue="method",
        style="method",
        col="metric",
        col_wrap=min(2, len(metrics)),
        kind="line",
        errorbar=("pi", 100),
        err_kws={"alpha": 0.12},
        markers=True,
        palette={labels[name]: colours[name] for name in methods},
        facet_kws={"sharey": False},
        height=4,
        aspect=1.2,
    )
    for metric, axes in grid.axes_dict.items():
        words = {"unit": run["unit"], "candidates": run["args"].get("eval_candidates", 100)}
        name = AXES.get(metric, metric).format(**words)
        axes.set(title="", ylabel=name, xlabel="updates")
        axes.xaxis.label.set_visible(True)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_tick_params(labelbottom=True)
        for i, line in enumerate(axes.lines):  # markers in turn show lines that hide each other
            points = len(line.get_xdata())
            if points > 2 * len(methods):
                line.set_markevery((i, max(len(methods), points // 12)))
        for name, value in references(run, metric).items():
            mark(axes, value, name)
        low, high = axes.dataLim.intervaly
        if metric in ("score", "score_sample"):
            if high - low < 5:  # or noise would look like a difference
                axes.set_ylim((low + high) / 2 - 3, (low + high) / 2 + 3)
        elif high > (100 * low if low > 0 else 1000):  # or what explodes would hide all else
            axes.set_yscale("log" if low > 0 else "symlog")
        shade_warmup(axes, run["args"]["warmup_steps"])
        axes.set_xlim(0, long["step"].max() * 1.03)
    grid.figure.suptitle(f"{run['task']}, {run['args'].get('mmd_kernel')} kernel of MMD")
    grid.figure.set_layout_engine("constrained")
    title = "mean, and range over seeds, whose number is in brackets"
    sns.move_legend(grid, "outside lower center", title=title, ncols=2)
    save(grid.figure, path)
