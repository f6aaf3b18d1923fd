"""benchmark/measure/true_q.py: discounted returns of data and of policies."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import short, write_hdf5, zeroed

import d4rl
import uwac
from benchmark.measure import true_q


def test_value_of_data_by_hand(points):
    """An episode of two steps that is terminal, one of 21 that time ends, and one without an end,
    which is left out."""
    rewards = np.array([5, 7, *range(21), 99.0])
    flags = np.zeros((2, 24), bool)
    flags[0, 1] = flags[1, 22] = True
    write_hdf5("points.hdf5", {"rewards": rewards, "terminals": flags[0], "timeouts": flags[1]})
    ended, cut = true_q.of_data("points.hdf5")
    assert ended["in_episode"] == pytest.approx([5 + 0.99 * 7, 7])
    assert ended["continued"] == pytest.approx(ended["in_episode"])
    assert cut["in_episode"][-2:] == pytest.approx([19 + 0.99 * 20, 20])
    assert cut["continued"][-1] == pytest.approx(20 + 0.99 * 10.5 / 0.01)  # 1 to 20
    assert len(cut["in_episode"]) == 21
    constant = cut["constant"][0]  # such a critic's mean target is itself
    assert constant == pytest.approx(rewards.mean() + 0.99 * constant * 23 / 24)
    assert ended["bound"] == pytest.approx([9900, 9900])  # 99 a step for ever


def test_value_of_a_policy_beyond_its_limit(points, monkeypatch):
    """A reward of 1 a step, for as long as an environment lets it play."""
    player = Mock(env_id="Point-v0")
    monkeypatch.setattr(true_q, "load_player", lambda word, seed: player)

    def play(act, envs, seeds):
        steps = true_q.d4rl.step_limit_of(envs[0])
        return [{"rewards": np.ones(steps), "terminals": np.zeros(steps, bool)}] * len(envs)

    monkeypatch.setattr(true_q, "play", play)
    episodes = true_q.of_policy("any")
    limit = d4rl.step_limit_of(d4rl.make("Point-v0"))
    first = [episodes[0][name][0] for name in ("in_episode", "continued", "played")]
    wanted = [100 * (1 - 0.99**n) for n in (limit, 1e9, limit + true_q.BEYOND)]
    assert first == pytest.approx(wanted) and len(episodes) == true_q.EPISODES
    assert {len(array) for array in episodes[0].values()} == {limit}


def test_q_of_an_episode_in_the_environments_units():
    """Point's actions go to 2, a critic's to 1; the smaller of twins that give 3 times and once the
    first number of an action, of the first of two seeds."""
    agent = uwac.Agent(short(uwac, num_seeds=2), 3, 2)
    zeroed(agent.critic)
    with torch.no_grad():
        agent.critic.layers[0].weight[..., 3, 0] = 1
        agent.critic.layers[1].weight[..., 0, 0] = 1
        agent.critic.layers[2].weight[..., 0, 0] = torch.tensor([[3.0, 9], [1, 9]])
    actions = np.array([[0.5, 2], [2, 0]])
    episode = {"observations": np.ones((2, 3)), "actions": actions}
    assert true_q.q_of(agent, d4rl.make("Point-v0"), episode) == pytest.approx([0.25, 1])
