"""report.py's figures: metrics over updates, and scores of policies over updates."""

from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.ticker import EngFormatter

from benchmark.lib.figures import columns, mark, save, shade_warmup
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
    if pd.notna(run["max_reward"]) and run["args"]["gamma"] < 1:
        bound = run["max_reward"] / (1 - run["args"]["gamma"])
        lines["target_q"] = lines["policy_q"] = {"largest reward\n/ (1 - γ)": bound}
    scores = paper_scores(run["task"]) | cloned_scores(run["task"])
    if pd.notna(run["vae_score"]):
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


def draw_lines(rows: pd.DataFrame, x: str, y: str, hue: str, col: str, **settings) -> sns.FacetGrid:
    """A panel for each value of `col`, a line with markers for each value of `hue`."""
    return sns.relplot(
        rows,
        x=x,
        y=y,
        hue=hue,
        style=hue,
        col=col,
        col_wrap=columns(rows[col].nunique()),
        kind="line",
        markers=True,
        height=4,
        aspect=1.1,
        **settings,
    )


def finish(grid: sns.FacetGrid, run: pd.Series, title: str, path: Path) -> None:
    """What all panels have in common."""
    for axes in grid.axes.flat:
        axes.set(xlabel="updates")
        axes.xaxis.label.set_visible(True)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_tick_params(labelbottom=True)
        shade_warmup(axes, run["args"]["warmup_steps"])
        axes.set_xlim(0)
    kernel = str(run["args"].get("mmd_kernel")).capitalize()
    grid.figure.suptitle(f"{run['task']}, {kernel} kernel of the MMD")
    grid.figure.set_layout_engine("constrained")
    sns.move_legend(grid, "outside lower center", title=title, ncols=2)
    save(grid.figure, path)


def draw_curves(run: pd.Series, found: pd.DataFrame, metrics: list[str], path: Path) -> None:
    """A panel for each metric, a line for each method with a band over all its seeds; `found`
    are evaluations in the setting of `run`, and each metric has values in it."""
    long = found.melt(["step", "method"], metrics, "metric", "value").dropna()
    drawn = found[found["method"].isin(long["method"])]
    colours = colours_of(dict(zip(drawn["method"], drawn["name"])))
    seeds = found.drop_duplicates(["method", "run", "agent"])["method"].value_counts()
    several = seeds.max() > 1
    labels = {name: f"{name} ({seeds[name]})" if several else name for name in colours}
    long["method"] = long["method"].map(labels)
    grid = draw_lines(
        long,
        "step",
        "value",
        "method",
        "metric",
        estimator="median",  # of a Q that explodes in some seeds the mean says nothing
        errorbar=("pi", 100),
        err_kws={"alpha": 0.12},
        palette={labels[name]: colour for name, colour in colours.items()},
        facet_kws={"sharey": False},
    )
    for metric, axes in grid.axes_dict.items():
        words = {"unit": run["unit"], "candidates": run["args"].get("eval_candidates", 100)}
        axes.set(title="", ylabel=AXES.get(metric, metric).format(**words))
        for i, line in enumerate(axes.lines):  # markers in turn show lines that hide each other
            points = len(line.get_xdata())
            if points > 2 * len(labels):
                line.set_markevery((i, max(len(labels), points // 12)))
        low, high = axes.dataLim.intervaly
        if metric in ("score", "score_sample"):
            if high - low < 5:  # or noise would look like a difference
                axes.set_ylim((low + high) / 2 - 3, (low + high) / 2 + 3)
        # What explodes, or is a large share, would hide all else. A log scale leaves 0 out.
        elif metric == "q_share" or high > (10 * low if low > 0 else 1000):
            axes.set_yscale("symlog" if low < 0 else "log")
        mark(axes, references(run, metric))
    title = "median and range over seeds, whose number is in brackets" if several else ""
    finish(grid, run, title, path)


def draw_policies(run: pd.Series, rows: pd.DataFrame, path: Path) -> None:
    """A panel for each method, a line for each of POLICIES with a band of a standard error; `rows`
    are of `played`, in the setting of `run`."""
    sizes = sorted(rows["N"].unique())
    order = dict.fromkeys(POLICIES[policy].format(N) for policy in POLICIES for N in sizes)
    order = [name for name in order if name in set(rows["who"])]
    grid = draw_lines(
        rows,
        "updates",
        "score",
        "who",
        "method",
        errorbar="se",
        hue_order=order,
        style_order=order,
        palette="colorblind",
    )
    for method, axes in grid.axes_dict.items():
        axes.set(title=method, ylabel=run["unit"])
        mark(axes, paper_scores(run["task"]) | cloned_scores(run["task"]))
    over = " or ".join(sorted(set(rows["over"])))
    finish(grid, run, f"mean, and standard error over {over}", path)
