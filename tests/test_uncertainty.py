"""The two estimates of Var[Q] under dropout, and the weight that is made of them."""

import math

import pytest
import torch
from torch.testing import assert_close

import uwac


def critic_and_pairs(S=1, **settings):
    """A random critic, with larger weights than an untrained one's, and 32 states and actions."""
    critic = uwac.Critic(S, obs_dim=39, action_dim=28, **settings)
    for layer in critic.layers:
        bound = layer.weight.shape[-2] ** -0.5
        layer.weight.data.uniform_(-bound, bound)
    obs = torch.randn(S, 32, 39)
    action = torch.rand(S, 32, 28) * 2 - 1
    return critic, obs, action


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_where_nothing_is_cut_off_the_variance_is_known(p):
    """Where all is positive, Q is linear in each layer's masks: Var[Q] is the share of the first
    ones, that of the second ones, and that of both together."""
    critic, obs, action = critic_and_pairs()
    for layer in critic.layers:
        layer.weight.data.abs_()
    critic.layers[1].bias.data.add_(100)
    obs, action = obs[:, :3].abs(), action[:, :3].abs()
    first, second, last = critic.layers
    with torch.no_grad():
        h1 = first(uwac.concat(obs, action))  # (2, S, B, H)
        h2 = second(h1)
        w2, w3 = second.weight, last.weight
        by_first = (h1 * (w2 @ w3).mT).square().sum(-1)  # (2, S, B)
        by_second = (h2 * w3.mT).square().sum(-1)
        by_both = (h1.square() @ w2.square() @ w3.square()).squeeze(-1)
    r = p / (1 - p)
    exact = r * (by_first + by_second) + r**2 * by_both
    assert_close(uwac.analytic_dropout_variance(critic, obs, action, p), exact, rtol=1e-4, atol=0)
    sampled = uwac.mc_dropout_variance(critic, obs, action, p, 2000)
    assert_close(sampled, exact, rtol=5 * math.sqrt(2 / 2000), atol=0)  # five standard errors


def test_variance_is_that_of_the_authors_code(authors):
    """Theirs is of 40,000 passes, a relative standard error of sqrt(2 / 40,000) = 0.7%."""
    critic = uwac.Critic(1, obs_dim=39, action_dim=28)
    for i, layer in enumerate(critic.layers):
        weight = torch.stack([authors[f"q1_w{i}"], authors[f"q2_w{i}"]])  # (2, out, in)
        bias = torch.stack([authors[f"q1_b{i}"], authors[f"q2_b{i}"]])
        layer.weight.data = weight.mT.unsqueeze(1)
        layer.bias.data = bias[:, None, None]
    pairs = (authors["obs"].unsqueeze(0), authors["act"].unsqueeze(0))  # (S, B, D), (S, B, A)
    p = authors["drop_rate"].item()
    variance = torch.stack([authors["q1_dropout_var"], authors["q2_dropout_var"]]).unsqueeze(1)
    sampled = uwac.mc_dropout_variance(critic, *pairs, p, 10_000)
    five_errors = 5 * (2 / 10_000 + 2 / 40_000) ** 0.5
    assert_close(sampled, variance, atol=0, rtol=five_errors)
    ratio = uwac.analytic_dropout_variance(critic, *pairs, p) / variance
    assert abs(ratio.mean() - 1) < 0.03
    assert (ratio - 1).square().mean().sqrt() < 0.08


def test_a_pass_draws_one_mask_for_all_rows():
    """Equal rows have equal estimates, critics and seeds have masks of their own."""
    critic, obs, action = critic_and_pairs(S=2)
    for parameter in critic.parameters():
        parameter.data[:] = parameter.data[0, 0].clone()  # four equal critics
    obs = obs[:1, :1].expand(2, 32, -1)
    action = action[:1, :1].expand(2, 32, -1)
    variance = uwac.mc_dropout_variance(critic, obs, action, 0.1, 10)
    assert_close(variance, variance[..., :1].expand(2, 2, 32))
    assert len(variance[..., 0].unique()) == 4


