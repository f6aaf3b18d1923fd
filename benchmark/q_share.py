"""Does Q train the actor? MMD, its multiplier alpha, Q's share of the gradient, and the weights.

    python benchmark/q_share.py

From result files alone. The figure has the runs in results/ beside the official BEAR's
(paper/bear_official_curves.csv). A table says how equal UWAC's weights are: E[w] E[Var[Q]] / beta
over the last batch, which is 1 where Var[Q] is the same in all states, and more otherwise. Another
has the last scores of runs that end with alpha below its limit. results/FOLDER-diagnosis.json has
what diagnose.py found of results/FOLDER/NAME.json after STEP updates, under NAME-STEP.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what `python FILE` leaves out

from dataclasses import dataclass

import numpy as np
import pandas as pd
import seaborn as sns
import tyro
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from benchmark.lib.figures import label_lines, mark, new_figure, save
from benchmark.lib.files import errors_in_one_line, new_files, read_json
from benchmark.lib.runs import evaluations, read_all

HERE = Path(__file__).parent
LIMIT = float(np.exp(10))  # of alpha
NEAR = 0.2  # MMD of a policy near the data
OFFICIAL = "black"  # colour of the official BEAR
# how folders of other results end
OTHERS = ("bc", "estimators", "forks", "gpu", "learning-rate", "lunarlander", "quick-start")
OTHERS += ("what-bounds-q",)
# left out of the figure, to keep it readable; the tables have them
NOT_DRAWN = tuple(f"{task}-expert-warmup-10000" for task in ("hammer", "door", "relocate"))
NOT_DRAWN += ("hammer-expert-three-seeds",)
SHORTER = {
    " (analytic)": "",
    "mmd kernel gaussian": "Gaussian kernel",
    "actor lr 0.001": "early Q",
    ", variance analytic": "",
}


@dataclass
class Args:
    folder: Path = Path("runs/q_share")  # of q-share.png and .pdf


def read_agents(results: Path) -> pd.DataFrame:
    """A row for each seed of each run, with its evaluations and Q's share, both by the update."""
    folders = [path for path in sorted(results.iterdir()) if path.is_dir()]
    runs = read_all(tuple(path for path in folders if not path.name.endswith(OTHERS)))
    rows = []
    for (number, agent), history in evaluations(runs).groupby(["run", "agent"]):
        run = runs.iloc[number]
        args, file = run["args"], run["file"]
        diagnoses = results / f"{file.parent.name}-diagnosis.json"
        found = read_json(diagnoses) if diagnoses.exists() else {}
        shares = {}
        for name, diagnosis in found.items():
            stem, step = name.rsplit("-", 1)
            if stem == file.stem and "q_share" in diagnosis:
                shares[int(step)] = diagnosis["q_share"][agent]
        history = history.set_index("step")
        name = f"{run['task']}: {run['method']}"
        for word, shorter in SHORTER.items():
            name = name.replace(word, shorter)
        rows.append(
            {
                "name": name,
                "folder": file.parent.name,
                "method": run["name"],
                "seed": args["seed"] + agent,
                "task": args["env_id"],
                "spectral norm": "yes" if args.get("spectral_norm") else "no",
                "kernel": args["mmd_kernel"],
                "updates": run["updates"],
                "warmup": args["warmup_steps"],
                "weighting": args.get("weighting"),
                "beta": args.get("beta"),
                "limited": history["alpha"].iloc[-1] > 0.99 * LIMIT,
                "history": history,
                "shares": pd.Series(shares, dtype=float).sort_index(),
            }
        )
    return pd.DataFrame(rows).sort_values(["folder", "method", "seed"], kind="stable")


def equal_weights(agents: pd.DataFrame) -> pd.DataFrame:
    """E[w] E[Var[Q]] / beta at the last evaluation: its range over runs that differ in the seed."""
    weighted = agents[agents["weighting"] == "variance"].copy()
    last = pd.DataFrame([history.iloc[-1] for history in weighted["history"]], weighted.index)
    weighted["E[w] E[Var] / beta"] = last["weight"] * last["variance"] / weighted["beta"]
    setting = ["task", "spectral norm", "kernel", "updates"]
    table = weighted.groupby(setting)["E[w] E[Var] / beta"].agg(["size", "min", "max"])
    table.columns = ["runs", "lowest", "highest"]
    return table.sort_values("lowest").reset_index()


def at_the_limit(agents: pd.DataFrame) -> str:
    """How many runs end with alpha at its limit, and Q's three largest shares there, near the data.
    Runs that end in the warm-up do not count, nor do checkpoints in it."""
    trained = agents[agents["updates"] > agents["warmup"]]
    measured, shares = 0, []
    for run in trained.to_dict("records"):
        history = run["history"]
        counts = (history["alpha"] > 0.99 * LIMIT) & (history["mmd"] < NEAR)
        counts &= history.index > run["warmup"]
        found = [share for step, share in run["shares"].items() if counts[step]]
        measured += bool(found)
        shares += found
    ended = f"{trained['limited'].sum()} of {len(trained)} runs"
    largest = ", ".join(f"{share:.3%}" for share in sorted(shares)[-3:])
    checkpoints = f"of {len(shares)} checkpoints of {measured} runs near the data"
    return f"alpha is at its limit at the end of {ended}; there Q has {largest} ({checkpoints})"


