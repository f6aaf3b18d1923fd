"""Parity with the authors' published code: golden.npz holds inputs, weights and outputs recorded from it, in float32.

Linear weights are (out, in) there. Hidden sizes are reduced (critic and actor 64, VAE 48), which changes no formula.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import uwac

GOLDEN = {name: torch.tensor(array) for name, array in np.load(Path(__file__).parent / "golden.npz").items()}
USED = set()


def golden(name):
    USED.add(name)
    return GOLDEN[name]


def copy_linear(layer, weights, biases):
    """Write golden layers into one stacked layer, one a stack element; several in a list are joined along `out`."""
    with torch.no_grad():
        layer.weight.copy_(torch.stack([torch.cat([golden(name).T for name in names], 1) for names in weights]))
        layer.bias.copy_(torch.stack([torch.cat([golden(name) for name in names])[None] for names in biases]))


@pytest.fixture
def inputs():
    """The 32 states and actions, once for each of the two critics."""
    return golden("obs").expand(2, -1, -1), golden("act").expand(2, -1, -1)


def golden_critic(script, **kwargs):
    critic = script.Critic(2, 39, 28, hidden_dim=64, **kwargs)
    for i, layer in enumerate(critic.layers):
        copy_linear(layer, [[f"q{c}_w{i}"] for c in (1, 2)], [[f"q{c}_b{i}"] for c in (1, 2)])
    return critic


def both(name):
    return torch.stack([golden(f"q1_{name}"), golden(f"q2_{name}")])


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
@pytest.mark.parametrize("sigma", [10, 20])
def test_mmd(script, kernel, sigma):
    assert_close(
        script.mmd(golden("mmd_x"), golden("mmd_y"), kernel, sigma),
        golden(f"mmd_{kernel}_{sigma}"),
        atol=1e-6,
        rtol=1e-5,
    )


def test_critic_without_dropout(script, inputs):
    critic = golden_critic(script)
    assert_close(critic(*inputs), both("no_dropout"), atol=1e-6, rtol=1e-5)
    candidates = torch.stack([inputs[1], -inputs[1]], dim=2)  # (stack, B, 2, A)
    assert_close(critic(inputs[0], candidates)[:, :, 0], both("no_dropout"), atol=1e-6, rtol=1e-5)


def test_mean_and_variance_under_dropout(inputs):
    """Golden variances are of 40,000 passes and have a relative standard error of sqrt(2 / 40,000) = 0.7%."""
    critic, p = golden_critic(uwac), float(golden("drop_rate"))
    mean, variance = both("dropout_mean"), both("dropout_var")
    many = [x.repeat(1, 200, 1) for x in inputs]
    with torch.no_grad():
        q = torch.cat([critic(*many, dropout=p).unflatten(1, (200, 32)) for _ in range(100)], 1).transpose(0, 1)
    assert ((q.mean(0) - mean).abs() < 5 * (variance * (1 / 20_000 + 1 / 40_000)).sqrt()).all()
    for estimate in (q.var(0), uwac.mc_dropout_variance(critic, *inputs, p, 20_000)):
        assert_close(estimate, variance, atol=0, rtol=5 * (2 / 20_000 + 2 / 40_000) ** 0.5)
    analytic = uwac.analytic_dropout_variance(critic, *inputs, p)
    assert abs((analytic / variance).mean() - 1) < 0.03 and (analytic / variance - 1).square().mean().sqrt() < 0.08
    assert ((critic(*inputs) - mean).abs() < 0.25 * variance.sqrt()).all()  # what the dropout-off pass leaves out


def test_spectral_norm():
    """The singular values by which W / sigma divides are the authors'."""
    plain, normed = golden_critic(uwac), uwac.Critic(2, 39, 28, hidden_dim=64, spectral_norm=True)
    for i, (layer, source) in enumerate(zip(normed.layers, plain.layers)):
        with torch.no_grad():
            layer.parametrizations.weight.original.copy_(source.weight)
        for _ in range(300):
            normed.power_iteration()
        sigma = (source.weight / layer.weight).mean((1, 2))
        assert_close(sigma, both(f"sigma{i}"), atol=0, rtol=1e-3)


def test_target_and_weights():
    q1, q2 = golden("cand_q1"), golden("cand_q2")
    target = (0.75 * torch.minimum(q1, q2) + 0.25 * torch.maximum(q1, q2)).amax(1)
    assert_close(target, golden("cand_target"))  # that Agent.update takes this maximum is in test_update.py
    variance = golden("weight_var")
    assert_close(uwac.uncertainty_weight(variance, 1.6, 1.5, "variance"), golden("weight_inverse_beta1.6_clip1.5"))
    assert_close(uwac.uncertainty_weight(variance, 0.5, 1.0, "exp"), golden("weight_exp_beta0.5_clip1.0"))


def test_behavior_vae(script):
    vae, obs, act = script.BehaviorVAE(1, 39, 28, hidden_dim=48), golden("obs")[None], golden("act")[None]
    for layer, names in zip(vae.encoder.layers, (["e1"], ["e2"], ["mean", "log_std"])):
        copy_linear(layer, [[f"vae_{n}_w" for n in names]], [[f"vae_{n}_b" for n in names]])
    for layer, name in zip(vae.decoder.layers, ("d1", "d2", "d3")):
        copy_linear(layer, [[f"vae_{name}_w"]], [[f"vae_{name}_b"]])
    close = {"atol": 1e-5, "rtol": 1e-4}
    mean, log_std = vae.encoder(torch.cat([obs, act], -1)).chunk(2, -1)
    std = log_std.clamp(-4, 15).exp()
    assert_close(mean[0], golden("vae_mean"), **close)
    assert_close(std[0], golden("vae_std"), **close)
    noise = golden("vae_eps")[None]
    assert_close(vae.decoder(torch.cat([obs, mean + std * noise], -1)).tanh()[0], golden("vae_recon"), **close)
    assert_close(vae.loss(obs, act, noise)[0], golden("vae_loss"), **close)
    raw = vae.decoder(obs, golden("vae_z")[None])[0]
    assert_close(raw, golden("vae_decode_raw"), **close)
    assert_close(raw.tanh(), golden("vae_decode_tanh"), **close)


def test_actor(script):
    actor = script.Actor(1, 39, 28, hidden_dim=64)
    for layer, names in zip(actor.layers, (["w0"], ["w1"], ["mean", "log_std"])):
        copy_linear(layer, [[f"pi_{n}_w" for n in names]], [[f"pi_{n}_b" for n in names]])
    mean, log_std = actor(golden("obs")[None])
    assert_close(mean[0], golden("pi_mean"), atol=1e-5, rtol=1e-4)
    assert_close(log_std[0], golden("pi_log_std"), atol=1e-5, rtol=1e-4)


def test_every_golden_array_is_used(request):
    """Runs last in this file; only where the whole file ran can it say anything."""
    ran = {item.originalname for item in request.session.items if item.path == request.path}
    if len(ran) < 8:
        pytest.skip("only a part of this file was selected")
    assert set(GOLDEN) == USED
