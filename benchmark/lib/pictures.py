"""The pictures of RESULTS.md and README.md, of the tables in results/."""

from types import SimpleNamespace as Tables

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmark.lib.curves import curves_of
from benchmark.lib.figures import label_lines, mark, new_figure
from benchmark.lib.methods import METHODS
from benchmark.lib.published import PAPER, beside_the_paper

LIMIT = float(np.exp(10))  # of alpha
NEAR = 0.2  # MMD of a policy near the data
OFFICIAL = "black"  # colour of the official BEAR
STYLES = {  # of a checkpoint
    "α below its limit, near the data": ("o", "#D55E00"),
    "α below its limit, off the data": ("x", "#D55E00"),
    "α at its limit, near the data": ("o", "0.4"),
    "α at its limit, off the data": ("x", "0.4"),
}


def label(row: pd.Series) -> str:
    """Task and method, and what is not usual."""
    method = METHODS[row["method"]].name.removesuffix(" (analytic)").format(**row)
    norm = " + SN" * (row["spectral_norm"] and "SN" not in method)
    usual = "laplacian" if row["task"].startswith(("hopper", "walker2d")) else "gaussian"
    kernel = ", Gaussian kernel" * (row["mmd_kernel"] != usual)
    return f"{row['task']}: {method}{norm}{kernel}{', early Q' * (row['actor_lr'] == 1e-3)}"


def bounds(rows: pd.DataFrame, metrics: list[str]) -> Figure:
    """Metrics of runs in one setting, over updates; `rows` are of history.csv."""
    first = rows.iloc[0]
    rows = rows.sort_values("method", key=lambda of: of.map(list(METHODS).index), kind="stable")
    rows = rows.assign(name=rows["method"], method=rows.apply(label, axis=1))
    rows["method"] = rows["method"].str.removeprefix(f"{first['task']}: ")
    run = first[["task", "bound"]].to_dict() | {"unit": "normalized score", "args": first}
    return curves_of(pd.Series(run), rows, metrics)


def lines(axes: Axes, metric: str, rows: pd.DataFrame, colours: dict) -> dict[str, float]:
    """One for each seed, grey where alpha ends at its limit. Returns where each name ends."""
    official = pd.read_csv(PAPER / "bear_official_curves.csv", comment="#")
    low, high = official[f"{metric}_lowest"], official[f"{metric}_highest"]
    axes.fill_between(official["update"], low, high, color="0.9", lw=0)
    axes.plot(official["update"], official[f"{metric}_median"], color=OFFICIAL, lw=2)
    for (_, agent), some in rows.groupby(["run", "agent"]):
        style = {"color": "0.6", "lw": 0.5}
        if not some["limited"].iloc[0]:
            style = {"color": colours[some["name"].iloc[0]], "lw": 1.3}
        axes.plot(some["step"], some[metric], **style)
    axes.set(xscale="log", yscale="log", xlim=(2_000, 600_000), xlabel="updates")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    ends = rows[~rows["limited"] & (rows["step"] == rows["updates"])]
    longest = ends[ends["updates"] == ends.groupby("name")["updates"].transform("max")]
    return longest.groupby("name")[metric].agg(lambda some: np.exp(np.log(some).mean())).to_dict()


def dots(axes: Axes, shares: pd.DataFrame) -> None:
    """A row for each name, a dot for each checkpoint."""
    names = list(shares.groupby("name")["q_share"].median().sort_values().index)
    for about, (marker, colour) in STYLES.items():
        some = shares[shares["about"] == about]
        if some.empty:
            continue
        style = {"marker": marker, "color": colour, "alpha": 0.7, "s": 30}
        axes.scatter(some["q_share"], some["name"].map(names.index), label=about, **style)
    axes.set_yticks(range(len(names)), names)
    axes.set(xscale="log", xlim=(5e-8, 1), title="How much of the actor's gradient is Q's?")
    ticks = ("≤ 0.00001%", "0.0001%", "0.001%", "0.01%", "0.1%", "1%", "10%", "100%")
    axes.set_xticks(np.logspace(-7, 0, 8), ticks)
    axes.legend(loc="lower right", fontsize=8)


def checkpoints(t: Tables, history: pd.DataFrame) -> pd.DataFrame:
    """Q's share in the diagnoses of these evaluations, and what the run was at then."""
    found = t.diagnoses[["run", "agent", "step", "q_share"]].dropna()
    rows = history.drop(columns="q_share").merge(found, on=["run", "agent", "step"])
    rows = rows[rows["step"] > rows["warmup_steps"]]
    where = np.where(rows["alpha"] > 0.99 * LIMIT, "at", "below")
    near = np.where(rows["mmd"] < NEAR, "near", "off")
    about = [f"α {at} its limit, {data} the data" for at, data in zip(where, near)]
    return rows.assign(about=about, q_share=rows["q_share"].clip(lower=1e-7))


def with_ends(history: pd.DataFrame) -> pd.DataFrame:
    """With names, and whether alpha is at its limit at the end of the agent's run."""
    last = history[history["step"] == history["updates"]].set_index(["run", "agent"])["alpha"]
    limited = [last[pair] > 0.99 * LIMIT for pair in zip(history["run"], history["agent"])]
    return history.assign(name=history.apply(label, axis=1), limited=limited)


def q_share(t: Tables, query: str) -> Figure:
    """MMD and alpha over updates, and below them Q's share of the actor's gradient."""
    history = with_ends(t.history.query(f"({query}) and updates > warmup_steps"))
    figure = new_figure(13, 10)
    upper, lower = figure.subfigures(2, 1)
    left, right = upper.subplots(1, 2)
    free = history[~history["limited"]]["name"].unique()
    colours = dict(zip(free, sns.color_palette("colorblind", len(free)).as_hex()))
    lines(left, "mmd", history, colours)
    left.set_title("Is the policy near the data? MMD of actor and VAE")
    left.set_yticks([0.05, 0.1, 0.2, 0.5, 1], ["0.05", "0.1", "0.2", "0.5", "1"])
    mark(left, {"threshold": 0.07, "official threshold": 0.05, "off the data": 1.4142})
    ends = lines(right, "alpha", history, colours)
    right.set_title("Does the constraint ever relax? α, its multiplier")
    agents = history.drop_duplicates(["run", "agent"])
    grey = f"grey: {agents['limited'].sum()} agents that end at α's limit"
    official = "official BEAR: median and range of 36 runs"
    colours |= {grey: "0.4", official: OFFICIAL}
    label_lines(right, ends | {grey: LIMIT, official: LIMIT}, colours)
    dots(lower.subplots(), checkpoints(t, history))
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
