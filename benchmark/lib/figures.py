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
matplotlib.use("agg")  # pictures go into files, whatever a notebook has set


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of `width` x `height` inches (100 pixels each)."""
    return Figure(figsize=(width, height), layout="constrained")


def columns(panels: int) -> int:
    """How many panels stand in a row, so that as little as possible is left blank."""
    return 2 if panels in (2, 4) else min(panels, 3)


def heights_of(axes: Axes, values: list[float]) -> list[float]:
    """From 0, the lower end of the axes, to 1."""
    to_axes = axes.transData + axes.transAxes.inverted()
    x, _ = axes.get_xlim()
    return [float(to_axes.transform((x, value))[1]) for value in values]


def label_lines(axes: Axes, values: dict[str, float], colours: dict[str, str]) -> None:
    """Names to the right of the axes, each at its value, or as near as the others leave room. The
    axes' limits must be final."""
    names = sorted(values, key=values.get)
    heights = heights_of(axes, sorted(values.values()))
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
    near = [height for height in heights_of(axes, list(values.values())) if -1 <= height <= 2]
    ends = min([0, *(height - 0.05 for height in near)]), max([1, *(h + 0.05 for h in near)])
    to_data = axes.transAxes + axes.transData.inverted()
    axes.set_ylim([to_data.transform((0, end))[1] for end in ends])
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
