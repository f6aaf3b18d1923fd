"""The methods that run.py compares and report.py shows."""

from typing import NamedTuple


class Method(NamedTuple):
    command: str  # a script or program, and its arguments
    name: str  # in tables and legends; SN is spectral norm
    colour: str  # in every figure


# Their order is that of rows and lines.
METHODS = {
    "bear": Method("bear.py", "BEAR", "#000000"),
    "uwac": Method("uwac.py", "UWAC", "#D55E00"),
    "uwac-analytic": Method("uwac.py --variance analytic", "UWAC (analytic)", "#0072B2"),
    "bear+sn": Method(
        "uwac.py --weighting none --dropout 0 --spectral-norm True --variance analytic",
        "BEAR + SN",
        "#009E73",
    ),
    # Without weights Var[Q] is a metric alone, for which the cheap estimate will do.
    "bear+dropout": Method(
        "uwac.py --weighting none --spectral-norm False --variance analytic",
        "BEAR + dropout",
        "#999933",
    ),
    "bear+dropout+sn": Method(
        "uwac.py --weighting none --spectral-norm True --variance analytic",
        "BEAR + dropout + SN",
        "#CC79A7",
    ),
    # Not in the paper: do the weights keep Q bounded without the norm that Adroit has?
    "uwac-no-sn": Method(
        "uwac.py --spectral-norm False --variance analytic",
        "UWAC (analytic) without SN",
        "#8B1A1A",
    ),
    # The authors' configuration: docs/fidelity.md.
    "uwac-code": Method("benchmark/uwac_code.py", "UWAC (authors' code)", "#E69F00"),
    "uwac-std": Method("uwac.py --weighting std", "UWAC (std)", "#56B4E9"),
    "uwac-ensemble": Method(
        "benchmark/ensembles.py --members ensemble", "UWAC (ensemble)", "#7F5FBF"
    ),
    "uwac-rem": Method("benchmark/ensembles.py --members rem", "UWAC (REM)", "#8C6D31"),
    # Controls: what of the weights bounds Q?
    "uwac-shuffled": Method(
        "benchmark/what_bounds_q.py --control shuffled --spectral-norm False --variance analytic",
        "UWAC with w shuffled",
        "#1B9E77",
    ),
    "uwac-constant": Method(
        "benchmark/what_bounds_q.py --control constant --spectral-norm False --variance analytic",
        "UWAC with w's batch mean",
        "#7570B3",
    ),
    "uwac-critic-only": Method(
        "benchmark/what_bounds_q.py --control critic-only --spectral-norm False --variance analytic",
        "UWAC with w in the critics alone",
        "#E7298A",
    ),
    "uwac-actor-only": Method(
        "benchmark/what_bounds_q.py --control actor-only --spectral-norm False --variance analytic",
        "UWAC with w in the actor alone",
        "#66A61E",
    ),
    "bear-scaled-q": Method(
        "benchmark/what_bounds_q.py --control scaled-q --weighting none --dropout 0"
        " --spectral-norm False --variance analytic",
        "BEAR with Q over its mean",
        "#A6761D",
    ),
    "bear-fixed-w": Method(
        "benchmark/what_bounds_q.py --control fixed-w --weighting none --dropout 0"
        " --spectral-norm False --variance analytic",
        "BEAR with w = 0.01 in the actor",
        "#666666",
    ),
}
