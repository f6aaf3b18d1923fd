"""One style for every figure: `from style import COLOURS, new_figure, save`."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

COLOURS = {  # a method's colour in every figure; the order of methods in tables and legends
    "bear": "#000000",
    "uwac": "#D55E00",
    "uwac-analytic": "#0072B2",
    "bear+sn": "#009E73",
    "bear+dropout+sn": "#CC79A7",
    "uwac-no-sn": "#8B1A1A",
    "uwac-code": "#E69F00",
    "uwac-std": "#56B4E9",
    "uwac-ensemble": "#7F5FBF",
    "uwac-rem": "#8C6D31",
}
STYLE = {
    "savefig.dpi": 100,
    "figure.constrained_layout.use": True,
    "lines.markersize": 3,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of `width` x `height` inches (100 pixels each)."""
    matplotlib.rcParams.update(STYLE)
    return Figure(figsize=(min(width, 10), min(height, 10)))


def save(figure: Figure, path: Path) -> None:
    """As PNG and PDF beside each other: `path` is one of the two names."""
    for suffix in (".png", ".pdf"):
        figure.savefig(path.with_suffix(suffix))
