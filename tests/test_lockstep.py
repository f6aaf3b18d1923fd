"""The updates are the authors', number for number, and the comparison sees small changes."""

from dataclasses import fields
from pathlib import Path

import lockstep
import pytest

import bear
import uwac

GOLDEN = Path(__file__).parent / "golden"
BEAR = GOLDEN / "bear_lockstep.npz"
STRONG = GOLDEN / "bear_lockstep_strong.npz"  # larger weights: log-std meets its limits, Q is not 0
UWAC = GOLDEN / "uwac_lockstep.npz"
METRICS = {"vae_loss", "critic_loss", "actor_loss", "alpha", "mmd", "target_q", "policy_q"}
# Another value of each argument that shapes training, so close that no greater change can hide.
CHANGES = {"gamma": 0.98, "tau": 0.006, "lmbda": 0.74, "warmup_steps": 7, "mmd_threshold": 0.05}
CHANGES |= {"mmd_kernel": "laplacian", "mmd_sigma": 10.0, "actor_lr": 1.1e-4, "critic_lr": 3.1e-4}
CHANGES |= {"vae_lr": 3.1e-4, "dual_lr": 1.1e-3}
OF_UWAC = {"beta": 0.51, "dropout": 0.11, "weighting": "none", "weight_clip": 0.9}
# Without these the shapes of random numbers would be others; or they are in other tests.
REST = {"batch_size", "num_candidates", "num_mmd_samples", "passes", "num_seeds"}
REST |= {"variance", "spectral_norm", "q_noise", "env_id", "seed", "matmul_precision"}


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
    assert names - uwac.MAY_CHANGE == {*CHANGES, *OF_UWAC, *REST}
    for script, path, changes in ((bear, STRONG, CHANGES), (uwac, UWAC, CHANGES | OF_UWAC)):
        for name, value in changes.items():
            assert not lockstep.agree(lockstep.compare(script, path, **{name: value})), name
