"""benchmark/figures.py: what pictures say."""

import pandas as pd
import pytest
from matplotlib.legend import Legend

from benchmark import figures, store


def test_lines_of_comparison_do_not_flatten_the_data():
    """Each is named in the legend with its value; the axis grows for a near one alone."""
    axes = figures.new_figure(4, 3).subplots()
    axes.plot([0, 1], [0.0, 10.0])
    figures.mark(axes, {"near": 15.0, "far": 1e6, "deep": -60.0})
    words = [text.get_text() for text in axes.get_legend().texts]
    assert words == ["near: 15", "far: 1e+06", "deep: -60"]
    low, high = axes.get_ylim()
    assert -1 < low < 0 and 15 < high < 20


def test_a_curve_at_the_end_of_a_logarithmic_axis_is_not_on_the_frame():
    axes = figures.new_figure(4, 3).subplots()
    axes.plot([0, 1, 2], [0.1, 1.41, 1.41])
    axes.set_yscale("log")
    figures.mark(axes, {"threshold": 0.07})
    low, high = axes.get_ylim()
    assert low < 0.065 and 1.5 < high < 2


@pytest.mark.parametrize("number, row", [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (7, 3)])
def test_panels_stand_in_rows_without_blanks(number, row):
    _, axes = figures.panels(number)
    assert len(axes) == number and axes[0].get_gridspec().ncols == row


def test_a_curve_is_the_median_of_its_agents():
    """Of a stack of two and of a run alone, which the legend counts as three."""
    rows = [("a", 0, 1, 5), ("a", 1, 1, 5), ("b", 0, 1, 5), ("a", 0, 2, 10), ("a", 1, 2, 1e9)]
    rows = pd.DataFrame([*rows, ("b", 0, 2, 15)], columns=["run", "agent", "step", "target_q"])
    rows = rows.assign(label="BEAR", method="bear", warmup_steps=1)
    figure = figures.curves(rows, ["target_q"], "door", {"target_q": {"bound": 2000}}, "score")
    (axes,) = figure.axes
    assert axes.lines[0].get_ydata().tolist() == [5, 15]
    low, high = axes.collections[0].get_paths()[0].vertices[:, 1].min(), axes.dataLim.y1
    assert (low, high) == (5, 1e9) and axes.get_yscale() == "log"
    assert [text.get_text() for text in figure.legends[0].texts] == ["BEAR (3)"]
    assert [text.get_text() for text in axes.get_legend().texts] == ["bound: 2,000"]


def test_a_methods_colour_is_its_plain_lines_and_others_differ():
    methods = {"UWAC, beta 2.5": "uwac-analytic", "UWAC": "uwac-analytic", "mine": "mine"}
    colours = figures.colours_of(methods)
    assert colours["UWAC"] == figures.METHODS["uwac-analytic"].colour
    assert len(set(colours.values())) == 3


def words_of(figure):
    """Titles, axes and rows, and the legends' lines."""
    axes = [axes for axes in figure.findobj(figures.Axes) if axes.get_visible()]
    words = [text for one in axes for text in (one.get_title(), one.get_xlabel(), one.get_ylabel())]
    words += [tick.get_text() for one in axes for tick in one.get_yticklabels()]
    legends = [legend for legend in figure.findobj(Legend)]
    return {*words, *(text.get_text() for legend in legends for text in legend.texts)} - {""}


def test_what_our_pictures_say():
    """Their axes, the rows of methods, and what their colours are."""
    said = {file.name: words_of(figure) for file, figure in figures.ours(store.load()).items()}
    panels = {f"{task}, {norm} SN" for task in figures.HANDS for norm in ("with", "without")}
    assert said["q.png"] >= panels | {
        "updates",
        "Q target, mean of a batch",
        "BEAR",
        "UWAC",
        "bound",
    }
    fixed = {f"BEAR with w = {w} in the actor's loss" for w in ("0", "0.01", "0.43")}
    assert said["bounds.png"] >= fixed | {"UWAC (mc)", "UWAC with w shuffled over states", "bound"}
    assert said["door-human.png"] >= {"BEAR (3)", "UWAC (3)", "largest reward / (1 - γ): 1,999"}
    for task in ("door", "relocate"):
        methods = {"BEAR", "BEAR + SN", "UWAC + SN", "threshold"}
        assert said[f"late-{task}.png"] >= methods | {"score, one sample", "MMD of actor and VAE"}
    shares = {"early-q: UWAC + SN", "at its limit, near the data", "α ends at its limit"}
    assert said["q-share.png"] >= shares | {figures.AXES["mmd"], figures.AXES["alpha"]}
    assert said["published.png"] >= {
        "hopper-medium-expert",
        "BEAR, paper",
        "UWAC, paper (± its std)",
    }
