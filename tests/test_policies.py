"""benchmark.policies.py: who plays."""

import numpy as np
import pytest
import torch
from conftest import short, zeroed

import uwac
from benchmark.lib import policies


def test_policies_of_known_networks(points, monkeypatch):
    """The actor's mean is 0.5 with a std of exp(-2), the VAE's action 50, all before the tanh."""
    monkeypatch.setattr(policies, "AT_ONCE", 7)
    agent = uwac.Agent(short(uwac, num_seeds=2), 3, 2)
    zeroed(agent.actor, agent.vae.decoder)
    with torch.no_grad():
        agent.actor.layers[2].bias[:] = torch.tensor([0.5, 0.5, -2, -2])
        agent.vae.decoder.layers[2].bias.fill_(50)
    obs = np.zeros((2, 40, 3))
    mean, vae, sample = (policies.act(agent, who, obs, 1) for who in ("mean", "vae", "sample"))
    assert mean == pytest.approx(np.full((2, 40, 2), np.tanh(0.5)))
    assert (vae == 1).all()
    samples = np.arctanh(sample)
    assert (samples.mean(), samples.std()) == pytest.approx((0.5, np.exp(-2)), rel=0.2)
    assert len(np.unique(samples)) == 160  # no piece twice
