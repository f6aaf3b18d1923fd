"""What recorded numbers (test_lockstep.py, test_reduction.py) do not show of networks and MMD; and
actions in the environment's units."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.testing import assert_close

import uwac


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
    critic = uwac.Critic(2, obs_dim=39, action_dim=28, spectral_norm=True).double()
    one = torch.ones(2, 2, dtype=torch.double)
    for layer in critic.layers:
        assert_close(torch.linalg.matrix_norm(layer.weight, 2), one, rtol=1e-6, atol=0)
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


@pytest.mark.parametrize("kernel, power", [("gaussian", 2), ("laplacian", 1)])
def test_mmd(kernel, power):
    """By hand, far from the origin, where distances by matrix products, cdist's way above 25
    samples, are noise; and of equal samples, with a finite gradient."""

    def mean_kernel(a, b):
        distance = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs().pow(power).sum(-1)
        return torch.exp(-distance / (2 * 7.0)).mean((-1, -2))

    x, y = 3000 + torch.randn(2, 5, 40, 3)
    squared = mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)
    assert_close(uwac.mmd(x, y, kernel, 7.0), (squared + 1e-6).sqrt(), rtol=1e-4, atol=0)
    x = torch.zeros(2, 4, 3, requires_grad=True)
    equal = uwac.mmd(x, x.detach().clone(), kernel, 20.0)
    equal.sum().backward()
    assert_close(equal.detach(), torch.full((2,), 1e-3))
    assert x.grad.isfinite().all()


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