def scores_below_the_limit(agents: pd.DataFrame) -> pd.DataFrame:
    """One sample's last five scores in training, where alpha ends below its limit."""
    rows = []
    for run in agents[~agents["limited"]].to_dict("records"):
        history = run["history"]
        scores = history[history.index > run["warmup"]]["score_sample"].tail(5)
        row = {name: run[name] for name in ("folder", "method", "seed", "updates")}
        rows.append(row | scores.agg(["size", "mean", "min", "max"]).to_dict())
    return pd.DataFrame(rows)


def draw_metric(axes: Axes, metric: str, agents: pd.DataFrame, colours: dict) -> dict[str, float]:
    """A line for each seed, grey where alpha ends at its limit. Returns where each name ends."""
    official = pd.read_csv(HERE / "paper" / "bear_official_curves.csv", comment="#")
    low, high = official[f"{metric}_lowest"], official[f"{metric}_highest"]
    axes.fill_between(official["update"], low, high, color="0.9", lw=0)
    axes.plot(official["update"], official[f"{metric}_median"], color=OFFICIAL, lw=2)
    for history in agents[agents["limited"]]["history"]:
        axes.plot(history.index, history[metric], color="0.6", lw=0.5)
    ends = {}
    for name, group in agents[~agents["limited"]].groupby("name", sort=False):
        for history in group["history"]:
            axes.plot(history.index, history[metric], color=colours[name], lw=1.3)
        longest = group["updates"] == group["updates"].max()
        last = [history[metric].iloc[-1] for history in group[longest]["history"]]
        ends[name] = float(np.exp(np.log(last).mean()))
    axes.set(xscale="log", yscale="log", xlim=(2_000, 600_000), xlabel="updates")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return ends


def draw_shares(axes: Axes, agents: pd.DataFrame) -> None:
    """A row for each method in a task, a dot for each checkpoint after the warm-up."""
    rows = []
    for run in agents.to_dict("records"):
        history = run["history"]
        for step, share in run["shares"].items():
            if step > run["warmup"]:
                off = "off the data" if history["mmd"][step] >= NEAR else "near the data"
                where = "at" if history["alpha"][step] > 0.99 * LIMIT else "below"
                about = f"α {where} its limit, {off}"
                rows.append({"name": run["name"], "share": max(share, 1e-7), "checkpoint": about})
    shares = pd.DataFrame(rows)
    styles = {
        "α below its limit, near the data": ("o", "#D55E00"),
        "α below its limit, off the data": ("x", "#D55E00"),
        "α at its limit, near the data": ("o", "0.4"),
        "α at its limit, off the data": ("x", "0.4"),
    }
    names = list(shares.groupby("name")["share"].median().sort_values().index)
    for about, (marker, colour) in styles.items():
        some = shares[shares["checkpoint"] == about]
        if some.empty:
            continue
        places = [names.index(name) for name in some["name"]]
        style = {"marker": marker, "color": colour, "alpha": 0.7, "s": 30}
        axes.scatter(some["share"], places, label=about, **style)
    axes.set_yticks(range(len(names)), names)
    axes.set(xscale="log", xlim=(5e-8, 1), title="How much of the actor's gradient is Q's?")
    labels = ("≤ 0.00001%", "0.0001%", "0.001%", "0.01%", "0.1%", "1%", "10%", "100%")
    axes.set_xticks(np.logspace(-7, 0, 8), labels)
    axes.legend(loc="lower right", fontsize=8)


def draw(agents: pd.DataFrame, path: Path) -> None:
    """MMD and alpha over updates, and below them Q's share of the actor's gradient."""
    agents = agents[agents["updates"] > agents["warmup"]]
    figure = new_figure(13, 10)
    upper, lower = figure.subfigures(2, 1)
    panels = dict(zip(("mmd", "alpha"), upper.subplots(1, 2)))
    free = agents[~agents["limited"]]["name"].unique()
    colours = dict(zip(free, sns.color_palette("colorblind", len(free)).as_hex()))
    draw_metric(panels["mmd"], "mmd", agents, colours)
    panels["mmd"].set_title("Is the policy near the data? MMD of actor and VAE")
    panels["mmd"].set_yticks([0.05, 0.1, 0.2, 0.5, 1], ["0.05", "0.1", "0.2", "0.5", "1"])
    mark(panels["mmd"], {"threshold": 0.07, "official threshold": 0.05, "off the data": 1.4142})
    ends = draw_metric(panels["alpha"], "alpha", agents, colours)
    panels["alpha"].set_title("Does the constraint ever relax? α, its multiplier")
    limited = f"grey: {agents['limited'].sum()} runs that end at α's limit"
    official = "official BEAR: median and range of 36 runs"
    colours |= {limited: "0.4", official: OFFICIAL}
    label_lines(panels["alpha"], ends | {limited: LIMIT, official: LIMIT}, colours)
    draw_shares(lower.subplots(), agents)
    save(figure, path)


def main(args: Args) -> None:
    """Raises OSError, and ValueError for a damaged file."""
    agents = read_agents(HERE / "results")
    with new_files(args.folder, "q_share") as new:
        draw(agents[~agents["folder"].isin(NOT_DRAWN)], new / "q-share.png")
    print(at_the_limit(agents))
    print(equal_weights(agents).to_markdown(index=False, floatfmt=".6g"), end="\n\n")
    print(scores_below_the_limit(agents).to_markdown(index=False, floatfmt=".1f"))


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
