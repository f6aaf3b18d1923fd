"""benchmark/variants/weights.py: each weighting by hand, and BEAR as UWAC without weights."""

import math
from functools import partial

import pytest
import torch
from conftest import short
from torch.testing import assert_close

import bear
import uwac
from benchmark.variants import uwac_code, weights

BEAR = {"dropout": 0.0, "spectral_norm": False}
V = torch.tensor([[0.1, 0.5, 2.0, 8.0], [1.0, 1.0, 1.0, 1e9]])  # of two seeds
Q = torch.tensor([[1.0, -1.0, 4.0, 2.0], [10.0, 10.0, 10.0, 30.0]])
OWN = torch.tensor([[1.0, 1.0, 0.4, 0.1], [0.8, 0.8, 0.8, 0.8e-9]])  # 0.8 / V, at most 1
ONES = torch.ones(2, 4)
MEAN = OWN.mean(1, keepdim=True) * ONES


def weight(loss, **settings):
    given = {"num_seeds": 2, "beta": 0.8, "weight_clip": 1.0} | settings
    return weights.Agent(weights.Args(**given), 3, 2).weigh(V, Q, loss)


@pytest.mark.parametrize("weighting, in_critics, in_actor", [
    ("none", ONES, ONES),
    ("std", (0.8 / V.sqrt()).clamp(max=1), (0.8 / V.sqrt()).clamp(max=1)),
    ("exp", torch.exp(-0.8 * V), torch.exp(-0.8 * V)),
    ("constant", MEAN, MEAN),
    ("actor-constant", OWN, MEAN),
    ("critic-only", OWN, ONES),
    ("actor-only", ONES, OWN),
    ("scaled-q", ONES, torch.tensor([[1.25], [1 / 6]]) * ONES),
    ("fixed-w", ONES, 0.43 * ONES),
])  # fmt: skip
def test_weights_by_hand(weighting, in_critics, in_actor):
    assert_close(weight("critic", weighting=weighting, fixed_w=0.43), in_critics)
    assert_close(weight("actor", weighting=weighting, fixed_w=0.43), in_actor)


def test_shuffled_weights_are_those_of_other_states_each_time_anew():
    variance = 1 + torch.rand(2, 50)
    agent = weights.Agent(weights.Args(weighting="shuffled", num_seeds=2), 3, 2)
    own = uwac.Agent.weigh(agent, variance, variance, "actor")
    first, second = (agent.weigh(variance, variance, loss) for loss in ("critic", "actor"))
    for found in (first, second):
        assert not torch.equal(found, own)
        assert torch.equal(found.sort(1).values, own.sort(1).values)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("weighting, beta, clip", [
    ("std", 1.6, 1.5), ("shuffled", 1.6, 1.5), ("exp", 0.5, 1.0)
])  # fmt: skip
def test_beta_and_the_limit_are_those_of_the_formula(weighting, beta, clip):
    """The authors' exp has its own, which are uwac_code's, too; others are as given."""
    args = weights.Args(weighting=weighting)
    assert (args.beta, args.weight_clip) == (beta, clip)
    args = uwac_code.Args(weighting=weighting)
    assert (args.beta, args.weight_clip) == (beta, clip)
    args = weights.Args(weighting=weighting, beta=2.0, weight_clip=3.0)
    assert (args.beta, args.weight_clip) == (2, 3)


@pytest.mark.parametrize("weighting", weights.OF_VARIANCE)
def test_weights_of_a_variance_need_dropout(weighting):
    with pytest.raises(ValueError, match="^--dropout 0: no variance to weigh by; --weighting must"):
        weights.Agent(weights.Args(weighting=weighting, dropout=0.0), 3, 2)


def data_of(n=40):
    obs, next_obs = torch.randn(2, n, 3)
    done = (torch.rand(n) < 0.3).float()
    return [obs, torch.rand(n, 2) * 2 - 1, torch.randn(n), next_obs, done]


