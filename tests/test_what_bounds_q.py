"""benchmark/variants/what_bounds_q.py: each control's weights."""

import pytest
import torch
from torch.testing import assert_close

import uwac
from benchmark.variants import what_bounds_q

OF_BEAR = {"weighting": "none", "dropout": 0.0}


def weights_of(control, **changes):
    """The control's weights in both losses, UWAC's own, and the smaller Q: two seeds, 50 states."""
    settings = {"num_seeds": 2, "variance": "analytic", "spectral_norm": False, "beta": 0.05}
    agent = what_bounds_q.Agent(what_bounds_q.Args(control=control, **settings | changes), 5, 2)
    for parameter in agent.critic.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    agent.target_critic.load_state_dict(agent.critic.state_dict())
    pairs = torch.randn(2, 50, 5), torch.rand(2, 50, 2)
    networks = agent.target_critic, agent.critic
    found = [agent.weigh(agent.uncertainty(one, *pairs)) for one in networks]
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
    assert not torch.equal(*both)  # of the same weights, each time anew
    for weight in both:
        assert not torch.equal(weight, own)
        assert_close(weight.sort(1).values, own.sort(1).values)
    critics, actor, own, _ = weights_of("actor-constant")
    assert torch.equal(critics, own)
    assert_close(actor, own.mean(1, keepdim=True) * ones)
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
    critics, actor, *_ = weights_of("fixed-w", fixed_w=0.43, **OF_BEAR)
    assert torch.equal(critics, ones) and torch.equal(actor, 0.43 * ones)
    critics, actor, *_ = weights_of("fixed-w", fixed_w=0, **OF_BEAR)  # it never sees Q
    assert torch.equal(critics, ones) and torch.equal(actor, 0 * ones)
    for control in what_bounds_q.OF_BEAR:
        with pytest.raises(ValueError, match=f"--control {control}: needs --weighting none"):
            weights_of(control)


def test_update_takes_the_controls_weights():
    """Not those of UWAC, in either loss."""
    agent = what_bounds_q.Agent(what_bounds_q.Args(control="fixed-w", **OF_BEAR), 5, 2)
    shapes = (5,), (2,), (), (5,), ()
    metrics = what_bounds_q.update(agent, [torch.rand(40, *shape) for shape in shapes], 1)
    assert (metrics["weight"].item(), metrics["policy_weight"].item()) == pytest.approx((1, 0.01))
