"""Formulas of the networks give the numbers of the authors' code.

golden/ml_uwac.npz holds inputs, weights and outputs recorded from it: 32 door states and actions
(D = 39, A = 28), hidden layers of 64, of 48 in the VAE. Matrices of weights are (out, in) there.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import uwac

ARRAYS = np.load(Path(__file__).parent / "golden" / "ml_uwac.npz")
GOLDEN = {name: torch.tensor(array) for name, array in ARRAYS.items()}
STATES = GOLDEN["obs"].unsqueeze(0)  # (S, B, D)
ACTIONS = GOLDEN["act"].unsqueeze(0)  # (S, B, A)


def both(name):
    """An array of q1 and of q2, with S in between: (2, S, ...)."""
    return torch.stack([GOLDEN[f"q1_{name}"], GOLDEN[f"q2_{name}"]]).unsqueeze(1)


def set_layers(network, *names):
    """Set a network of one seed from the arrays NAMES, weights and biases of heads joined."""
    for layer, heads in zip(network.layers, names, strict=True):
        weight = torch.cat([GOLDEN[f"{head}_w"] for head in heads])
        bias = torch.cat([GOLDEN[f"{head}_b"] for head in heads])
        layer.weight.data = weight.T.unsqueeze(0)
        layer.bias.data = bias.expand(1, 1, -1)


def authors_critic(script):
    critic = script.Critic(1, 39, 28)
    for i, layer in enumerate(critic.layers):
        layer.weight.data = both(f"w{i}").mT
        layer.bias.data = both(f"b{i}").unsqueeze(2)
    return critic


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
@pytest.mark.parametrize("sigma", [10, 20])
def test_mmd(script, kernel, sigma):
    distance = script.mmd(GOLDEN["mmd_x"], GOLDEN["mmd_y"], kernel, sigma)
    assert_close(distance, GOLDEN[f"mmd_{kernel}_{sigma}"], atol=1e-6, rtol=1e-5)


def test_critic(script):
    critic = authors_critic(script)
    candidates = torch.stack([ACTIONS, -ACTIONS], dim=2)  # (S, B, N, A)
    expected = both("no_dropout")
    assert_close(critic(STATES, ACTIONS), expected, atol=1e-6, rtol=1e-5)
    assert_close(critic(STATES, candidates)[..., 0], expected, atol=1e-6, rtol=1e-5)


def test_actor(script):
    actor = script.Actor(1, 39, 28)
    set_layers(actor, ["pi_w0"], ["pi_w1"], ["pi_mean", "pi_log_std"])
    mean, log_std = actor(STATES)
    assert_close(mean[0], GOLDEN["pi_mean"], atol=1e-5, rtol=1e-4)
    assert_close(log_std[0], GOLDEN["pi_log_std"], atol=1e-5, rtol=1e-4)


def test_behavior_vae(script, monkeypatch):
    vae = script.BehaviorVAE(1, 39, 28)
    set_layers(vae.encoder, ["vae_e1"], ["vae_e2"], ["vae_mean", "vae_log_std"])
    set_layers(vae.decoder, ["vae_d1"], ["vae_d2"], ["vae_d3"])
    mean, log_std = vae.encoder(script.rows(STATES, ACTIONS)).chunk(2, dim=-1)
    assert_close(mean[0], GOLDEN["vae_mean"], atol=1e-5, rtol=1e-4)
    assert_close(log_std[0].clamp(-4, 15).exp(), GOLDEN["vae_std"], atol=1e-5, rtol=1e-4)

    noise = GOLDEN["vae_eps"].unsqueeze(0)
    monkeypatch.setattr(torch, "randn_like", lambda _: noise)
    assert_close(vae.loss(STATES, ACTIONS)[0], GOLDEN["vae_loss"], atol=1e-5, rtol=1e-4)

    latent = GOLDEN["vae_z"].unsqueeze(0)  # (S, B, N, 2 A)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: latent)
    decoded = vae.sample(STATES, 10)[0]  # before the tanh
    assert_close(decoded, GOLDEN["vae_decode_raw"], atol=1e-5, rtol=1e-4)
    assert_close(decoded.tanh(), GOLDEN["vae_decode_tanh"], atol=1e-5, rtol=1e-4)


def test_variance_under_dropout():
    """Theirs is of 40,000 passes, a relative standard error of sqrt(2 / 40,000) = 0.7%."""
    critic = authors_critic(uwac)
    p = GOLDEN["drop_rate"].item()
    variance = both("dropout_var")
    sampled = uwac.mc_dropout_variance(critic, STATES, ACTIONS, p, 10_000)
    five_errors = 5 * (2 / 10_000 + 2 / 40_000) ** 0.5
    assert_close(sampled, variance, atol=0, rtol=five_errors)
    ratio = uwac.analytic_dropout_variance(critic, STATES, ACTIONS, p) / variance
    assert abs(ratio.mean() - 1) < 0.03
    assert (ratio - 1).square().mean().sqrt() < 0.08


def test_mean_under_dropout():
    """The regression's passes; one without dropout is off by at most a quarter of the deviation."""
    critic = authors_critic(uwac)
    p = GOLDEN["drop_rate"].item()
    mean = both("dropout_mean")
    variance = both("dropout_var")
    many_states = STATES.repeat(1, 4_000, 1)
    many_actions = ACTIONS.repeat(1, 4_000, 1)
    with torch.no_grad():
        q = critic(many_states, many_actions, p).unflatten(2, (4_000, 32))  # (2, S, passes, B)
        without = critic(STATES, ACTIONS)
    error = (variance / 4_000 + variance / 40_000).sqrt()
    assert ((q.mean(2) - mean).abs() < 5 * error).all()
    assert_close(q.var(2), variance, atol=0, rtol=5 * (2 / 4_000 + 2 / 40_000) ** 0.5)
    assert ((without - mean).abs() < 0.25 * variance.sqrt()).all()


def test_spectral_norm():
    """The singular values by which weights are divided are the authors'."""
    for i, layer in enumerate(authors_critic(uwac).layers):
        divided = uwac.SpectralNorm(layer.weight)(layer.weight)
        sigma = (layer.weight / divided).mean((-2, -1))
        assert_close(sigma, both(f"sigma{i}"), atol=0, rtol=1e-3)


def test_uncertainty_weight():
    variance = GOLDEN["weight_var"]
    inverse = uwac.uncertainty_weight(variance, 1.6, 1.5, "variance")
    exponential = uwac.uncertainty_weight(variance, 0.5, 1.0, "exp")
    assert_close(inverse, GOLDEN["weight_inverse_beta1.6_clip1.5"])
    assert_close(exponential, GOLDEN["weight_exp_beta0.5_clip1.0"])


def test_target(script, monkeypatch):
    """The mean of the 32 targets that an update makes of 10 candidates each."""
    q = torch.stack([GOLDEN["cand_q1"], GOLDEN["cand_q2"]]).unsqueeze(1)  # (2, S, B, N)
    args = script.Args(batch_size=32, num_candidates=10, gamma=1.0)
    agent = script.Agent(args, 39, 28)
    monkeypatch.setattr(agent.target_critic, "forward", lambda *_: q)
    nothing = torch.zeros(32)
    data = [GOLDEN["obs"], GOLDEN["act"], nothing, GOLDEN["obs"], nothing]
    metrics = script.update(agent, data, 1, args)
    assert_close(metrics["target_q"], GOLDEN["cand_target"].mean().expand(1))
