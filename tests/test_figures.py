"""benchmark/figures.py: what pictures say."""

import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.legend import Legend

from benchmark import figures, store


def look(line):
    """Colour, style and marker."""
    return to_hex(line.get_color()), line.get_linestyle(), line.get_marker()


def said_by(legend):
    """What it calls the lines, and how they look."""
    names = (text.get_text() for text in legend.texts)
    return dict(zip(names, map(look, legend.legend_handles), strict=True))


def said_beside(axes):
    return axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()


def test_lines_of_comparison_do_not_flatten_the_data():
    """Each is named in the legend with its value; the axis grows for a near one alone."""
    axes = figures.new_figure(4, 3).subplots()
    axes.plot([0, 1], [0.0, 10.0])
    figures.mark(axes, {"near": 15.0, "far": 1e6, "deep": -60.0})
    near, far, deep = axes.lines[1:]
    said = {"near: 15": look(near), "far: 1e+06": look(far), "deep: -60": look(deep)}
    assert said_by(axes.get_legend()) == said and len({*said.values()}) == 3
    assert [line.get_ydata()[0] for line in (near, far, deep)] == [15, 1e6, -60]
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


PANELS = {  # a metric's values, and the words and the scale of its axis
    "weight": ([0.4, 0.5], "mean weight, critic's loss", "linear"),
    "policy_weight": ([0.1, 1.2], "mean weight, actor's loss", "log"),
    "variance": ([1, 999], "Var[Q1] + Var[Q2]", "log"),
    "policy_variance": ([0, 999], "Var[Q1] + Var[Q2], policy's actions", "linear"),
    "policy_q": ([-5, 1001], "Q of the policy's actions", "symlog"),
    "score": ([10, 16], "return, best of 30", "linear"),
    "q_share": ([0.2, 0.5], "Q's share of the actor's gradient", "log"),
    "ood_auroc": ([0.4, 0.6], "AUROC of Var[Q], random actions", "linear"),
    "score_sample": ([10, 11], "return, one sample", "linear"),
}


def test_what_each_metrics_panel_shows():
    """Its words and scale, and of each line that it looks as the legend says."""
    rows = [(label, step) for label in ("UWAC, beta 2", "UWAC") for step in (1_000, 40_000)]
    rows = pd.DataFrame(rows, columns=["label", "step"])
    rows = rows.assign(run=rows["label"], method="uwac", agent=0, warmup_steps=20_000)
    for metric, (values, *_) in PANELS.items():
        rows[metric] = [*values, *values[::-1]]
    figure = figures.curves(rows, [*PANELS], "door", {}, "return", candidates=30)
    assert figure.get_suptitle() == "door"
    beta_2, plain = (said := said_by(figure.legends[0])).values()
    assert [*said] == ["UWAC, beta 2", "UWAC"] and not {*beta_2} & {*plain}
    for axes, (values, label, scale) in zip(figure.axes, PANELS.values(), strict=True):
        assert said_beside(axes) == ("", "updates", label, scale)
        drawn = {tuple(line.get_ydata()): look(line) for line in axes.lines[:2]}
        assert drawn == {tuple(values): beta_2, tuple(values[::-1]): plain}
    assert axes.get_ylim() == (7.5, 13.5)  # or a score's noise would look like a difference


def test_who_plays():
    """The legend has a policy that the first panel lacks, too."""
    rows = [("BEAR", "best", 5, 1.0, 0.5), ("UWAC", "best", 5, 2.0, 0.25)]
    rows += [("UWAC", "vae", 5, 3.0, 0.125), ("UWAC", "vae", 9, 4.0, 0.5)]
    table = pd.DataFrame(rows, columns=["method", "policy", "updates", "score", "score error"])
    figure = figures.policies(table, "door", {"paper": 3.0}, "return")
    (legend,) = figure.legends
    words = legend.get_title().get_text(), figure.get_suptitle()
    assert words == ("mean and standard error", "door")
    handles = zip(legend.legend_handles, legend.texts, strict=True)
    names = {to_hex(bars.get_color()[0]): text.get_text() for bars, text in handles}
    drawn = []
    for axes in figure.axes:
        assert said_beside(axes)[1:] == ("updates", "return", "linear")
        assert [*said_by(axes.get_legend())] == ["paper: 3"]
        for line, _, (bars,) in axes.containers:
            for x, y, ((_, low), (_, high)) in zip(*line.get_data(), bars.get_segments()):
                drawn.append((axes.get_title(), names[line.get_color()], x, y, (high - low) / 2))
    assert drawn == rows


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
