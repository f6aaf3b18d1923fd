"""The scripts' updates are the authors', number for number, and what they were; UWAC is BEAR and
what Algorithm 1 colours."""

import ast
import json
from dataclasses import fields

import lockstep
import pytest
from conftest import ROOT, short

import bear
import uwac

GOLDEN = ROOT / "tests" / "golden"
BEAR = GOLDEN / "bear_lockstep.npz"
STRONG = GOLDEN / "bear_lockstep_strong.npz"  # larger weights: log-std meets its limits, Q is not 0
UWAC = GOLDEN / "uwac_lockstep.npz"
METRICS = {"vae_loss", "critic_loss", "actor_loss", "alpha", "mmd", "target_q", "policy_q"}
COLOURED = {"Args", "MLP", "Critic", "Agent", "update", "main", "train"}
# Another value of each argument that shapes training, so close that no greater change can hide.
CHANGES = {"gamma": 0.98, "tau": 0.006, "lmbda": 0.74, "warmup_steps": 7, "mmd_threshold": 0.05}
CHANGES |= {"mmd_kernel": "laplacian", "mmd_sigma": 10.0, "actor_lr": 1.1e-4, "critic_lr": 3.1e-4}
CHANGES |= {"vae_lr": 3.1e-4, "dual_lr": 1.1e-3}
OF_UWAC = {"beta": 0.51, "dropout": 0.11, "weighting": "none", "weight_clip": 0.9}
# Without these the shapes of random numbers would be others; or they are in other tests.
REST = {"batch_size", "num_candidates", "num_mmd_samples", "passes", "num_seeds"}
REST |= {"variance", "spectral_norm", "env_id", "seed", "matmul_precision"}
REST |= {"cuda_graph", "run_dir", "resume"}  # these shape no number


@pytest.mark.parametrize("script, paths", [
    (bear, [BEAR]), (bear, [STRONG, BEAR, BEAR]), (uwac, [STRONG, BEAR, BEAR]), (uwac, [UWAC] * 2)
])  # fmt: skip
def test_updates_are_the_authors(script, paths):
    """Also those of several seeds side by side, each in runs of the authors' of its own."""
    differences = lockstep.compare(script, *paths)
    assert METRICS < set(differences)
    assert UWAC not in paths or {"variance", "weight"} < set(differences)
    assert lockstep.agree(differences), differences


def test_every_argument_that_shapes_training_does():
    names = {field.name for field in fields(uwac.Args)}
    assert names - uwac.RESUMABLE == {*CHANGES, *OF_UWAC, *REST}
    for script, path, changes in ((bear, STRONG, CHANGES), (uwac, UWAC, CHANGES | OF_UWAC)):
        for name, value in changes.items():
            assert not lockstep.agree(lockstep.compare(script, path, **{name: value})), name


def definitions(script):
    """Every statement at the top level of a script, with its comments, by its first line."""
    source = (ROOT / script).read_text()
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body[1:]:  # without the docstring
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        name = getattr(node, "name", lines[first - 1])
        found[name] = lines[first - 1 : node.end_lineno]
    return found


def test_bear_stands_in_uwac_letter_for_letter():
    """So most tests need to run for one of them."""
    ours, theirs = definitions("bear.py"), definitions("uwac.py")
    assert {name for name in ours if ours[name] != theirs.get(name)} == COLOURED
    for name in ("main", "train"):  # UWAC adds lines and changes none
        rest = iter(theirs[name])
        assert all(line in rest for line in ours[name])


def test_uwac_with_its_parts_off_is_bear(points):
    of_bear = bear.main(short(bear, run_dir="bear"))["history"]
    of_uwac = uwac.main(short(uwac, run_dir="uwac", **lockstep.UWAC_AS_BEAR))["history"]
    for row, same in zip(of_bear, of_uwac, strict=True):
        del row["seconds"]
        assert {name: same[name] for name in row} == row


def test_metrics_are_those_of_earlier_versions(script, tmp_path):
    """After 30 updates on door-demo, of which 10 are no warm-up: recorded at commit 443e238, on a
    CPU of which another one's rounding differs."""
    recorded = json.loads((GOLDEN / "histories.json").read_text())
    settings = {"total_steps": 30, "warmup_steps": 20, "eval_episodes": 1, "eval_candidates": 1}
    settings |= {"variance": "analytic"} if script is uwac else {}
    args = script.Args("door-demo", run_dir=str(tmp_path / "run"), **settings)
    (row,) = script.main(args)["history"]
    found = {name: row[name][0] for name in recorded[script.__name__]}
    assert found == pytest.approx(recorded[script.__name__], rel=1e-4)
