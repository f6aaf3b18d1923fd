"""The updates are the authors', number for number, and the comparison sees small changes."""

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
SENSITIVE = [(bear, STRONG), (uwac, STRONG), (uwac, UWAC)]
CHANGES = [
    {"tau": 0.006},
    {"lmbda": 0.74},
    {"mmd_sigma": 10.0},
    {"mmd_kernel": "laplacian"},
    {"mmd_threshold": 0.05},
    {"warmup_steps": 7},
    {"own_target_actor": True},
]


def test_bear_is_the_authors(script):
    for path in (BEAR, STRONG):
        differences = lockstep.compare(script, path)
        assert METRICS < set(differences)
        assert lockstep.agree(differences), differences


def test_uwac_is_the_authors():
    differences = lockstep.compare(uwac, UWAC)
    assert METRICS | {"variance", "weight"} < set(differences)
    assert lockstep.agree(differences), differences


@pytest.mark.parametrize("script, path", SENSITIVE)
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_another_update_is_seen(script, path, change):
    assert not lockstep.agree(lockstep.compare(script, path, **change))


@pytest.mark.parametrize("change", [{"weighting": "none"}, {"beta": 0.51}], ids=str)
def test_another_weight_is_seen(change):
    assert not lockstep.agree(lockstep.compare(uwac, UWAC, **change))


@pytest.mark.parametrize("script, path", SENSITIVE)
def test_another_limit_of_log_std_is_seen(script, path, monkeypatch):
    def forward(self, obs):
        mean, log_std = script.MLP.forward(self, obs).chunk(2, dim=-1)
        return mean, log_std.clamp(-20, 2)

    monkeypatch.setattr(script.Actor, "forward", forward)
    assert lockstep.agree(lockstep.compare(script, BEAR))  # where log-std stays near 0
    assert not lockstep.agree(lockstep.compare(script, path))
