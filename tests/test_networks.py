"""Networks, their initial weights, and MMD. (test_lockstep.py: their forward passes.)"""

import math

import lockstep
import pytest
import torch
from test_lockstep import BEAR
from torch.testing import assert_close

import uwac


def assert_uniform(x, limit):
    """Numbers from -limit to limit; their mean magnitude to five of its standard errors."""
    assert 0 < x.abs().max() <= limit
    assert x.abs().mean().item() == pytest.approx(limit / 2, rel=3 / x.numel() ** 0.5)


def assert_initial(weights, last_limit):
    """As the authors draw them (as rlkit does, on which their code stands)."""
    w0, b0, w1, b1, w2, b2 = weights
    assert_uniform(w0, w0.shape[-1] ** -0.5)  # of a layer's outputs, not of its inputs
    assert_uniform(w1, w1.shape[-1] ** -0.5)
    assert (b0 == 0.1).all() and (b1 == 0.1).all()
    assert_uniform(w2, last_limit)
    assert_uniform(b2, last_limit)


def test_authors_initial_weights():
    recorded, _ = lockstep.read(BEAR)
    assert_initial(lockstep.weights(recorded, "init", "actor"), 0.001)
    assert_initial(lockstep.weights(recorded, "init", "critic"), 0.003)


def test_initial_weights(script):
    args = script.Args(env_id="hopper-medium-v2")  # no spectral norm
    agent = script.Agent(args, obs_dim=11, action_dim=3)
    assert_initial(agent.actor.parameters(), 0.001)
    assert_initial(agent.critic.parameters(), 0.003)
    for network in (agent.vae.encoder, agent.vae.decoder):
        for layer in network.layers:  # as torch.nn.Linear
            limit = layer.weight.shape[-2] ** -0.5
            assert_uniform(layer.weight, limit)
            assert_uniform(layer.bias, limit)


def test_targets_start_as_copies(script):
    agent = script.Agent(script.Args(), obs_dim=11, action_dim=3)
    pairs = ((agent.target_critic, agent.critic), (agent.target_actor, agent.actor))
    for target, network in pairs:
        state = network.state_dict()
        for name, tensor in target.state_dict().items():
            assert tensor.equal(state[name])
            assert tensor.data_ptr() != state[name].data_ptr()


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
    v = layer.parametrizations.weight[0].v[1, 0]
    u = weight @ v
    v = weight.T @ u
    sigma = (weight @ v).norm() / v.norm()
    critic.power_iteration()
    assert_close(layer.weight[1, 0].T, weight / sigma)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
@pytest.mark.parametrize("sigma", [10, 20])
def test_mmd_is_that_of_the_authors_code(script, authors, kernel, sigma):
    distance = script.mmd(authors["mmd_x"], authors["mmd_y"], kernel, sigma)
    assert_close(distance, authors[f"mmd_{kernel}_{sigma}"], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_mmd_of_equal_samples_has_a_finite_gradient(script, kernel):
    x = torch.randn(2, 4, 3, requires_grad=True)
    value = script.mmd(x, x.detach().clone(), kernel, 20.0)
    value.sum().backward()
    assert_close(value, torch.full((2,), 1e-3), atol=5e-4, rtol=0)
    assert x.grad.isfinite().all()


def test_mmd_names_its_kernels(script):
    with pytest.raises(KeyError, match="rbf"):
        script.mmd(torch.randn(2, 3), torch.randn(2, 3), "rbf", 20.0)


def test_mmd_of_many_samples_is_exact(script):
    """Far from the origin distances by matrix products, cdist's way above 25 samples, are noise."""
    x, y = 3000 + torch.randn(2, 5, 40, 3)
    exact = script.mmd(x.double(), y.double(), "gaussian", 20.0).float()
    assert_close(script.mmd(x, y, "gaussian", 20.0), exact, rtol=1e-3, atol=0)
