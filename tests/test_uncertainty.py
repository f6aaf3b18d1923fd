"""The two estimates of Var[Q] under dropout, and what is made of them."""

import math

import pytest
import speed
import torch
from torch.testing import assert_close

import uwac


def critic_and_pairs():
    """Random critics of two seeds, with larger weights than untrained ones', and 32 states and
    actions of each."""
    critic = uwac.Critic(2, obs_dim=39, action_dim=28)
    for layer in critic.layers:
        bound = layer.weight.shape[-2] ** -0.5
        layer.weight.data.uniform_(-bound, bound)
    return critic, torch.randn(2, 32, 39), torch.rand(2, 32, 28) * 2 - 1


@pytest.mark.parametrize("p", [0.1, 0.9])
@pytest.mark.parametrize("as_on_a_gpu", [False, True])
def test_mc_is_the_variance_of_plain_passes(p, as_on_a_gpu, monkeypatch):
    """With a mask of its own for each layer, critic and seed, and the same one for all rows."""
    critic, obs, action = critic_and_pairs()
    torch.manual_seed(3)
    expected = speed.plain_uncertainty(critic, obs, action, uwac.Args(dropout=p, passes=7))
    monkeypatch.setattr(torch.Tensor, "is_cuda", as_on_a_gpu)
    torch.manual_seed(3)
    found = uwac.mc_dropout_variance(critic, obs, action, p, 7).sum(0)
    assert_close(found, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_analytic_is_the_variance_of_many_passes(p):
    """Of 2,000, which have a relative standard error of sqrt(2 / 2,000) = 3.2%."""
    critic, obs, action = critic_and_pairs()
    sampled = uwac.mc_dropout_variance(critic, obs, action, p, 2000)
    ratio = uwac.analytic_dropout_variance(critic, obs, action, p) / sampled
    assert abs(ratio.mean() - 1) < 0.05
    assert (ratio - 1).square().mean().sqrt() < 0.07


def test_the_noise_of_q_is_that_of_a_mean_of_passes():
    """Of T = 20, with masks of their own for each action: normal, around Q, and of its own in each
    critic, seed and action."""
    critic, obs, action = critic_and_pairs()
    agent = uwac.Agent(uwac.Args(num_seeds=2, dropout=0.1, passes=20), obs_dim=39, action_dim=28)
    pairs = obs[:, :1], action[:, None, :1].expand(-1, -1, 2000, -1)  # one state, (S, 1, N, A)
    q = critic(*pairs)
    assert torch.equal(agent.q_values(critic, *pairs, noise=False), q)
    noise = (agent.q_values(critic, *pairs, noise=True) - q).view(4, 2000)
    std = (uwac.analytic_dropout_variance(critic, obs, action, 0.1)[:, :, 0] / 20).sqrt().flatten()
    assert (noise.mean(1).abs() < 5 * std / 2000**0.5).all()
    assert_close(noise.std(1).detach(), std, rtol=5 / 4000**0.5, atol=0)
    assert (noise.detach().corrcoef() - torch.eye(4)).abs().max() < 5 / 2000**0.5


@pytest.mark.parametrize("weighting, weights", [
    ("variance", [1.5, 1.0, 0.4, 0.0]),
    ("std", [1.5, 1.6**0.5, 0.8, 0.0]),
    ("exp", [1.0, math.exp(-(1.6**2)), math.exp(-6.4), 0.0]),
    ("none", [1.0, 1.0, 1.0, 1.0]),
])  # fmt: skip
def test_weights_by_hand(weighting, weights):
    """beta / Var and its relatives, at most the clip; from no variance to an infinite one."""
    variance = torch.tensor([0.0, 1.6, 4.0, math.inf], requires_grad=True)
    args = uwac.Args(weighting=weighting, beta=1.6, weight_clip=1.5)
    found = uwac.uncertainty_weight(variance, args)
    assert_close(found, torch.tensor(weights))
    assert not found.requires_grad
    args.weight_clip = 0.5
    assert uwac.uncertainty_weight(variance, args).max() == (1 if weighting == "none" else 0.5)


def test_ood_auroc(monkeypatch):
    """It compares all pairs, of 1,000 states with the data's action and with a random one from -1
    to 1, and changes nothing that is drawn later."""
    agent = uwac.Agent(uwac.Args(num_seeds=2), obs_dim=5, action_dim=2)
    obs = torch.randn(1500, 5)
    variance = torch.randint(50, (2, 2000)).float()
    variance[1, 1000:] += 10

    def uncertainty(critic, obs, action):
        assert critic is agent.critic
        (same, obs), (known, random) = obs.chunk(2, dim=1), action.chunk(2, dim=1)
        assert torch.equal(obs, same) and torch.equal(known, obs[..., :2].tanh())
        assert len(known[0].unique(dim=0)) == 1000
        assert random.abs().max() <= 1 and random.mean().abs() < 5 * (1 / 3 / 4000) ** 0.5
        assert random.square().mean().item() == pytest.approx(1 / 3, abs=0.03)
        return variance

    monkeypatch.setattr(agent, "uncertainty", uncertainty)
    before = torch.get_rng_state()
    found = uwac.ood_auroc(agent, [obs, obs[:, :2].tanh()], agent.args)
    assert torch.equal(torch.get_rng_state(), before)
    of_known, of_random = variance[:, None, :1000], variance[:, 1000:, None]
    expected = (of_random > of_known).float() + 0.5 * (of_random == of_known)
    assert found == pytest.approx(expected.mean((1, 2)).numpy())
