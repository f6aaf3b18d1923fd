"""benchmark/lib/methods.py: what each method's command trains."""

import pytest
import tyro

from benchmark.lib.methods import METHODS, SCRIPTS, script_of

BEAR = {"weighting": "none", "dropout": 0}
CHEAP = {"variance": "analytic"}
NO_SN = CHEAP | {"spectral_norm": False}
SN = CHEAP | {"spectral_norm": True}
# By the paper's sections 5.3 to 5.6 and benchmark/README.md: the script, and what is not its
# default on door-human, where UWAC has spectral norm.
SAID = {
    "bear": ("bear", {}),
    "uwac": ("uwac", {}),
    "uwac-analytic": ("uwac", CHEAP),
    "bear+sn": ("uwac", BEAR | SN),
    "bear+dropout": ("uwac", {"weighting": "none"} | NO_SN),
    "bear+dropout+sn": ("uwac", {"weighting": "none"} | SN),
    "uwac-no-sn": ("uwac", NO_SN),
    "uwac-code": ("uwac_code", {}),
    "uwac-std": ("uwac", {"weighting": "std"}),
    "uwac-ensemble": ("ensembles", {"members": "ensemble"}),
    "uwac-rem": ("ensembles", {"members": "rem"}),
    "uwac-shuffled": ("what_bounds_q", NO_SN | {"control": "shuffled"}),
    "uwac-constant": ("what_bounds_q", NO_SN | {"control": "constant"}),
    "uwac-actor-constant": ("what_bounds_q", NO_SN | {"control": "actor-constant"}),
    "uwac-critic-only": ("what_bounds_q", NO_SN | {"control": "critic-only"}),
    "uwac-actor-only": ("what_bounds_q", NO_SN | {"control": "actor-only"}),
    "bear-scaled-q": ("what_bounds_q", NO_SN | BEAR | {"control": "scaled-q"}),
    "bear-fixed-w": ("what_bounds_q", NO_SN | BEAR | {"control": "fixed-w", "fixed_w": 0.01}),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_command_trains_what_its_method_is_said_to_be(method):
    algorithm, changes = SAID[method]
    module, *words = METHODS[method].command.split()
    script = script_of(module)
    assert module == SCRIPTS[algorithm] and script.Agent.algorithm == algorithm
    found = tyro.cli(script.Args, args=[*words, "--env-id", "door-human"]).resolved()
    usual = vars(script.Args("door-human").resolved())
    assert vars(found) == usual | changes


def test_all_methods_are_said():
    assert SAID.keys() == METHODS.keys()
