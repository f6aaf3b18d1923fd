"""The style of all figures, and what several of them draw."""

from pathlib import Path

import matplotlib
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


def mark(axes: Axes, value: float, name: str) -> None:
    """A dotted line at `value`, with its name to the right of the axes, where no data lie."""
    axes.axhline(value, color="0.3", linestyle=":", linewidth=1)
    place = {"ha": "left", "va": "center", "transform": axes.get_yaxis_transform()}
    axes.text(1.01, value, name, fontsize=8, **place)


def shade_warmup(axes: Axes, updates: int) -> None:
    """Grey, as far as the actor learns from MMD alone; its name stands above the axes."""
    axes.axvspan(0, updates, color="0.93", zorder=0)
    axes.text(0, 1.01, "warm-up", transform=axes.get_xaxis_transform(), va="bottom", fontsize=8)


def save(figure: Figure, path: Path) -> None:
    """As PNG and PDF beside each other: `path` is one of the two names."""
    for suffix in (".png", ".pdf"):
        figure.savefig(path.with_suffix(suffix))
    plt.close(figure)
