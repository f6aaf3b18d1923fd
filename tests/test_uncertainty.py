"""The two estimates of Var[Q] under dropout, the mask, the weight, spectral norm and MMD."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import uwac


def random_critic(stack=2, hidden_dim=256, **kwargs):
    return (
        uwac.Critic(stack, 39, 28, hidden_dim, **kwargs),
        torch.randn(stack, 32, 39),
        torch.rand(stack, 32, 28) * 2 - 1,
    )


def relative_rmse(estimate, truth):
    return (estimate / truth - 1).square().mean().sqrt().item()


@pytest.mark.parametrize("nth", [0, 99])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_masks(p, nth):
    """Rate, and independence of neighbours (four units share the 64 bits of one generator), within five standard errors;
    in the first mask as in the hundredth."""
    kept = next(itertools.islice(uwac.dropout_masks(torch.empty(1000, 1001), p), nth, None)).double()
    assert kept.shape == (1000, 1001)
    assert abs(kept.mean() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / kept.numel())
    for distance in (1, 2, 3, 4):
        flat = kept.flatten() - (1 - p)
        correlation = (flat[:-distance] * flat[distance:]).mean() / (p * (1 - p))
        assert abs(correlation) < 5 / math.sqrt(kept.numel())


def test_dropout_masks_come_from_xorshift64():
    """Marsaglia's shifts by 13, 7 and 17 on unsigned numbers of 64 bits, of which each gives four masks."""
    torch.manual_seed(5)
    states = [n % 2**64 for n in torch.empty(3, dtype=torch.int64).random_(-(2**63), None).tolist()]
    torch.manual_seed(5)
    for mask in itertools.islice(uwac.dropout_masks(torch.empty(2, 4), 0.3), 50):
        sixteen_bits = [state >> shift & 0xFFFF for state in states for shift in (0, 16, 32, 48)][:8]
        signed = [bits - 2**16 * (bits >= 2**15) for bits in sixteen_bits]
        assert mask.flatten().tolist() == [float(bits >= round(0.3 * 2**16) - 2**15) for bits in signed]
        for i, x in enumerate(states):
            x ^= x << 13 & (2**64 - 1)
            x ^= x >> 7
            states[i] = x ^ (x << 17 & (2**64 - 1))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_analytic_variance_is_exact_for_a_mask_before_the_last_layer(p):
    """With a first layer whose units are all 0, the first mask has nothing to drop and the closed form is known."""
    critic, obs, action = random_critic()
    with torch.no_grad():
        critic.layers[0].weight.zero_()
        critic.layers[0].bias.fill_(-1)
        h2 = critic.layers[1].bias.relu()  # (stack, 1, H)
        exact = p / (1 - p) * (h2 * critic.layers[2].weight.mT).square().sum(-1)  # (stack, 1)
    assert exact.min() > 0
    assert_close(uwac.analytic_dropout_variance(critic, obs, action, p), exact.expand(2, 32))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_analytic_variance_is_exact_where_no_unit_comes_near_0(p):
    """Four units a layer, all far above 0 under every mask: the variance over all 2^8 masks, by their probabilities."""
    critic, obs, action = random_critic(stack=1, hidden_dim=4)
    with torch.no_grad():
        for parameter in list(critic.parameters())[:4]:  # the weights and biases of both hidden layers
            parameter.abs_()
        critic.layers[1].bias.add_(10)
    obs, action = obs[:, :3].abs(), action[:, :3].abs()
    first, second, last = critic.layers
    mean = square = 0
    with torch.no_grad():
        h1 = first(torch.cat([obs, action], -1)).relu()
        for mask in torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 8):
            q = last(second(h1 * mask[:4] / (1 - p)).relu() * mask[4:] / (1 - p)).squeeze(-1)
            probability = (1 - p) ** mask.sum() * p ** (8 - mask.sum())
            mean, square = mean + probability * q, square + probability * q**2
    exact = square - mean**2
    assert_close(uwac.analytic_dropout_variance(critic, obs, action, p), exact, rtol=1e-4, atol=0)
    assert relative_rmse(uwac.mc_dropout_variance(critic, obs, action, p, 20_000), exact) < 0.05


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_analytic_variance_within_5_percent_of_20000_passes(p):
    """Relative root mean square error over 64 states of a random 256-256 critic; 1% of it is the passes' own."""
    critic, obs, action = random_critic()
    truth = uwac.mc_dropout_variance(critic, obs, action, p, 20_000)
    assert relative_rmse(uwac.analytic_dropout_variance(critic, obs, action, p), truth) < 0.05


def test_mc_variance_converges_and_is_unbiased():
    """T passes of a nearly normal Q have a relative error of sqrt(2 / (T - 1)); 100 estimates of 10 passes average out."""
    critic, obs, action = random_critic()
    truth = uwac.mc_dropout_variance(critic, obs, action, 0.1, 20_000)
    for passes in (25, 400):
        error = relative_rmse(uwac.mc_dropout_variance(critic, obs, action, 0.1, passes), truth)
        assert 0.7 < error / math.sqrt(2 / (passes - 1)) < 1.4
    few = torch.stack([uwac.mc_dropout_variance(critic, obs, action, 0.1, 10) for _ in range(100)])
    assert abs((few.mean(0) / truth).mean() - 1) < 0.03  # 1/T instead of 1/(T - 1) would miss by 10%


