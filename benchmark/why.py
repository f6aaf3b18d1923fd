"""Why UWAC and BEAR score alike: MMD, alpha, Q's share and the weights, from result files alone.

    python benchmark/why.py

The figure has the runs in results/ beside the official BEAR's (paper/bear_official_curves.csv). The
table says how equal UWAC's weights are: E[w] E[Var[Q]] / beta over the last batch, which is 1 where
Var[Q] is the same in all states, and more otherwise. Another has the last scores of runs that end
with alpha below its limit. results/FOLDER-diagnosis.json has what diagnose.py found of
results/FOLDER/NAME.json after STEP updates, under NAME-STEP.
"""

from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
import tyro
from lib.figures import mark, new_figure, save
from lib.files import errors_in_one_line, read_json
from lib.methods import METHODS
from matplotlib.ticker import EngFormatter

HERE = Path(__file__).parent
LIMIT = float(np.exp(10))  # of alpha
# Colours of runs that end below it.
FREE = ("#E69F00", "#009E73", "#D62728", "#7F5FBF", "#56B4E9", "#8C6D31", "#CC79A7")


@dataclass
class Args:
    folder: Path = Path("runs/why")  # of why.png and .pdf


def read_runs(results: Path) -> pd.DataFrame:
    """A row for each seed of each method with MMD, with its evaluations and diagnoses."""
    rows = []
    for folder in sorted(path for path in results.iterdir() if path.is_dir()):
        diagnoses = results / f"{folder.name}-diagnosis.json"
        found = read_json(diagnoses) if diagnoses.exists() else {}
        for file in sorted(folder.glob("*.json")):
            result = read_json(file)
            if "mmd_kernel" not in result.get("args", {}):
                continue
            args = result["args"]
            for seed in range(len(result["history"][0]["alpha"])):
                # A metric has a value for each seed; step and seconds have one for all.
                history = [
                    {name: np.ravel(values)[seed % np.size(values)] for name, values in row.items()}
                    for row in result["history"]
                ]
                history = pd.DataFrame(history).set_index("step")
                shares = {}
                for name, diagnosis in found.items():
                    run, step = name.rsplit("-", 1)
                    if run == file.stem and "q_share" in diagnosis:
                        shares[int(step)] = diagnosis["q_share"][seed]
                rows.append(
                    {
                        "method": result.get("method") or result["algorithm"],
                        "folder": folder.name,
                        "seed": args["seed"] + seed,
                        "task": args["env_id"],
                        "spectral norm": "yes" if args.get("spectral_norm") else "no",
                        "kernel": args["mmd_kernel"],
                        "updates": history.index[-1],
                        "warmup": args["warmup_steps"],
                        "args": args,
                        "history": history,
                        "shares": pd.Series(shares, dtype=float).sort_index(),
                    }
                )
    return pd.DataFrame(rows)


def equal_weights(runs: pd.DataFrame) -> pd.DataFrame:
    """E[w] E[Var[Q]] / beta at the last evaluation: its range over runs that differ in the seed."""
    weighted = runs[[args.get("weighting") == "variance" for args in runs["args"]]].copy()
    values = []
    for args, history in zip(weighted["args"], weighted["history"]):
        last = history.iloc[-1]
        values.append(last["weight"] * last["variance"] / args["beta"])
    weighted["E[w] E[Var] / beta"] = values
    setting = ["task", "spectral norm", "kernel", "updates"]
    table = weighted.groupby(setting)["E[w] E[Var] / beta"].agg(["size", "min", "max"])
    table.columns = ["runs", "lowest", "highest"]
    return table.sort_values("lowest").reset_index()


def at_the_limit(runs: pd.DataFrame) -> str:
    """How many runs end with alpha at its limit, and Q's three largest shares there, near the data
    (MMD below 0.2). Runs that end in the warm-up do not count, nor do checkpoints in it."""
    trained = [run for run in runs.to_dict("records") if run["updates"] > run["warmup"]]
    ended, measured, shares = 0, 0, []
    for run in trained:
        limited = run["history"]["alpha"] > 0.99 * LIMIT
        ended += limited.iloc[-1]
        near = run["history"]["mmd"] < 0.2
        at_limit = limited & near & (run["history"].index > run["warmup"])
        found = [share for step, share in run["shares"].items() if at_limit[step]]
        measured += bool(found)
        shares += found
    number = f"alpha is at its limit at the end of {ended} of {len(trained)} runs"
    largest = ", ".join(f"{share:.3%}" for share in sorted(shares)[-3:])
    checkpoints = f"of {len(shares)} checkpoints of {measured} runs near the data"
    return f"{number}; there Q has {largest} ({checkpoints})"


