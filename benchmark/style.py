"""One style, one name and one colour a method: `from style import COLOURS, NAMES, save`."""

from pathlib import Path

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {  # a method's colour in every figure; the order of methods in tables and legends
    "bear": "#000000",
    "uwac": "#D55E00",
    "uwac-analytic": "#0072B2",
    "bear+sn": "#009E73",
    "bear+dropout": "#999933",
    "bear+dropout+sn": "#CC79A7",
    "uwac-no-sn": "#8B1A1A",
    "uwac-code": "#E69F00",
    "uwac-std": "#56B4E9",
    "uwac-ensemble": "#7F5FBF",
    "uwac-rem": "#8C6D31",
}
NAMES = {  # a method's name in tables and legends; SN is spectral norm
    "bear": "BEAR",
    "uwac": "UWAC",
    "uwac-analytic": "UWAC (analytic)",
    "bear+sn": "BEAR + SN",
    "bear+dropout": "BEAR + dropout",
    "bear+dropout+sn": "BEAR + dropout + SN",
    "uwac-no-sn": "UWAC without SN",
    "uwac-code": "UWAC (authors' losses)",
    "uwac-std": "UWAC (weights by std)",
    "uwac-ensemble": "UWAC (ensemble)",
    "uwac-rem": "UWAC (REM)",
}
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
