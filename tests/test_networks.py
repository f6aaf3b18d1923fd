"""Networks and MMD, where the authors' numbers (test_parity.py) say nothing."""

import math

import pytest
import torch
from torch.testing import assert_close

import uwac


def test_log_std_of_the_vae_stays_from_minus_4_to_15(script):
    """Seen in the loss, where the decoder gives 0: half the KL of such a standard deviation."""
    vae = script.BehaviorVAE(1, obs_dim=5, action_dim=2)
    for parameter in vae.parameters():
        torch.nn.init.zeros_(parameter)
    for bias, log_std in ((-1e3, -4.0), (1e3, 15.0)):
        vae.encoder.layers[2].bias.data[..., vae.latent_dim :] = bias
        variance = math.exp(2 * log_std)
        kl = -0.5 * (1 + 2 * log_std - variance)
        loss = vae.loss(torch.randn(1, 6, 5), torch.zeros(1, 6, 2))
        assert loss.item() == pytest.approx(0.5 * kl)


def test_power_iteration_is_a_step_of_miyato():
    """Their algorithm 1 on one of the matrices, W (out, in): u from v, v from u, sigma = |W v|."""
    critic = uwac.Critic(1, obs_dim=39, action_dim=28, spectral_norm=True)
    layer = critic.layers[1]
    assert_close(torch.linalg.matrix_norm(layer.weight, 2), torch.ones(2, 1))  # at the start
    original = layer.parametrizations.weight.original
    original.data = torch.randn_like(original)
    weight = original[1, 0].T
    v = layer.parametrizations.weight[0].u[1, 0]
    u = weight @ v
    v = weight.T @ u
    sigma = (weight @ v).norm() / v.norm()
    critic.power_iteration()
    assert_close(layer.weight[1, 0].T, weight / sigma)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_mmd_by_hand(script, kernel):
    """Two samples of one number each: at 0 and 1, and at 3 and 5; the width is 2."""
    x = torch.tensor([[0.0], [1.0]])
    y = torch.tensor([[3.0], [5.0]])

    def k(distance):
        return math.exp(-(distance**2 if kernel == "gaussian" else distance) / 4)

    among_x = (2 + 2 * k(1)) / 4
    among_y = (2 + 2 * k(2)) / 4
    between = (k(3) + k(5) + k(2) + k(4)) / 4
    expected = math.sqrt(among_x + among_y - 2 * between + 1e-6)
    assert script.mmd(x, y, kernel, 2.0).item() == pytest.approx(expected)
    assert script.mmd(y, x, kernel, 2.0).item() == pytest.approx(expected)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_mmd_of_equal_samples_has_a_finite_gradient(script, kernel):
    x = torch.randn(2, 4, 3, requires_grad=True)
    value = script.mmd(x, x.detach().clone(), kernel, 20.0)
    value.sum().backward()
    assert_close(value, torch.full((2,), 1e-3), atol=5e-4, rtol=0)
    assert x.grad.isfinite().all()


def test_mmd_names_its_kernels(script):
    with pytest.raises(script.InputError, match="'rbf': must be gaussian or laplacian"):
        script.mmd(torch.randn(2, 3), torch.randn(2, 3), "rbf", 20.0)