def test_the_noise_of_q_is_that_of_literal_passes():
    """Of means of T = 100 passes with masks of their own for every row, where nothing is cut off:
    as large, around the same mean, of its own in each critic and candidate."""
    critic, obs, action = critic_and_pairs()
    for layer in critic.layers:
        layer.weight.data.abs_()
    obs, candidates = obs[:, :1].abs(), action[:, None, :2].abs()  # one state, (1, 1, 2, A)
    agent = uwac.Agent(uwac.Args(dropout=0.1, passes=100), obs_dim=39, action_dim=28)
    passes = (obs.expand(1, 100, -1), candidates.expand(1, 100, -1, -1))
    many = (obs.expand(1, 20_000, -1), candidates.expand(1, 20_000, -1, -1))
    with torch.no_grad():
        literal = torch.stack([critic(*passes, 0.1).mean(2).flatten() for _ in range(400)])
        noisy = agent.q_values(critic, *many, noise=True)  # (2, 1, 20000, 2)
        assert torch.equal(agent.q_values(critic, *passes, noise=False), critic(*passes))
    noisy = noisy.permute(2, 0, 1, 3).flatten(1)
    error = literal.std(0) / 400**0.5
    assert ((noisy.mean(0) - literal.mean(0)).abs() < 5 * error).all()
    assert_close(noisy.std(0), literal.std(0), rtol=5 / 800**0.5, atol=0)
    for draws in (literal, noisy):  # (..., 2 critics * 2 candidates)
        correlation = draws.T.corrcoef() - torch.eye(4)
        assert correlation.abs().max() < 5 / len(draws) ** 0.5


def test_uncertainty_is_the_sum_over_the_critics():
    critic, obs, action = critic_and_pairs(S=2)
    args = uwac.Args(num_seeds=2, dropout=0.3, variance="analytic")
    agent = uwac.Agent(args, obs_dim=39, action_dim=28)
    found = agent.uncertainty(critic, obs, action)
    assert_close(found, uwac.analytic_dropout_variance(critic, obs, action, 0.3).sum(0))
    assert not found.requires_grad
    critic.layers[0].bias.data -= 100  # no unit gets through, so that no mask makes a difference
    critic.layers[1].bias.data.zero_()
    assert agent.uncertainty(critic, obs, action).max() < 1e-12


@pytest.mark.parametrize("variance", ["mc", "analytic"])
def test_without_dropout_there_is_no_variance_and_none_is_computed(variance, monkeypatch):
    for name in ("mc_dropout_variance", "analytic_dropout_variance"):
        monkeypatch.setattr(uwac, name, None)  # calling it would raise TypeError
    critic, obs, action = critic_and_pairs(S=2)
    args = uwac.Args(num_seeds=2, dropout=0, weighting="none", variance=variance)
    agent = uwac.Agent(args, obs_dim=39, action_dim=28)
    found = agent.uncertainty(critic, obs, action)
    assert found.shape == action.shape[:2] and (found == 0).all()


def test_weights_are_those_of_the_authors_code(authors):
    variance = authors["weight_var"]
    inverse = uwac.uncertainty_weight(variance, uwac.Args(beta=1.6, weight_clip=1.5))
    assert_close(inverse, authors["weight_inverse_beta1.6_clip1.5"])
    args = uwac.Args(beta=0.5, weight_clip=1.0, weighting="exp")
    exponential = uwac.uncertainty_weight(variance, args)
    assert_close(exponential, authors["weight_exp_beta0.5_clip1.0"])


def test_weights_by_hand():
    """beta / Var and its relatives, at most the clip; from no variance to an infinite one. No
    gradient passes."""
    variance = torch.tensor([0.0, 1.6, 4.0, math.inf], requires_grad=True)
    expected = {
        "variance": [1.5, 1.0, 0.4, 0.0],
        "std": [1.5, 1.6**0.5, 0.8, 0.0],
        "exp": [1.0, math.exp(-(1.6**2)), math.exp(-6.4), 0.0],
        "none": [1.0, 1.0, 1.0, 1.0],
    }
    for weighting, weights in expected.items():
        args = uwac.Args(weighting=weighting, beta=1.6, weight_clip=1.5)
        found = uwac.uncertainty_weight(variance, args)
        assert_close(found, torch.tensor(weights))
        assert not found.requires_grad
        args.weight_clip = 0.5
        largest = 1 if weighting == "none" else 0.5
        assert uwac.uncertainty_weight(variance, args).max() == largest


def test_ood_auroc_compares_all_pairs(monkeypatch):
    """Three known actions; what is taken for their variance and that of random ones is set here:
    of nine pairs the random one is larger in five, equal in one."""
    agent = uwac.Agent(uwac.Args(), obs_dim=5, action_dim=2)
    data = [torch.randn(3, 5), torch.zeros(3, 2)]
    asked = []

    def uncertainty(critic, obs, action):
        assert critic is agent.critic
        asked.extend(action.chunk(2, dim=1))
        return torch.tensor([[1.0, 2.0, 3.0, 0.0, 3.0, 7.0]])

    monkeypatch.setattr(agent, "uncertainty", uncertainty)
    before = torch.get_rng_state()
    assert uwac.ood_auroc(agent, data, uwac.Args()) == pytest.approx([5.5 / 9])
    assert torch.equal(torch.get_rng_state(), before)
    known, random = asked
    assert (known == 0).all() and (random != 0).all() and (random.abs() <= 1).all()
