"""Networks, their initial weights, MMD, and actions in the environment's units. (test_lockstep.py:
their forward passes.)"""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.testing import assert_close

import uwac


def assert_uniform(x, limit):
    """Numbers from -limit to limit; their mean magnitude to five of its standard errors."""
    assert 0 < x.abs().max() <= limit
    assert x.abs().mean().item() == pytest.approx(limit / 2, rel=3 / x.numel() ** 0.5)


def assert_initial(weights, last_limit):
    """As the authors draw them (as rlkit does, on which their code stands)."""
    w0, b0, w1, b1, w2, b2 = weights
    assert_uniform(w0, w0.shape[-1] ** -0.5)  # of a layer's outputs, not of its inputs
    assert_uniform(w1, w1.shape[-1] ** -0.5)
    assert (b0 == 0.1).all() and (b1 == 0.1).all()
    assert_uniform(w2, last_limit)
    assert_uniform(b2, last_limit)


def test_initial_networks(script):
    agent = script.Agent(script.Args("hopper-medium", num_seeds=2), obs_dim=11, action_dim=3)
    assert_initial(agent.actor.parameters(), 0.001)
    assert_initial(agent.critic.parameters(), 0.003)
    for network in (agent.vae.encoder, agent.vae.decoder):
        for layer in network.layers:  # as torch.nn.Linear
            assert_uniform(layer.weight, layer.weight.shape[-2] ** -0.5)
            assert_uniform(layer.bias, layer.weight.shape[-2] ** -0.5)
    assert_close(agent.log_alpha.data, torch.zeros(2))
    pairs = ((agent.target_critic, agent.critic), (agent.target_actor, agent.actor))
    for target, network in pairs:
        for copy, original in zip(target.parameters(), network.parameters(), strict=True):
            assert copy.equal(original) and copy is not original


def test_log_std_of_the_vae_stays_from_minus_4_to_15():
    """Seen in the loss, where the decoder gives 0: half the KL of such a standard deviation."""
    vae = uwac.BehaviorVAE(1, obs_dim=5, action_dim=2)
    for parameter in vae.parameters():
        torch.nn.init.zeros_(parameter)
    for bias, log_std in ((-1e3, -4.0), (1e3, 15.0)):
        vae.encoder.layers[2].bias.data[..., vae.latent_dim :] = bias
        kl = -0.5 * (1 + 2 * log_std - math.exp(2 * log_std))
        loss = vae.loss(torch.randn(1, 6, 5), torch.zeros(1, 6, 2))
        assert loss.item() == pytest.approx(0.5 * kl)


def test_spectral_norm():
    """Each layer's largest singular value is 1 at the start, and after power iterations on other
    weights; one iteration is that of Miyato's algorithm 1; the gradient is that of W / sigma."""
    critic = uwac.Critic(1, obs_dim=39, action_dim=28, spectral_norm=True).double()
    for layer in critic.layers:
        one = torch.ones(2, 1, dtype=torch.double)
        assert_close(torch.linalg.matrix_norm(layer.weight, 2), one)
        weight = layer.parametrizations.weight.original
        weight.data = torch.randn_like(weight) + 0.2  # a largest value far from the next one
        u = layer.parametrizations.weight[0].u
        v = (weight.mT @ u).detach()
        expected = weight @ v / (weight @ v).norm(dim=-2, keepdim=True)
        critic.power_iteration()
        assert_close(u, expected)
        assert_close(layer.weight, weight / (weight.mT @ expected).norm(dim=-2, keepdim=True))
        for _ in range(30):
            critic.power_iteration()
        assert_close(torch.linalg.matrix_norm(layer.weight, 2), one)
        loss = torch.randn_like(weight)
        exact = weight / torch.linalg.matrix_norm(weight, 2)[..., None, None]
        (gradient,) = torch.autograd.grad((layer.weight * loss).sum(), weight)
        assert_close(gradient, torch.autograd.grad((exact * loss).sum(), weight)[0])


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_mmd(authors, kernel):
    """That of the authors' code; of equal samples with a finite gradient; exact also far from the
    origin, where distances by matrix products, cdist's way above 25 samples, are noise."""
    for sigma in (10, 20):
        distance = uwac.mmd(authors["mmd_x"], authors["mmd_y"], kernel, sigma)
        assert_close(distance, authors[f"mmd_{kernel}_{sigma}"], atol=1e-6, rtol=1e-5)
    x = torch.randn(2, 4, 3, requires_grad=True)
    value = uwac.mmd(x, x.detach().clone(), kernel, 20.0)
    value.sum().backward()
    assert_close(value, torch.full((2,), 1e-3), atol=5e-4, rtol=0)
    assert x.grad.isfinite().all()
    x, y = 3000 + torch.randn(2, 5, 40, 3)
    exact = uwac.mmd(x.double(), y.double(), kernel, 20.0).float()
    assert_close(uwac.mmd(x, y, kernel, 20.0), exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("low, high, dtype", [
    (np.float32(-0.9), np.float32(0.3), np.float32),  # in float32 0.3 becomes 0.30000004
    (-2.0, 7.0, np.float64),
    (-100, 100, np.int8),
    (0, 255, np.uint8),
])  # fmt: skip
def test_actions_are_within_the_bounds_and_of_the_type(low, high, dtype):
    space = gym.spaces.Box(low, high, (1,), dtype)
    agent = uwac.Agent(uwac.Args("Own-v0"), 3, 1, space.low, space.high)
    inside = torch.linspace(-1, 1, 100)[:, None]
    outside = agent.to_env(inside)
    assert all(space.contains(action) for action in outside)
    assert (outside[0], outside[-1]) == (space.low, space.high)
    if np.issubdtype(dtype, np.integer):  # there and back
        outside = np.arange(low, high + 1, dtype=dtype)[:, None]
        inside = torch.linspace(-1, 1, len(outside))[:, None]
        assert (agent.to_env(inside) == outside).all()
    assert_close(agent.from_env(outside), inside)
    agent.actor.layers[2].bias.data[:] = 9.0  # tanh(9) is 1 in float32
    for deterministic in (True, False):
        action = agent.act(np.zeros(3), 5, deterministic)
        assert space.contains(action[0]) and action.dtype == dtype


def test_act_takes_many_observations_in_pieces(script, monkeypatch):
    """Of one state, of states that all seeds share, and of each seed's own."""
    low, high = np.float32([-2, 0]), np.float32([2, 0.4])
    agent = script.Agent(script.Args("Own-v0", num_seeds=2), 5, 2, low, high)
    agent.actor.layers[2].weight.data *= 1000
    obs = np.random.default_rng(0).normal(size=(2, 2000, 5)).astype(np.float32)
    mean, _ = agent.actor(torch.as_tensor(obs))
    expected = mean.tanh().numpy(force=True) * [2, 0.2] + [0, 0.2]
    assert np.ptp(expected[..., 0]) > 1 and np.ptp(expected[..., 1]) > 0.1
    for given, wanted in ((obs, expected), (obs[0, 7], expected[:, 7]), (obs[0], expected)):
        found = agent.act(given, deterministic=True)
        np.testing.assert_allclose(found[0], wanted[0], atol=1e-6)
        assert found.shape == wanted.shape
    rows, whole = [], agent.critic.forward
    monkeypatch.setattr(agent.critic, "forward", lambda o, a: rows.append(len(o[0])) or whole(o, a))
    assert agent.act(obs, num=4).shape == (2, 2000, 2)
    assert sum(rows) == 2000 and max(rows) < 1000
