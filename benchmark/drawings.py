"""Pictures of docs/walkthrough.md, which read in black and white."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from benchmark.figures import AXES, new_figure, panels, studies_of, updates_below
from benchmark.store import HERE

BOX = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "black"}
NETWORK = BOX | {"facecolor": "0.88"}
UWAC = BOX | {"linewidth": 2.2}
ARROW = {"arrowstyle": "-|>", "color": "black", "shrinkA": 0, "shrinkB": 0}
# The class's runs, by their folders: what a panel's legend says, and how the line is drawn.
CLASS = {
    "BEAR": ("BEAR", {"color": "black", "linestyle": "-", "marker": "s"}),
    "UWAC": ("UWAC, β = 1.6", {"color": "#0072B2", "linestyle": "-", "marker": "o"}),
    "UWAC, 160": ("UWAC, β = 160", {"color": "#56B4E9", "linestyle": "--", "marker": "^"}),
    "UWAC with w in the actor's loss alone": (
        "w in the actor's loss alone",
        {"color": "#D55E00", "linestyle": "-.", "marker": "v"},
    ),
    "UWAC with w in the critics' loss alone": (
        "w in the critics' loss alone",
        {"color": "#E69F00", "linestyle": ":", "marker": "x"},
    ),
}


def box(axes: Axes, x: float, y: float, text: str, style: dict = BOX) -> Text:
    bold = {"fontweight": "bold"} if style is UWAC else {}
    return axes.text(x, y, text, ha="center", va="center", fontsize=10, bbox=style, **bold)


def arrow(axes: Axes, start: Text, end: Text, text: str = "", **style) -> None:
    """From box to box, with words above its middle."""
    ends = {"patchA": start.get_bbox_patch(), "patchB": end.get_bbox_patch()}
    places = end.get_position(), start.get_position()
    axes.annotate("", *places, arrowprops=ARROW | ends | style)
    axes.text(*(np.mean(places, 0) + (0, 0.08)), text, fontsize=9, ha="center", va="bottom")


def around(axes: Axes, start: Text, end: Text, text: str) -> None:
    """From box to box, first to the right and then down, with words above its beginning."""
    (x, y), (_, below) = start.get_position(), end.get_position()
    corner = (10.2, below)
    ends = {"patchA": start.get_bbox_patch(), "patchB": end.get_bbox_patch()}
    bent = {"connectionstyle": "angle,angleA=0,angleB=90,rad=0"}
    axes.annotate("", corner, (x, y), arrowprops=ARROW | ends | bent)
    axes.text(8.2, y + 0.08, text, fontsize=9, ha="center", va="bottom")


def data_flow() -> Figure:
    """One update: what flows from where into which loss. UWAC's own parts have thick frames."""
    figure = new_figure(11, 6.2)
    axes = figure.subplots()
    axes.set(xlim=(0, 11), ylim=(0.1, 6.2))
    axes.axis("off")
    batch = box(axes, 0.8, 3.1, "mini-batch\n(line 3)\ns, a, r, s′")

    target_actor = box(axes, 2.9, 5.5, "target actor φ′\n(line 5)", NETWORK)
    target_critics = box(axes, 5.3, 5.5, "target critics θ′\n(line 6)", NETWORK)
    var_y = box(axes, 7.2, 4.65, "Var[Q₁] + Var[Q₂]\nunder dropout (line 7)", UWAC)
    weight = box(axes, 9.6, 4.65, "w = β / Var,\nat most 1.5", UWAC)
    critics = box(axes, 5.3, 3.6, "critics θ, with dropout\n(line 8)", NETWORK)
    critics_loss = box(axes, 9.6, 3.6, "critics' loss (line 8):\nmean of w (Q − r − γ y)²")
    arrow(axes, batch, target_actor, "s′        ")
    arrow(axes, target_actor, target_critics, "N actions")
    arrow(axes, target_critics, var_y, "             best action")
    around(axes, target_critics, critics_loss, "y, the value of the best action")
    arrow(axes, var_y, weight)
    arrow(axes, weight, critics_loss)
    arrow(axes, batch, critics, "s, a")
    arrow(axes, critics, critics_loss, "Q₁, Q₂")
    axes.text(3.9, 3.0, "r goes to the loss, too", fontsize=9, color="0.3")

    actor = box(axes, 2.9, 2.3, "actor φ\n(line 10)", NETWORK)
    vae = box(axes, 2.9, 0.7, "VAE of the data\n(line 10)", NETWORK)
    same_critics = box(axes, 5.3, 2.3, "critics θ\n(line 11)", NETWORK)
    var_q = box(axes, 7.2, 1.5, "Var[Q₁] + Var[Q₂]\nunder dropout (line 11)", UWAC)
    policy_weight = box(axes, 9.6, 1.5, "w = β / Var,\nat most 1.5", UWAC)
    distance = box(axes, 5.3, 0.7, "MMD\n(line 10)")
    actor_loss = box(axes, 9.6, 0.55, "actor's loss (line 11): mean\nof α (MMD − 0.07) − w Q")
    arrow(axes, batch, actor, "s")
    arrow(axes, batch, vae, "s            ")
    arrow(axes, actor, same_critics, "1 action")
    arrow(axes, actor, distance, "          M actions")
    arrow(axes, vae, distance, "M actions")
    arrow(axes, same_critics, var_q)
    around(axes, same_critics, actor_loss, "Q, the smaller of Q₁ and Q₂")
    arrow(axes, var_q, policy_weight)
    arrow(axes, policy_weight, actor_loss)
    arrow(axes, distance, actor_loss, "MMD")
    axes.text(0.05, 0.15, "Grey: a network. Thick: what UWAC adds.", fontsize=9)
    return figure


