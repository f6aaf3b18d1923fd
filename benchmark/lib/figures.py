"""The style of all figures, and what several of them draw."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLE = {
    "savefig.dpi": 100,
    "lines.markersize": 5,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}
matplotlib.rcParams.update(STYLE)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of `width` x `height` inches (100 pixels each)."""
    return Figure(figsize=(width, height), layout="constrained")


def columns(panels: int) -> int:
    """How many panels stand in a row, so that as little as possible is left blank."""
    return 2 if panels in (2, 4) else min(panels, 3)


def label_lines(axes: Axes, values: dict[str, float], colours: dict[str, str]) -> None:
    """Names to the right of the axes, each at its value, or as near as the others leave room. The
    axes' limits must be final."""
    to_axes = axes.transData + axes.transAxes.inverted()
    names = sorted(values, key=values.get)
    heights = [to_axes.transform((axes.get_xlim()[0], values[name]))[1] for name in names]
    room = 0.065
    for i in range(1, len(names)):
        heights[i] = max(heights[i], heights[i - 1] + room)
    highest = max(1.0, room * (len(names) - 1))
    for i in reversed(range(len(names))):
        heights[i] = min(heights[i], highest)
        highest = heights[i] - room
    for name, height in zip(names, heights):
        style = {"fontsize": 8, "va": "center", "color": colours.get(name, "black")}
        axes.text(1.01, height, name, transform=axes.transAxes, **style)


def mark(axes: Axes, values: dict[str, float]) -> None:
    """A dotted line at each value, with its name. Where a value is so far from the data that it
    would flatten them, there is an arrow in place of the line."""
    low, high = axes.get_ylim()
    span = high - low if axes.get_yscale() == "linear" else 0
    near = [value for value in values.values() if low - span <= value <= high + span]
    margin = 0.05 * span if near else 0
    lowest = min([low, *(value - margin for value in near)])
    highest = max([high, *(value + margin for value in near)])
    axes.set_ylim(lowest, highest)
    low, high = axes.get_ylim()
    names = {}
    for name, value in values.items():
        if low <= value <= high:
            axes.axhline(value, color="0.3", linestyle=":", linewidth=1)
            names[name] = value
        else:
            arrow = "↑" if value > high else "↓"
            names[f"{arrow} {name}: {value:.3g}"] = float(np.clip(value, low, high))
    label_lines(axes, names, {})


def shade_warmup(axes: Axes, updates: int) -> None:
    """Grey, as far as the actor learns from MMD alone."""
    axes.axvspan(0, updates, color="0.93", zorder=0)
    place = {"transform": axes.get_xaxis_transform(), "va": "top", "fontsize": 8}
    axes.text(0, 0.99, " warm-up", color="0.4", **place)


def save(figure: Figure, path: Path) -> None:
    """As PNG and PDF beside each other: `path` is one of the two names."""
    for suffix in (".png", ".pdf"):
        figure.savefig(path.with_suffix(suffix))
    plt.close(figure)
