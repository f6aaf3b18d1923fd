"""benchmark/measure/true_q.py: discounted returns of data and of policies."""

import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import rows_in, short, write_hdf5, zeroed

import d4rl
import uwac
from benchmark import store
from benchmark.measure import true_q


@pytest.mark.parametrize("shape", [(24,), (24, 1)])
def test_value_of_data_by_hand(shape, points, capsys):
    """An episode of two steps that is terminal, one of 21 that time ends, and one without an end,
    which is left out."""
    rewards = np.array([5, 7, *range(21), 99.0])
    flags = np.zeros((2, 24), bool)
    flags[0, 1] = flags[1, 22] = True
    arrays = {"rewards": rewards, "terminals": flags[0], "timeouts": flags[1]}
    write_hdf5("points.hdf5", {name: array.reshape(shape) for name, array in arrays.items()})
    ended, cut = true_q.of_data("points.hdf5")
    assert ended["in_episode"] == pytest.approx([5 + 0.99 * 7, 7])
    assert ended["continued"] == pytest.approx(ended["in_episode"])
    assert cut["in_episode"][-2:] == pytest.approx([19 + 0.99 * 20, 20])
    assert cut["continued"][-1] == pytest.approx(20 + 0.99 * 10.5 / 0.01)  # 1 to 20
    assert len(cut["in_episode"]) == 21
    constant = cut["constant"][0]  # such a critic's mean target is itself
    assert constant == pytest.approx(rewards.mean() + 0.99 * constant * 23 / 24)
    assert ended["bound"] == pytest.approx([9900, 9900])  # 99 a step for ever
    assert store.bound_of(-1, 0.9) == 0  # of what ends, which may be worth more than -10
    true_q.main(("points.hdf5",))
    (kept,) = json.loads(Path("runs/true-q/points.json").read_text())
    (row,) = rows_in(capsys.readouterr().out, "what")
    words = {"what": "points.hdf5", "episodes": "2", "bound": "9,900.0"}
    assert row == {name: f"{kept[name]:,.1f}" for name in kept if name not in words} | words


def test_what_was_found_of_another_file_of_the_name_stays(points, refused):
    Path("one").mkdir()
    ends = {"terminals": np.arange(50) % 25 == 24, "timeouts": np.zeros(50)}
    write_hdf5("one/points.hdf5", points | ends)
    true_q.main(("one/points.hdf5", "one/points.hdf5"))
    Path("one").rename("two")
    problem = "points.json: of one/points.hdf5, not two/points.hdf5; move it away"
    assert refused("two/points.hdf5", true_q).endswith(problem)


def played(monkeypatch, ends=None):
    """Episodes of a reward of 1 a step, for as long as an environment lets them, or terminal."""
    asked = []

    def play(act, envs, seeds):
        asked.extend(seeds)
        n = ends or d4rl.step_limit_of(envs[0])
        arrays = {"rewards": np.ones(n), "terminals": np.arange(n) == (ends or 0) - 1}
        return [arrays | {"observations": np.ones((n, 3)), "actions": np.ones((n, 2))}] * len(envs)

    monkeypatch.setattr(true_q, "play", play)
    return asked


def test_value_of_a_policy_beyond_its_limit(monkeypatch):
    monkeypatch.setattr(true_q, "load_player", lambda word, seed: Mock(env_id="Point-v0"))
    seeds = played(monkeypatch)
    episodes = true_q.of_policy("any")
    first = [episodes[0][name][0] for name in ("in_episode", "continued", "played")]
    assert first == pytest.approx([100 * (1 - 0.99**n) for n in (5, 1e9, 605)])
    assert len(episodes) == 48 and seeds == [*range(48)]
    assert {len(array) for array in episodes[0].values()} == {5}


@pytest.mark.parametrize("ends, continued", [(3, 3), (5, 5), (7, 1e9)])
def test_only_an_end_within_the_limit_is_terminal(ends, continued, monkeypatch):
    monkeypatch.setattr(true_q, "load_player", lambda word, seed: Mock(env_id="Point-v0"))
    played(monkeypatch, ends)
    one, *_ = true_q.of_policy("any")
    found = [one[name][0] for name in ("in_episode", "continued", "played")]
    wanted = [100 * (1 - 0.99**n) for n in (min(ends, 5), continued, ends)]
    assert found == pytest.approx(wanted)


def test_a_run_has_its_own_gamma_and_a_file(points, monkeypatch, capsys):
    """Of five steps and, as 0.5^9 < 0.0024, nine beyond."""
    uwac.main(short(uwac, gamma=0.5))
    played(monkeypatch)
    true_q.main(policy=("run",))
    (row,) = json.loads(Path("run/true-q-6.json").read_text())
    assert (row["what"], row["updates"], row["episodes"]) == ("run", 6, 48)
    left = np.arange(5, 0, -1)
    returns = [2 * (1 - 0.5**n) for n in (left, np.full(5, 1e9), left + 9)]
    for name, values in zip(("in_episode", "continued", "played"), returns):
        assert row[name] == pytest.approx(values.mean())
        assert row[f"{name}_std"] == pytest.approx(values.std())
        assert row[f"{name}_error"] == pytest.approx(0)
    agent, _ = uwac.load_checkpoint("run")
    q = agent.critic(torch.ones(1, 1, 3), torch.full((1, 1, 2), 0.5))  # actions go to 2
    assert row["q"] == pytest.approx(q.min().item())
    assert f"{row['in_episode']:.1f}" in capsys.readouterr().out
    agent.args.gamma = 1.0
    with pytest.raises(ValueError, match="^run: with --gamma 1 returns have no end"):
        true_q.of_policy("run", agent)


def test_the_same_run_has_the_same_returns(points):
    uwac.main(short(uwac, gamma=0.5))
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        true_q.main(policy=("run",))
        found.append(Path("run/true-q-6.json").read_text())
    assert found[0] == found[1]


def test_errors_are_over_episodes_and_the_rest_over_steps():
    episodes = [{"q": np.array([1.0, 3]), "bound": np.full(2, 9.0)}]
    episodes.append({"q": np.array([5.0, 5, 5, 9]), "bound": np.full(4, 9.0)})
    row = true_q.summary(episodes)
    assert row.pop("q") == pytest.approx(28 / 6)
    assert row.pop("q_std") == pytest.approx(np.std([1, 3, 5, 5, 5, 9]))
    assert row.pop("q_error") == pytest.approx(2)  # of the means 2 and 6
    assert row == {"episodes": 2, "bound": 9}


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
