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


def test_variance_is_that_of_the_authors_code(authors):
    """Theirs is of 40,000 passes, a relative standard error of sqrt(2 / 40,000) = 0.7%."""
    critic = uwac.Critic(1, obs_dim=39, action_dim=28)
    for i, layer in enumerate(critic.layers):
        weight, bias = (torch.stack([authors[f"{q}_{of}{i}"] for q in ("q1", "q2")]) for of in "wb")
        layer.weight.data = weight.mT.unsqueeze(1)  # of (2, out, in)
        layer.bias.data = bias[:, None, None]
    pairs = (authors["obs"].unsqueeze(0), authors["act"].unsqueeze(0))  # (S, B, D), (S, B, A)
    p = authors["drop_rate"].item()
    variance = torch.stack([authors["q1_dropout_var"], authors["q2_dropout_var"]]).unsqueeze(1)
    five_errors = 5 * (2 / 10_000 + 2 / 40_000) ** 0.5
    sampled = uwac.mc_dropout_variance(critic, *pairs, p, 10_000)
    assert_close(sampled, variance, atol=0, rtol=five_errors)
    ratio = uwac.analytic_dropout_variance(critic, *pairs, p) / variance
    assert abs(ratio.mean() - 1) < 0.03
    assert (ratio - 1).square().mean().sqrt() < 0.08


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_mc_is_the_sample_variance_of_passes_by_hand(p):
    """Each with a mask of its own for each layer, critic and seed, and the same one for all rows."""
    critic, obs, action = critic_and_pairs(S=2)
    torch.manual_seed(3)
    found = uwac.mc_dropout_variance(critic, obs, action, p, 7)
    torch.manual_seed(3)
    first, second, last = critic.layers
    with torch.no_grad():
        h1 = first(uwac.concat(obs, action)).relu()
        passes = []
        for _ in range(7):
            mask1, mask2 = (torch.rand(2, 2, 2, 1, 256) >= p) / (1 - p)
            passes.append(last(second(h1 * mask1).relu() * mask2).squeeze(-1))
    assert_close(found, torch.stack(passes).var(0), rtol=1e-3, atol=0)


def test_the_noise_of_q_is_that_of_literal_passes():
    """Of means of T = 20 passes with masks of their own for every row, where nothing is cut off: as
    large, around the same mean, of its own in each critic and candidate."""
    critic, obs, action = critic_and_pairs()
    for layer in critic.layers:
        layer.weight.data.abs_()
    obs, candidates = obs[:, :1].abs(), action[:, None, :2].abs()  # one state, (1, 1, 2, A)
    agent = uwac.Agent(uwac.Args(dropout=0.1, passes=20), obs_dim=39, action_dim=28)
    passes = (obs.expand(1, 20, -1), candidates.expand(1, 20, -1, -1))
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


@pytest.mark.parametrize("variance", ["mc", "analytic"])
def test_uncertainty_is_the_sum_over_the_critics(variance):
    """And without dropout 0."""
    critic, obs, action = critic_and_pairs(S=2)
    args = uwac.Args(num_seeds=2, dropout=0.3, variance=variance, passes=5)
    agent = uwac.Agent(args, obs_dim=39, action_dim=28)
    torch.manual_seed(3)
    found = agent.uncertainty(critic, obs, action)
    torch.manual_seed(3)
    rate_and_passes = (0.3, 5) if variance == "mc" else (0.3,)
    function = getattr(uwac, f"{variance}_dropout_variance")
    assert_close(found, function(critic, obs, action, *rate_and_passes).sum(0))
    args.dropout = 0
    assert torch.equal(agent.uncertainty(critic, obs, action), torch.zeros(2, 32))


def test_weights_by_hand():
    """beta / Var and its relatives, at most the clip; from no variance to an infinite one."""
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
        assert uwac.uncertainty_weight(variance, args).max() == (0.5 if weighting != "none" else 1)


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
        assert random.abs().max() <= 1
        assert random.mean().item() == pytest.approx(0, abs=5 * (1 / 3 / 4000) ** 0.5)
        assert random.square().mean().item() == pytest.approx(1 / 3, abs=0.03)
        return variance

    monkeypatch.setattr(agent, "uncertainty", uncertainty)
    before = torch.get_rng_state()
    found = uwac.ood_auroc(agent, [obs, obs[:, :2].tanh()], agent.args)
    assert torch.equal(torch.get_rng_state(), before)
    of_known, of_random = variance[:, None, :1000], variance[:, 1000:, None]
    expected = (of_random > of_known).float() + 0.5 * (of_random == of_known)
    assert found == pytest.approx(expected.mean((1, 2)).numpy())
