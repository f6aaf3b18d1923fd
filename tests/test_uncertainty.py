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


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("as_on_a_gpu", [False, True])
def test_mc_is_the_variance_of_plain_passes(p, as_on_a_gpu, monkeypatch):
    """With a mask of its own for each layer, critic and seed, and the same one for all rows."""
    critic, obs, action = critic_and_pairs()
    torch.manual_seed(3)
    expected = speed.plain_uncertainty(critic, obs, action, uwac.Args(dropout=p, passes=7))
    monkeypatch.setattr(torch.Tensor, "is_cuda", as_on_a_gpu)
    torch.manual_seed(3)
    found = uwac.mc_dropout_variance(critic, obs, action, p, 7).sum(0)
    assert_close(found, expected, rtol=1e-4 if as_on_a_gpu else 1e-5, atol=0)


def test_passes_leave_the_precision_of_matmuls_as_it_was():
    critic, obs, action = critic_and_pairs()
    torch.set_float32_matmul_precision("medium")
    uwac.mc_dropout_variance(critic, obs, action, 0.1, 2)
    assert torch.get_float32_matmul_precision() == "medium"


def test_a_gpu_takes_passes_in_pieces_of_at_most_1_gb(monkeypatch):
    """On the way of a GPU, with tensors that hold no numbers."""
    largest = []
    relu = torch.nn.functional.relu
    monkeypatch.setattr(uwac.F, "relu", lambda x, **_: largest.append(x.numel()) or relu(x))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    with torch.device("meta"):
        critic = uwac.Critic(20, obs_dim=39, action_dim=28)
        pairs = torch.empty(20, 4096, 39), torch.empty(20, 4096, 28)
        found = uwac.mc_dropout_variance(critic, *pairs, 0.1, 100)
    assert found.shape == (2, 20, 4096)
    assert 2**27 < max(largest) <= 2**28


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_analytic_is_the_variance_of_many_passes(p):
    """Of 2,000, which have a relative standard error of sqrt(2 / 2,000) = 3.2%."""
    critic, obs, action = critic_and_pairs()
    sampled = uwac.mc_dropout_variance(critic, obs, action, p, 2000)
    ratio = uwac.analytic_dropout_variance(critic, obs, action, p) / sampled
    assert abs(ratio.mean() - 1) < 0.05
    assert (ratio - 1).square().mean().sqrt() < 0.07


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
