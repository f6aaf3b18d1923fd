"""benchmark/datasets/players.py: policies that ship."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import d4rl
import uwac
from benchmark.datasets import players
from benchmark.datasets.episodes import play
from benchmark.datasets.players import POLICIES, load_player

HANDS = ("pen", "hammer", "door", "relocate")


@pytest.mark.parametrize("name", sorted(file.stem for file in POLICIES.glob("*.npz")))
def test_shipped_policies(name, monkeypatch):
    monkeypatch.setattr(uwac, "DEVICE", "meta")  # as a GPU, which must not be used
    player = load_player(name, seed=0)
    envs = [d4rl.make(player.env_id) for _ in range(4)]
    returns = [episode["rewards"].sum() for episode in play(player.act, envs, range(4))]
    score = d4rl.normalized_score(player.env_id, np.mean(returns))
    assert player.env_id == name.split("-")[0]
    assert (40 if "expert" in name else 8) < score < 140
    assert ("DAPG" in player.about) == (player.env_id in HANDS)


def test_a_random_policy_is_its_seeds():
    obs = np.ones((2, 11))
    actions = []
    for seed in (1, 1, 2):
        player = load_player("hopper-random", seed)
        torch.manual_seed(0)
        actions.append(player.act(obs))
    assert player.env_id == "hopper" and (abs(actions[0]) < 1).all()
    assert (actions[0] == actions[1]).all() and (actions[0] != actions[2]).all()


@pytest.mark.parametrize("env_id, played", [
    ("door-human", "door"), ("door-human-longhorizon", "door-human-longhorizon")
])  # fmt: skip
def test_a_runs_episodes_are_as_long_as_in_training(env_id, played, monkeypatch):
    agent = SimpleNamespace(algorithm="bear", cpu=lambda: None)
    saved = {"args": {"env_id": env_id}, "data": {}, "updates": 1}
    monkeypatch.setattr(players, "load", lambda run: (None, agent, saved))
    assert players.of_run("run").env_id == played


def test_an_expert_of_the_dapg_release_by_hand():
    expert = np.load(POLICIES / "door-expert.npz")
    observations = np.random.default_rng(0).normal(size=(6, 39))
    player = load_player("door-expert", seed=0)
    torch.manual_seed(1)
    actions = player.act(observations)
    torch.manual_seed(1)
    noise = torch.randn(6, 28, dtype=torch.float32).numpy()
    for obs, action, one in zip(observations, actions, noise, strict=True):
        h = (obs - expert["in_shift"]) / (expert["in_scale"] + 1e-8)
        for layer in (0, 1):
            h = np.tanh(expert[f"w{layer}"] @ h + expert[f"b{layer}"])
        mean = (expert["w2"] @ h + expert["b2"]) * expert["out_scale"] + expert["out_shift"]
        expected = np.clip(mean + np.exp(expert["log_std"]) * one, -1, 1)
        np.testing.assert_allclose(action, expected, rtol=0, atol=1e-12)
    assert (abs(actions) == 1).any() and (abs(actions) < 1).any()
