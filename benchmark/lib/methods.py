"""The methods that run.py compares and report.py shows, and the scripts that train them."""

import importlib
from types import ModuleType
from typing import NamedTuple


class Method(NamedTuple):
    command: str  # a module for python -m, named after its agent's algorithm, and arguments
    name: str  # in print, where "+ SN" follows if there is spectral norm; {} holds an argument
    colour: str  # in every figure


NO_SN = "--spectral-norm False --variance analytic"
SN = "--spectral-norm True --variance analytic"
CONTROL = f"benchmark.variants.what_bounds_q {NO_SN} --control"
OF_BEAR = f"benchmark.variants.what_bounds_q {NO_SN} --weighting none --dropout 0 --control"

# Their order is that of rows and lines.
METHODS = {
    "bear": Method("bear", "BEAR", "#000000"),
    "uwac": Method("uwac", "UWAC", "#D55E00"),
    "uwac-analytic": Method("uwac --variance analytic", "UWAC (analytic)", "#0072B2"),
    "bear+sn": Method(f"uwac --weighting none --dropout 0 {SN}", "BEAR + SN", "#009E73"),
    # Without weights Var[Q] is a metric alone, for which the cheap estimate will do.
    "bear+dropout": Method(f"uwac --weighting none {NO_SN}", "BEAR + dropout", "#999933"),
    "bear+dropout+sn": Method(f"uwac --weighting none {SN}", "BEAR + dropout + SN", "#CC79A7"),
    # Not in the paper: do the weights keep Q bounded without the norm that Adroit has?
    "uwac-no-sn": Method(f"uwac {NO_SN}", "UWAC (analytic)", "#8B1A1A"),
    # The authors' configuration: docs/fidelity.md.
    "uwac-code": Method("benchmark.variants.uwac_code", "UWAC (authors' code)", "#E69F00"),
    "uwac-std": Method("uwac --weighting std", "UWAC (std)", "#56B4E9"),
    "uwac-ensemble": Method(
        "benchmark.variants.ensembles --members ensemble", "UWAC (ensemble)", "#7F5FBF"
    ),
    "uwac-rem": Method("benchmark.variants.ensembles --members rem", "UWAC (REM)", "#8C6D31"),
    # Controls: what of the weights bounds Q?
    "uwac-shuffled": Method(f"{CONTROL} shuffled", "UWAC with w shuffled", "#1B9E77"),
    "uwac-constant": Method(f"{CONTROL} constant", "UWAC with w's batch mean", "#7570B3"),
    "uwac-actor-constant": Method(
        f"{CONTROL} actor-constant", "UWAC with w's batch mean in the actor", "#3F8FD2"
    ),
    "uwac-critic-only": Method(
        f"{CONTROL} critic-only", "UWAC with w in the critics alone", "#E7298A"
    ),
    "uwac-actor-only": Method(f"{CONTROL} actor-only", "UWAC with w in the actor alone", "#66A61E"),
    "bear-scaled-q": Method(f"{OF_BEAR} scaled-q", "BEAR with Q over its mean", "#A6761D"),
    "bear-fixed-w": Method(f"{OF_BEAR} fixed-w", "BEAR with w = {fixed_w} in the actor", "#666666"),
}

# By its algorithm, the module that has the agent.
SCRIPTS = dict.fromkeys(method.command.split()[0] for method in METHODS.values())
SCRIPTS = {module.split(".")[-1]: module for module in SCRIPTS}


def script_of(command: str) -> ModuleType:
    """The module that a command names first."""
    return importlib.import_module(command.split()[0])
