"""benchmark/measure/diagnose.py: what is measured of known networks."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import short, write_hdf5, zeroed

import uwac
from benchmark.measure import diagnose


def test_known_networks(points, monkeypatch):
    """The critic's variance grows with the action, from 0 at the data's, which are all 0."""
    write_hdf5("points.hdf5", points | {"actions": np.zeros((50, 2))})
    uwac.main(short(uwac, variance="analytic", num_seeds=2))
    agent, saved = uwac.load_checkpoint("run")
    zeroed(agent.actor, agent.vae.decoder, agent.critic)
    with torch.no_grad():
        agent.actor.layers[2].bias[..., :2] = 0.5
        agent.actor.layers[2].bias[..., 2:] = -9  # limited to -5
        agent.vae.decoder.layers[2].bias.fill_(1.5)
        agent.critic.layers[0].weight[..., 3:, :2] = torch.eye(2)
        agent.critic.layers[1].weight[..., :2, :2] = torch.eye(2)
        agent.critic.layers[2].weight[..., :2, :] = 1
    monkeypatch.setattr(diagnose, "load", lambda run: (uwac, agent, saved))
    monkeypatch.setattr(diagnose, "FOR_MEANS", 200)
    both = diagnose.diagnose(Path("run"))
    assert json.loads(Path("run/diagnosis-6.json").read_text()) == both
    assert Path("run/variance-6.png").exists()
    assert len(both["mmd, 4"]) == 2
    found = {name: values[0] for name, values in both.items()}
    assert found["gap"] == found["gap_saturated"] == 1 == found["saturated"]
    for num in (4, 10, 100):
        assert found[f"mmd, {num}"] == pytest.approx((2 - 2 * np.exp(-2 / 40)) ** 0.5, rel=1e-3)
        assert found[f"mmd_of_vae, {num}"] == pytest.approx(1e-3)  # the root of 1e-6
        assert found[f"mmd_centred, {num}"] < 0.005
    assert found["actor_std"] == pytest.approx(np.exp(-5)) and found["vae_std"] == 0
    assert found["actor_error"] == pytest.approx(np.tanh(0.5))
    assert found["vae_error"] == pytest.approx(np.tanh(1.5))
    assert found["auroc_shuffled"] == 0.5
    assert found["auroc_uniform"] == pytest.approx(7 / 8, abs=0.1)  # a quarter has no variance
    assert found["auroc_action_norm"] == 1  # a random action is never shorter than 0
    assert found["auroc_nearest"] == 1
    untrained = both["auroc_untrained"]
    assert len(untrained) == 10 and max(untrained) < 0.75 and np.std(untrained) > 0.01


def test_the_floor_of_mmd_is_of_samples_of_their_own(monkeypatch):
    agent = uwac.Agent(short(uwac), 3, 2)
    with torch.no_grad():
        agent.vae.decoder.layers[2].weight.mul_(30)  # samples that differ
        found = diagnose.constraint(agent, torch.randn(1, 20, 3))
    floors = [found[f"mmd_of_vae, {num}"].item() for num in (4, 10, 100)]
    assert floors == sorted(floors, reverse=True) and floors[2] > 0.01


def test_states_are_drawn_from_all_of_the_data(points, monkeypatch):
    n = 3_000
    arrays = {"observations": np.arange(n)[:, None].repeat(3, axis=1) / n}
    arrays["actions"] = np.repeat(np.linspace(-1, 1, n)[:, None], 2, axis=1)
    write_hdf5("points.hdf5", arrays | dict.fromkeys(("rewards", "terminals"), np.zeros(n)))
    uwac.main(short(uwac, num_seeds=2))
    seen = []
    monkeypatch.setattr(diagnose, "errors", lambda agent, *arrays: seen.extend(arrays) or {})
    monkeypatch.setattr(diagnose, "constraint", lambda agent, obs: {})
    monkeypatch.setattr(diagnose, "WITH_VARIANCE", ())
    diagnose.diagnose(Path("run"))
    state, action = (array[1, :, 0] for array in seen)
    assert len(state.unique()) == 1_000
    assert 0.4 < state.mean() < 0.6 and (state.diff() < 0).any()
    halves = state - 0.5  # of the data's actions, as the environment's go to 2
    torch.testing.assert_close(action, halves, atol=1e-3, rtol=0)


def test_distance_to_the_nearest_row_but_the_own(monkeypatch):
    """In standard deviations, across pieces of the data; a dimension that never changes is 0."""
    monkeypatch.setattr(diagnose, "AT_ONCE", 2)
    data = torch.tensor([[0.0, 0, 7], [3, 0, 7], [0, 40, 7], [9, 40, 7]])
    units = data.std(0)
    rows = torch.tensor([3, 0])
    points = torch.stack([data[3], torch.tensor([2.9, 0.0, 7.0])])
    wanted = [9 / units[0], 0.1 / units[0]]
    torch.testing.assert_close(diagnose.nearest(points, rows, data), torch.stack(wanted))


def test_variances_of_several_actions_have_the_same_masks(monkeypatch):
    agent = uwac.Agent(short(uwac, num_seeds=2, variance="mc"), 3, 2)
    obs, action = torch.rand(20, 3), torch.rand(20, 2)
    one, same, other = diagnose.variances(agent, obs, action, action, -action)
    assert one.shape == (2, 20) and torch.equal(one, same)
    assert not torch.equal(one, other) and not torch.equal(one[0], one[1])


def test_weights(monkeypatch):
    """Var[Q] is 1 or 4 in half of the states each, with w = 0.1 / Var, and Q falls with it."""
    agent = uwac.Agent(short(uwac, beta=0.1), 3, 3)
    variance = torch.tensor([1.0, 4.0]).repeat(200)[None]
    q = torch.stack([3 / variance, 5 + variance])
    monkeypatch.setattr(agent.critic, "forward", lambda obs, action: q)
    monkeypatch.setattr(agent, "uncertainty", lambda critic, obs, action: variance)
    found = diagnose.weights(agent, torch.rand(1, 400, 3))
    assert found["variance_spread"].item() == pytest.approx(1.5 / 2.5, rel=0.01)
    assert found["weight_spread"].item() == pytest.approx(0.375 / 0.625, rel=0.01)
    assert found["equal_weights"].item() == pytest.approx(2.5 * 0.625)
    assert found["rank_with_q2"].item() == pytest.approx(-1)


def test_share_of_q():
    """Twice alpha halves Q's part over MMD's; the other seed and the agent stay as they are."""
    agent = uwac.Agent(short(uwac, num_seeds=2, warmup_steps=1_000), 3, 2)
    data = [torch.randn(50, *shape) for shape in ((3,), (2,), (), (3,), ())]
    with torch.no_grad():
        agent.log_alpha.fill_(-5)  # so that neither part is next to nothing
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    share = diagnose.q_share(uwac, agent, data)
    assert all(torch.equal(value, before[name]) for name, value in agent.state_dict().items())
    with torch.no_grad():
        agent.log_alpha[0] += np.log(2)
    half = diagnose.q_share(uwac, agent, data)
    ratio, halved = (of[0].item() / (1 - of[0].item()) for of in (share, half))
    assert ratio > 0.01 and halved == pytest.approx(ratio / 2, rel=1e-3)
    assert half[1] == share[1]