def scores_below_the_limit(runs: pd.DataFrame) -> pd.DataFrame:
    """One sample's last five scores in training, where alpha ends below its limit."""
    rows = []
    for run in runs.to_dict("records"):
        history = run["history"]
        if history["alpha"].iloc[-1] < 0.99 * LIMIT:
            scores = history[history.index > run["warmup"]]["score_sample"].tail(5)
            row = {name: run[name] for name in ("folder", "method", "seed", "updates")}
            rows.append(row | scores.agg(["size", "mean", "min", "max"]).to_dict())
    return pd.DataFrame(rows)


def draw(runs: pd.DataFrame, official: pd.DataFrame, path: Path) -> None:
    """MMD and alpha over updates, and Q's share of the actor's gradient."""
    figure = new_figure(14, 4.8)
    panels = dict(zip(("mmd", "alpha", "shares"), figure.subplots(1, 3)))
    for metric in ("mmd", "alpha"):
        low, high = official[f"{metric}_lowest"], official[f"{metric}_highest"]
        name = "official BEAR, D4RL's own files (v0): median and range of 36 runs"
        panels[metric].fill_between(official["update"], low, high, color="0.85")
        panels[metric].plot(official["update"], official[f"{metric}_median"], "k--", label=name)
    spare = cycle(FREE)
    colours = {}
    for run in runs.to_dict("records"):
        method = METHODS[run["method"]]
        label = f"ours: {method.name}".replace(" (analytic)", "")
        colour = method.colour
        style = {"linewidth": 0.8, "alpha": 0.6}
        if run["history"]["alpha"].iloc[-1] < 0.99 * LIMIT:
            label += f", {run['folder']}"
            colour = colours.get(label) or next(spare)
            style = {"linewidth": 2.2}
        first = label not in colours
        colours[label] = colour
        for metric in ("mmd", "alpha"):
            values = run["history"][metric]
            name = label if first and metric == "alpha" else None
            panels[metric].plot(values.index, values, color=colour, label=name, **style)
        shares = run["shares"].clip(lower=1e-9)
        panels["shares"].plot(shares.index, shares, "o-", color=colour, markersize=4, **style)
    titles = {"mmd": "MMD of actor and VAE", "alpha": "α, multiplier of the constraint on MMD"}
    titles["shares"] = "Q's share of the actor's gradient"
    for metric, axes in panels.items():
        axes.set(title=titles[metric], xlabel="updates", yscale="log")
        if metric != "shares":
            axes.set(xscale="log", xlim=(2_000, 600_000))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    mark(panels["mmd"], 0.07, "ours: 0.07")
    mark(panels["mmd"], 0.05, "official: 0.05")
    mark(panels["alpha"], LIMIT, "limit: e¹⁰")
    panels["mmd"].set_yticks([0.05, 0.1, 0.2, 0.5, 1], ["0.05", "0.1", "0.2", "0.5", "1"])
    panels["shares"].set_xlim(left=0)
    handles, labels = panels["alpha"].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    for line in legend.get_lines():
        line.set(linewidth=2, alpha=1)  # or thin lines' colours could not be told
    save(figure, path)


def main(args: Args) -> None:
    """Raises OSError, and ValueError for a damaged file."""
    runs = read_runs(HERE / "results")
    official = pd.read_csv(HERE / "paper" / "bear_official_curves.csv", comment="#")
    picture = args.folder.expanduser() / "why.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw(runs, official, picture)
    print(at_the_limit(runs))
    print(equal_weights(runs).to_markdown(index=False, floatfmt=".6g"), end="\n\n")
    print(scores_below_the_limit(runs).to_markdown(index=False, floatfmt=".1f"))


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
