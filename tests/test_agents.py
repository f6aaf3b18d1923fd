"""benchmark/'s agents by hand: ensembles.py, uwac_code.py's noise, what_bounds_q.py's weights."""

import ensembles
import numpy as np
import pytest
import torch
import uwac_code
import what_bounds_q
from conftest import zeroed
from torch.testing import assert_close

import uwac

OF_BEAR = {"weighting": "none", "dropout": 0.0}


@pytest.mark.parametrize("members", ["ensemble", "rem"])
def test_each_member_of_an_ensemble_learns_by_itself_and_rem_as_one(members):
    """On one transition that ends: the target is the reward, 2."""
    settings = {"num_seeds": 2, "ensemble_size": 3, "batch_size": 6, "spectral_norm": False}
    agent = ensembles.Agent(ensembles.Args(members=members, **settings), 5, 2)
    obs, action = torch.rand(1, 5), torch.rand(1, 2)
    inputs = obs.expand(2, 1, 5), action.expand(2, 1, 2)
    q = agent.critic.q_of_members(*inputs)  # (2, K, S, 1)
    assert_close(agent.critic(*inputs), q.mean(1))
    variance = agent.uncertainty(agent.critic, *inputs)
    assert_close(variance, q.var(1).sum(0), rtol=1e-4, atol=0)  # small numbers at the start
    torch.manual_seed(1)
    mixture = torch.rand(3, 2)
    mixture /= mixture.sum(0)
    if members == "rem":
        q = torch.einsum("ks,cksb->csb", mixture, q).unsqueeze(1)
    torch.manual_seed(1)
    data = [obs, action, torch.tensor([2.0]), obs, torch.tensor([1.0])]
    metrics = ensembles.update(agent, data, 1)
    assert_close(metrics["critic_loss"], metrics["weight"] * (q - 2).square().sum((0, 1, 3)))
    of_target = mixture if members == "rem" else torch.full((3, 2), 1 / 3)
    assert_close(agent.target_critic.mixture, of_target)
    assert (agent.critic.mixture == 1 / 3).all()  # what acts


@pytest.fixture
def noisy(monkeypatch):
    """ml-uwac's agent with critics that are 0, whose Var[Q] is 4: Q's noise has a std of 0.2."""
    constant = lambda critic, obs, action, p: torch.full((2, *action.shape[:-1]), 4.0)
    monkeypatch.setattr(uwac, "analytic_dropout_variance", constant)
    settings = {"batch_size": 5_000, "num_candidates": 1, "lmbda": 1.0, "passes": 100}
    settings |= {"variance": "analytic", "spectral_norm": False, "critic_lr": 0.0}
    agent = uwac_code.Agent(uwac_code.Args(**settings), 3, 2)
    zeroed(agent.critic.layers[2], agent.target_critic.layers[2])
    return agent


def test_noise_of_passes_is_each_candidates_own(noisy):
    q = noisy.critic(torch.rand(1, 500, 3), torch.rand(1, 500, 8, 2))  # (2, 1, 500, 8)
    assert q.std().item() == pytest.approx(0.2, rel=0.05)
    own = torch.corrcoef(q.permute(0, 3, 1, 2).reshape(16, 500))  # of critics and candidates
    assert (own - torch.eye(16)).abs().max() < 0.25
    regression = noisy.critic(torch.rand(1, 500, 3), torch.rand(1, 500, 2), 0.1)
    assert (regression == 0).all()


def test_noise_is_in_targets_and_in_the_actors_loss_and_in_the_choice(noisy):
    """The expected minimum of two normal numbers is -std / sqrt(pi)."""
    n = 100
    data = [torch.rand(n, 3), torch.rand(n, 2), torch.ones(n), torch.rand(n, 3), torch.zeros(n)]
    assert noisy.optimizers["critic"].param_groups[0]["params"] == [*noisy.critic.parameters()]
    metrics = uwac.update(noisy, data, 1)
    smaller = -0.2 / np.pi**0.5
    mean = 1 + 0.99 * smaller
    spread = 0.99**2 * 0.04 * (1 - 1 / np.pi)
    weight = np.exp(-0.5 * (4 + 4))
    assert metrics["policy_q"].item() == pytest.approx(smaller, abs=0.01)
    assert metrics["target_q"].item() == pytest.approx(mean, abs=0.01)
    assert metrics["critic_loss"].item() == pytest.approx(2 * weight * (mean**2 + spread), rel=0.02)
    torch.manual_seed(1)
    chosen = noisy.act(np.zeros((1, 200, 3)), 10)
    torch.manual_seed(1)
    candidates = noisy.actor.sample(torch.zeros(1, 200, 3), 10).tanh()
    places = (candidates == torch.as_tensor(chosen)[:, :, None]).all(-1).float().argmax(-1)
    assert torch.bincount(places[0], minlength=10).min() > 5  # each is the best of some


def weights_of(control, **changes):
    """The control's weights in the critics' and in the actor's loss, UWAC's own, and the smaller Q:
    two seeds, 50 states each."""
    settings = {"num_seeds": 2, "variance": "analytic", "spectral_norm": False, "beta": 0.05}
    agent = what_bounds_q.Agent(what_bounds_q.Args(control=control, **settings | changes), 5, 2)
    for parameter in agent.critic.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    agent.target_critic.load_state_dict(agent.critic.state_dict())
    pairs = torch.randn(2, 50, 5), torch.rand(2, 50, 2)
    networks = agent.target_critic, agent.critic
    found = [agent.weigh(agent.uncertainty(one, *pairs), agent.args) for one in networks]
    variance = uwac.Agent.uncertainty(agent, agent.critic, *pairs)
    own = uwac.uncertainty_weight(variance, agent.args)
    assert changes or own.std(1).min() > 0.01
    return *found, own, agent.critic(*pairs).amin(0)


def test_weights_of_uwac_changed():
    ones = torch.ones(2, 50)
    *both, own, _ = weights_of("constant")
    for weight in both:
        assert_close(weight, own.mean(1, keepdim=True) * ones)
    *both, own, _ = weights_of("shuffled")
    for weight in both:
        assert not torch.equal(weight, own)
        assert_close(weight.sort(1).values, own.sort(1).values)
    critics, actor, own, _ = weights_of("critic-only")
    assert torch.equal(critics, own) and torch.equal(actor, ones)
    critics, actor, own, _ = weights_of("actor-only")
    assert torch.equal(critics, ones) and torch.equal(actor, own)


def test_weights_of_bear_changed():
    ones = torch.ones(2, 50)
    critics, actor, _, q = weights_of("scaled-q", **OF_BEAR)
    assert torch.equal(critics, ones)
    assert_close(actor, 2.5 / q.abs().mean(1, keepdim=True) * ones)
    critics, actor, *_ = weights_of("fixed-w", **OF_BEAR)
    assert torch.equal(critics, ones) and torch.equal(actor, 0.01 * ones)
    for control in what_bounds_q.OF_BEAR:
        with pytest.raises(ValueError, match=f"--control {control}: needs --weighting none"):
            weights_of(control)


def test_update_takes_the_controls_weights():
    """Not those of UWAC, in either loss."""
    agent = what_bounds_q.Agent(what_bounds_q.Args(control="fixed-w", **OF_BEAR), 5, 2)
    shapes = (5,), (2,), (), (5,), ()
    metrics = what_bounds_q.update(agent, [torch.rand(40, *shape) for shape in shapes], 1)
    assert (metrics["weight"].item(), metrics["policy_weight"].item()) == pytest.approx((1, 0.01))