def class_rows(t: SimpleNamespace) -> pd.DataFrame:
    """History of the class's runs and of five seeds like them; β is in the name of one with another
    than the usual."""
    rows = studies_of(t, ["class", "door-demo"]).sort_values("step")
    return rows.assign(name=rows["name"] + np.where(rows["beta"] == 160, ", 160", ""))


def exercises(t: SimpleNamespace) -> Figure:
    """What the exercises ask of their five runs: a seed of each."""
    rows = class_rows(t).query("seed == 0")
    long = rows[rows["study"] == "class"]["name"]
    rows = rows[(rows["study"] == "class") | ~rows["name"].isin(long)]
    metrics = ("target_q", "mmd", "alpha", "policy_variance", "weight", "policy_weight")
    figure, axes = panels(len(metrics))
    for panel, metric in zip(axes, metrics):
        for name, (label, style) in CLASS.items():
            some = rows[rows["name"] == name]
            each = max(1, len(some) // 7)
            panel.plot(some["step"], some[metric], label=label, markevery=each, **style)
        panel.set_ylabel(AXES[metric])
        panel.set(yscale="log")
        updates_below(panel, rows[rows["study"] == "class"]["warmup_steps"].iloc[0])
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def weight_against_q(t: SimpleNamespace) -> Figure:
    """Batch means of the actor's w and of Q, a point for each evaluation, and lines of c / Q²."""
    own = {"color": "0.6", "marker": "D", "label": "door-human, no SN, β = 1.6"}
    runs = {
        "door-human_uwac-no-sn_float32_0": own,
        "relocate-expert_uwac-no-sn_warmup-10000_float32_0": {
            "color": "#D55E00",
            "marker": "x",
            "label": "relocate-expert, no SN, β = 1.6",
        },
    }
    figure = new_figure(7.5, 4.8)
    axes = figure.subplots()
    for run, style in runs.items():
        some = t.agents[t.agents["run"] == run]
        axes.plot(some["policy_q"], some["policy_weight"], linestyle="", **style)
    for name in ("UWAC", "UWAC, 160"):
        label, style = CLASS[name]
        some = class_rows(t).query("study == 'class' and name == @name")
        style = style | {"linestyle": "", "markerfacecolor": "none", "label": f"door-demo, {label}"}
        axes.plot(some["policy_q"], some["policy_weight"], **style)
    q = np.geomspace(10, 20_000)
    for c, style in ((700, "-"), (70_000, "--")):
        axes.plot(q, c / q**2, color="black", lw=1, linestyle=style, label=f"{c:,} / Q²")
    axes.axhline(1.5, color="black", linestyle=":", lw=1, label="clip, 1.5")
    axes.set(xscale="log", yscale="log", ylim=(1e-5, 4), xlim=(10, 2e4))
    axes.set_xlabel("Q of the policy's actions, mean of a batch")
    axes.set_ylabel("w in the actor's loss, mean of a batch")
    axes.legend(fontsize=8)
    return figure


def ours(t: SimpleNamespace) -> dict[Path, Figure]:
    """Each picture by its file."""
    docs = HERE.parent / "docs"
    return {
        docs / "data-flow.png": data_flow(),
        docs / "w-against-q.png": weight_against_q(t),
        docs / "exercises.png": exercises(t),
    }