def test_uwac_without_weights_dropout_and_norm_is_bear():
    """In all metrics, of updates in the warm-up and after it, to the bit."""
    data = data_of()
    found = []
    for script, changes in ((bear, {}), (weights, BEAR)):
        settings = {"num_seeds": 2, "batch_size": 8, "warmup_steps": 3} | changes
        torch.manual_seed(1)
        agent = script.Agent(script.Args("Own-v0", **settings), 3, 2)
        steps = [script.update(agent, data, torch.tensor(step)) for step in range(1, 7)]
        found.append({name: [metrics[name] for metrics in steps] for name in steps[0]})
    of_bear, of_uwac = found
    assert len(of_bear) >= 7
    for name, values in of_bear.items():
        assert all(map(torch.equal, values, of_uwac[name])), name
    for name in ("variance", "policy_variance"):
        assert not torch.stack(of_uwac[name]).any()
    for name in ("weight", "policy_weight"):
        assert (torch.stack(of_uwac[name]) == 1).all()


@pytest.mark.parametrize("weighting, weight, policy_weight", [
    ("fixed-w", 1.0, 0.2), ("critic-only", 1e-4, 1.0), ("actor-only", 1.0, 1e-4)
])  # fmt: skip
def test_update_takes_the_weights_of_each_loss(weighting, weight, policy_weight):
    """And logs the variance itself, whatever the weights are."""
    settings = {"weighting": weighting, "fixed_w": 0.2, "weight_clip": 1e-4, "warmup_steps": 0}
    agent = weights.Agent(weights.Args("Own-v0", variance="analytic", **settings), 3, 2)
    metrics = weights.update(agent, data_of(), torch.tensor(1))
    found = metrics["weight"].item(), metrics["policy_weight"].item()
    assert found == pytest.approx((weight, policy_weight))
    assert 0 < metrics["policy_variance"].item() < 1e-2


def test_a_variance_that_weighs_nothing_is_the_cheap_one(points, monkeypatch):
    """It is a metric alone; what weighs is estimated as asked."""
    monkeypatch.setattr(uwac, "analytic_dropout_variance", lambda *given: torch.full((2, 1, 8), 3))
    monkeypatch.setattr(uwac, "mc_dropout_variance", lambda *given: torch.full((2, 1, 8), 4))
    pairs = torch.rand(1, 8, 3), torch.rand(1, 8, 2)
    for weighting in (*weights.WITHOUT_VARIANCE, *weights.OF_VARIANCE):
        agent = weights.Agent(short(weights, weighting=weighting, variance="mc"), 3, 2)
        each = 6 if weighting in weights.WITHOUT_VARIANCE else 8
        assert agent.uncertainty(agent.critic, *pairs).tolist() == [[each] * 8]
    agent = weights.Agent(short(weights, weighting="none", dropout=0.0), 3, 2)
    assert agent.uncertainty(agent.critic, *pairs).tolist() == [[0] * 8]


def learned(fixed_w, log_alpha):
    """Networks, and alpha, after 20 updates with a fixed w, from a start of log alpha; Adam's eps,
    which a loss's scale would meet, is next to nothing."""
    torch.manual_seed(1)
    args = weights.Args("Own-v0", weighting="fixed-w", fixed_w=fixed_w, warmup_steps=0, **BEAR)
    agent = weights.Agent(args, 3, 2).double()
    agent.log_alpha.data.fill_(log_alpha)
    for name in ("actor", "dual"):
        agent.optimizers[name].param_groups[0]["eps"] = 1e-30
    data = [array.double() for array in data_of()]
    for step in range(1, 21):
        weights.update(agent, data, torch.tensor(step))
    state = agent.state_dict()
    return state, state.pop("log_alpha")


def test_a_fixed_w_is_another_start_of_alpha(monkeypatch):
    """The actor's loss is alpha (MMD - threshold) - w Q, of which Adam ignores a factor: w = 0.01
    is w = 1 where log alpha starts, and would end, higher by -ln 0.01. Else they are different."""
    monkeypatch.setattr(torch, "randn", partial(torch.randn, dtype=torch.double))
    small, small_alpha = learned(0.01, 0.0)
    one, one_alpha = learned(1.0, -math.log(0.01))
    assert_close(one, small, rtol=1e-9, atol=1e-12)
    assert_close(one_alpha, small_alpha - math.log(0.01), rtol=1e-9, atol=0)
    other, _ = learned(1.0, 0.0)
    name = "actor.layers.1.weight"
    assert (other[name] - small[name]).abs().max() > 1e-4