def test_mc_variance_is_that_of_the_critic_under_dropout():
    critic, obs, action = random_critic(hidden_dim=64, spectral_norm=True)
    with torch.no_grad():
        q = torch.stack([critic(obs, action, dropout=0.3) for _ in range(5000)])
        dropped = critic(obs, action, dropout=0.3)
    assert (dropped != critic(obs, action)).any()
    truth = uwac.mc_dropout_variance(critic, obs, action, 0.3, 5000)
    assert relative_rmse(q.var(0), truth) < 0.05


def test_no_dropout_no_variance():
    critic, obs, action = random_critic()
    assert (uwac.analytic_dropout_variance(critic, obs, action, 0.0) == 0).all()
    assert (uwac.mc_dropout_variance(critic, obs, action, 0.0, 5) == 0).all()


def test_weight_at_its_limits():
    """Var -> 0 gives the clip, Var -> infinity 0, and beta / Var between them."""
    variance = torch.tensor([0.0, 1e-30, 1.6, 4.0, 1e30, math.inf])
    assert_close(
        uwac.uncertainty_weight(variance, 1.6, 1.5, "variance"), torch.tensor([1.5, 1.5, 1.0, 0.4, 1.6e-30, 0])
    )
    assert_close(uwac.uncertainty_weight(variance, 1.6, 1.5, "std")[[0, 3, 5]], torch.tensor([1.5, 0.8, 0]))
    assert_close(uwac.uncertainty_weight(variance, 0.5, 1.0, "exp")[[0, 3, 5]], torch.tensor([1, math.exp(-2), 0]))
    assert (uwac.uncertainty_weight(variance, 1.6, 1.5, "none") == 1).all()


def test_no_gradient_through_the_weight():
    variance = torch.tensor([1.0, 2.0], requires_grad=True)
    for weighting in ("variance", "std", "exp", "none"):
        assert not uwac.uncertainty_weight(variance, 1.6, 1.5, weighting).requires_grad
    critic, obs, action = random_critic()
    action.requires_grad_()
    assert not uwac.analytic_dropout_variance(critic, obs, action, 0.1).requires_grad
    assert not uwac.mc_dropout_variance(critic, obs, action, 0.1, 3).requires_grad


def test_spectral_norm_is_1_per_layer_and_critic():
    critic, obs, action = random_critic(stack=3, spectral_norm=True)
    for _ in range(2):
        for layer in critic.layers:
            assert_close(torch.linalg.matrix_norm(layer.weight, 2), torch.ones(3), atol=1e-3, rtol=0)
        before = critic(obs, action)
        with torch.no_grad():
            for layer in critic.layers:  # other weights, of norms above and below 1, want other singular vectors
                layer.parametrizations.weight.original.copy_(torch.randn_like(layer.weight) * torch.rand(3, 1, 1) * 5)
        for _ in range(500):
            critic.power_iteration()
        assert not torch.allclose(before, critic(obs, action))


def test_without_spectral_norm_weights_are_the_parameters():
    critic, _, _ = random_critic()
    assert {name for name, _ in critic.named_parameters()} == {
        f"layers.{i}.{x}" for i in range(3) for x in ("weight", "bias")
    }


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_mmd(script, kernel):
    x, y = torch.randn(4, 3, 10, 5), torch.randn(4, 3, 10, 5) + 1
    value = script.mmd(x, y, kernel, 2.0)
    assert value.shape == (4, 3) and (value > 0.1).all()
    assert_close(script.mmd(y, x, kernel, 2.0), value)
    assert_close(script.mmd(x, x.flip(2), kernel, 2.0), torch.full((4, 3), 1e-3), atol=2e-4, rtol=0)  # sqrt(1e-6)

    def k(a, b):
        distance = (a - b).square().sum() if kernel == "gaussian" else (a - b).abs().sum()
        return math.exp(-distance / 4)

    a, b = x[1, 2], y[1, 2]
    squared = sum(k(a[i], a[j]) + k(b[i], b[j]) - 2 * k(a[i], b[j]) for i in range(10) for j in range(10)) / 100
    assert value[1, 2].item() == pytest.approx(math.sqrt(squared + 1e-6), rel=1e-4)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_mmd_has_a_finite_gradient_at_distance_zero(script, kernel):
    x = torch.randn(2, 4, 3, requires_grad=True)
    script.mmd(x, x.detach().clone(), kernel, 20.0).sum().backward()
    assert x.grad.isfinite().all()


def test_many_passes_leave_no_memory_behind(monkeypatch):
    """What passes leave, 256 numbers each, must not pin the 0.5 MB that each works in: 1,500 of them once held 0.7 GB."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    sizes, variance = [], torch.Tensor.var
    monkeypatch.setattr(torch.Tensor, "var", lambda *args: (sizes.append(resident()), variance(*args))[1])
    torch.empty(8_000_000)  # as the agent does
    inputs = uwac.Critic(2, 39, 28), torch.randn(2, 256, 39), torch.rand(2, 256, 28), 0.1
    for passes in (5, 1500):
        uwac.mc_dropout_variance(*inputs, passes)
    assert sizes[1] - sizes[0] < 50e6
