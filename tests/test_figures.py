"""benchmark/lib/figures.py: pictures go into files."""

import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

from benchmark.lib import figures

DRAW = """
import pandas as pd
import seaborn as sns
from benchmark.lib.figures import save
from pathlib import Path

grid = sns.relplot(pd.DataFrame({"x": [0, 1], "y": [0, 1]}), x="x", y="y")
save(grid.figure, Path("a.png"))
"""


def test_a_notebooks_backend_is_not_needed(tmp_path):
    """Which MPLBACKEND names, where its package is not installed."""
    environment = os.environ | {"MPLBACKEND": "module://nothing.backend", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", DRAW], check=True, cwd=tmp_path, env=environment)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


def test_lines_of_comparison_do_not_flatten_the_data():
    """A value near the data is a line, and a far one an arrow with its number."""
    axes = figures.new_figure(4, 3).subplots()
    axes.plot([0, 1], [0.0, 10.0])
    figures.mark(axes, {"near": 15.0, "far": 1e6, "deep": -60.0})
    assert [line.get_ydata()[0] for line in axes.lines[1:]] == [15]
    assert {text.get_text() for text in axes.texts} == {"near", "↑ far: 1e+06", "↓ deep: -60"}
    low, high = axes.get_ylim()
    assert low < 0 and 15 < high < 20


@pytest.mark.parametrize("panels, row", [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (7, 3)])
def test_panels_stand_in_rows_without_blanks(panels, row):
    assert figures.columns(panels) == row


def test_names_beside_the_axes_keep_their_order_and_their_distance():
    axes = figures.new_figure(4, 3).subplots()
    axes.set_ylim(0, 1)
    values = {"a": 0.5, "b": 0.51, "c": 0.99, "d": 1.0, "e": 0.0}
    figures.label_lines(axes, values, {"b": "red"})
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    ordered = [heights[name] for name in sorted(values, key=values.get)]
    assert (np.diff(ordered) > 0.0649).all() and max(ordered) <= 1
    assert (heights["e"], heights["a"]) == pytest.approx((0, 0.5))
    (colour,) = [text.get_color() for text in axes.texts if text.get_text() == "b"]
    assert colour == "red"
