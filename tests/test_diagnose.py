"""benchmark/diagnose.py on networks whose numbers are known."""

from pathlib import Path

import diagnose
import h5py
import numpy as np
import pytest
import torch
from conftest import short

import uwac


def test_known_networks(points, monkeypatch):
    """Actor and VAE at 0.5 and 1.5 whatever the state: MMD by hand, and all of it the gap's. The
    data's actions are 0, where the critic has no variance: shuffled, they are themselves."""
    with h5py.File("points.hdf5", "a") as file:
        file["actions"][:] = 0
    uwac.main(short(uwac, variance="analytic"))
    agent, saved = uwac.load_checkpoint("run")
    with torch.no_grad():
        for network in (agent.actor, agent.vae.decoder, agent.critic):
            for parameter in network.parameters():
                parameter.zero_()
        agent.actor.layers[2].bias[..., :2] = 0.5
        agent.actor.layers[2].bias[..., 2:] = -9  # limited to -5
        agent.vae.decoder.layers[2].bias.fill_(1.5)
        agent.critic.layers[0].weight[..., 3:, :2] = torch.eye(2)
        agent.critic.layers[1].weight[..., :2, :2] = torch.eye(2)
        agent.critic.layers[2].weight[..., :2, :] = 1
    monkeypatch.setattr(diagnose, "load", lambda run: ("uwac", agent, saved))
    found = {name: values[0] for name, values in diagnose.diagnose(Path("run")).items()}
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
    share = diagnose.q_share("uwac", agent, data)
    assert all(torch.equal(value, before[name]) for name, value in agent.state_dict().items())
    with torch.no_grad():
        agent.log_alpha[0] += np.log(2)
    half = diagnose.q_share("uwac", agent, data)
    ratio, halved = (of[0].item() / (1 - of[0].item()) for of in (share, half))
    assert halved == pytest.approx(ratio / 2, rel=1e-3)
    assert half[1] == share[1]
