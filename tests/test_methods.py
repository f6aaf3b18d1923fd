"""benchmark/methods.py: what each method's command trains, and what results are called."""

import pytest

from benchmark.methods import METHODS, SCRIPTS, as_today, label_of, method_of, script_of, usual_args

CHEAP = {"variance": "analytic"}
NO_SN = CHEAP | {"spectral_norm": False}
SN = CHEAP | {"spectral_norm": True}
# By the paper's sections 5.3 to 5.6: the script, and what is not its default on door-human, where
# UWAC has spectral norm.
PAPERS = {
    "bear": ("bear", {}),
    "uwac": ("uwac", {}),
    "bear+sn": ("weights", {"weighting": "none", "dropout": 0} | SN),
    "bear+dropout+sn": ("weights", {"weighting": "none", "dropout": 0.1} | SN),
    "uwac-std": ("weights", {"weighting": "std"}),
    "uwac-ensemble": ("ensembles", {"members": "ensemble"}),
    "uwac-rem": ("ensembles", {"members": "rem"}),
    "uwac-no-sn": ("uwac", NO_SN),
}


@pytest.mark.parametrize("method", PAPERS)
def test_a_command_trains_what_the_paper_calls_so(method):
    algorithm, changes = PAPERS[method]
    script = script_of(METHODS[method].command)
    assert script.Agent.algorithm == algorithm and script_of(SCRIPTS[algorithm]) is script
    usual = usual_args(SCRIPTS[algorithm], "door-human")
    assert usual_args(METHODS[method].command, "door-human") == usual | changes


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_own_arguments_are_recognized(method):
    """One line in METHODS is enough; its label is the name alone."""
    command = METHODS[method].command
    args = usual_args(command, "door-human")
    algorithm = script_of(command).Agent.algorithm
    assert method_of(algorithm, args) == method
    assert "," not in label_of(method, algorithm, args)


def test_methods_have_commands_labels_and_colours_of_their_own():
    commands, _, colours = zip(*METHODS.values())
    labels = []
    for method, (command, *_) in METHODS.items():
        args = usual_args(command, "door-human")
        labels.append(label_of(method, script_of(command).Agent.algorithm, args))
    for values in (commands, labels, colours):
        assert len(set(values)) == len(values)


OLD = {"weighting": "variance", "dropout": 0.1, "resume": None}
OF_BEAR = {"weighting": "none", "dropout": 0.0, "fixed_w": 0.01} | NO_SN


@pytest.mark.parametrize("label, algorithm, args", [
    ("BEAR", "bear", {"mmd_kernel": "gaussian"}),
    ("UWAC (mc) + SN", "uwac", {}),
    ("UWAC (mc)", "uwac", {"env_id": "hopper-medium"}),
    ("UWAC (mc), beta 2.5", "uwac", {"spectral_norm": False, "beta": 2.5}),
    ("UWAC + SN", "uwac", {"variance": "analytic"}),
    ("UWAC", "uwac", OLD | NO_SN),
    ("UWAC (std) + SN, beta 2.5", "uwac", OLD | {"weighting": "std", "beta": 2.5}),
    ("UWAC (std) + SN", "weights", {"weighting": "std"}),
    ("BEAR + SN", "uwac", OLD | {"weighting": "none", "dropout": 0.0, "variance": "analytic"}),
    ("BEAR", "weights", {"weighting": "none", "dropout": 0.0} | NO_SN),
    ("BEAR + dropout", "uwac", OLD | {"weighting": "none"} | NO_SN),
    ("BEAR + dropout + SN", "weights", {"weighting": "none", "variance": "analytic"}),
    ("UWAC (REM) + SN", "ensembles", {"members": "rem"}),
    ("UWAC (authors' code) + SN", "uwac_code", {"env_id": "hopper-medium"}),
    ("UWAC with w shuffled over states", "what_bounds_q", OLD | {"control": "shuffled"} | NO_SN),
    ("BEAR with Q over its mean", "what_bounds_q", OF_BEAR | {"control": "scaled-q"}),
    ("BEAR with w = 0.43 in the actor's loss", "weights",
     OF_BEAR | {"weighting": "fixed-w", "fixed_w": 0.43}),
    ("BEAR with w = 0.01 in the actor's loss + SN", "what_bounds_q",
     OF_BEAR | {"control": "fixed-w", "spectral_norm": True}),
    ("mine + SN, beta 2.5", "mine", {"beta": 2.5}),
])  # fmt: skip
def test_a_label_says_what_is_not_the_methods_default(label, algorithm, args):
    """Of today's results and of those of earlier versions alike."""
    usual = usual_args(SCRIPTS.get(algorithm, "uwac.py"), args.get("env_id", "door-human"))
    algorithm, args = as_today({"algorithm": algorithm, "args": usual | args})
    assert label_of(method_of(algorithm, args), algorithm, args) == label
