"""What recorded numbers (test_lockstep.py) do not show of uwac.py's networks, estimates of Var[Q],
weights, actions and `update`."""

import copy
import math

import numpy as np
import pytest
import torch
from conftest import zeroed
from torch.testing import assert_close

import uwac


def test_log_std_of_the_vae_stays_from_minus_4_to_15():
    """Seen in the loss, where the decoder gives 0: half the KL of such a standard deviation."""
    vae = uwac.BehaviorVAE(1, obs_dim=5, action_dim=2)
    zeroed(vae)
    for bias, log_std in ((-1e3, -4.0), (1e3, 15.0)):
        vae.encoder.layers[2].bias.data[..., vae.latent_dim :] = bias
        kl = -0.5 * (1 + 2 * log_std - math.exp(2 * log_std))
        loss = vae.loss(torch.randn(1, 6, 5), torch.zeros(1, 6, 2))
        assert loss.item() == pytest.approx(0.5 * kl)


def test_spectral_norm():
    """The largest singular value is 1, and the gradient is that of W / sigma."""
    critic = uwac.Critic(uwac.Args(num_seeds=2), obs_dim=39, action_dim=28).double()
    one = torch.ones(2, 2, dtype=torch.double)
    for layer in critic.layers:
        assert_close(torch.linalg.matrix_norm(layer.weight, 2), one, rtol=1e-6, atol=0)
        weight = layer.parametrizations.weight.original
        weight.data = torch.randn_like(weight) + 0.2  # a largest value far from the next one
        for _ in range(30):
            critic.power_iteration()
        assert_close(torch.linalg.matrix_norm(layer.weight, 2), one)
        loss = torch.randn_like(weight)
        exact = weight / torch.linalg.matrix_norm(weight, 2)[..., None, None]
        (gradient,) = torch.autograd.grad((layer.weight * loss).sum(), weight)
        assert_close(gradient, torch.autograd.grad((exact * loss).sum(), weight)[0])


@pytest.mark.parametrize("kernel, power", [("gaussian", 2), ("laplacian", 1)])
def test_mmd(kernel, power):
    """By hand, far from the origin, where distances by matrix products (of cdist) are noise."""

    def mean_kernel(a, b):
        distance = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs().pow(power).sum(-1)
        return torch.exp(-distance / (2 * 7.0)).mean((-1, -2))

    x, y = 3000 + torch.randn(2, 2, 5, 40, 3)
    squared = mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)
    assert_close(uwac.mmd(x, y, kernel, 7.0), (squared + 1e-6).sqrt(), rtol=1e-4, atol=0)
    x = torch.zeros(1, 2, 4, 3, requires_grad=True)
    equal = uwac.mmd(x, x.detach().clone(), kernel, 20.0)
    equal.sum().backward()
    assert_close(equal.detach(), torch.full((1, 2), 1e-3))
    assert x.grad.isfinite().all()


def test_act_takes_one_state_shared_states_and_each_seeds_own(script):
    """With hardly any noise an action is the tanh of the mean."""
    agent = script.Agent(script.Args("Own-v0", num_seeds=2), 5, 2)
    agent.actor.layers[2].weight.data *= 1000
    agent.actor.layers[2].weight.data[..., 2:] = 0
    agent.actor.layers[2].bias.data[..., 2:] = -9
    obs = np.random.default_rng(0).normal(size=(2, 20, 5)).astype(np.float32)
    mean, _ = agent.actor(torch.as_tensor(obs))
    expected = mean.tanh().numpy(force=True)
    assert (np.ptp(expected, axis=(0, 1)) > 0.5).all()
    for given, wanted in ((obs, expected), (obs[0, 7], expected[:, 7]), (obs[0], expected)):
        found = agent.act(given, num=1)
        np.testing.assert_allclose(found[0], wanted[0], atol=0.05)
        assert found.shape == wanted.shape == agent.act(given, num=3).shape


def critic_and_pairs():
    """Critics with larger weights than untrained ones', and 32 states and actions of each seed."""
    critic = uwac.Critic(uwac.Args("Own-v0", num_seeds=2), obs_dim=39, action_dim=28)
    for layer in critic.layers:
        bound = layer.weight.shape[-2] ** -0.5
        layer.weight.data.uniform_(-bound, bound)
    return critic, torch.randn(2, 32, 39), torch.rand(2, 32, 28) * 2 - 1


@torch.no_grad()
def plain_passes(critic, obs, action, p, T):
    """Var[Q1] + Var[Q2] by T passes that compute the second layer anew, under the masks that
    uwac.mc_dropout_variance draws from the same seed: obs (S, B, D), action (S, B, A) -> (S, B)."""
    first, second, last = critic.layers
    h1 = first(uwac.concat(obs, action)).relu_()  # (2, S, B, H)
    kept = torch.rand(2, T, *last.weight.shape[:-1], device=h1.device) >= p
    masks = (kept / (1 - p)).unsqueeze(-2)  # (2, T, 2, S, 1, H)
    q = []
    for mask1, mask2 in zip(*masks):
        h2 = ((h1 * mask1) @ second.weight).add_(second.bias).relu_()
        q.append((h2 * (mask2 * last.weight.mT)).sum(-1))
    return torch.stack(q).var(0).sum(0)


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("as_on_a_gpu", [False, True])
def test_mc_is_the_variance_of_plain_passes(p, as_on_a_gpu, monkeypatch):
    """With a mask of its own for each layer, critic and seed, and the same one for all rows."""
    critic, obs, action = critic_and_pairs()
    torch.manual_seed(3)
    expected = plain_passes(critic, obs, action, p, 7)
    monkeypatch.setattr(torch.Tensor, "is_cuda", as_on_a_gpu)
    torch.manual_seed(3)
    found = uwac.mc_dropout_variance(critic, obs, action, p, 7).sum(0)
    assert_close(found, expected, rtol=1e-4 if as_on_a_gpu else 1e-5, atol=0)


@pytest.mark.parametrize("as_on_a_gpu", [False, True])
def test_both_estimates_take_candidates(as_on_a_gpu, monkeypatch):
    """Several actions of a state are as the same actions of copies of the state."""
    critic, obs, _ = critic_and_pairs()
    candidates = torch.rand(2, 32, 3, 28) * 2 - 1
    monkeypatch.setattr(torch.Tensor, "is_cuda", as_on_a_gpu)
    for estimate in (uwac.analytic_dropout_variance,
                     lambda *given: uwac.mc_dropout_variance(*given, passes=4)):  # fmt: skip
        torch.manual_seed(3)
        found = estimate(critic, obs, candidates, 0.1)
        torch.manual_seed(3)
        flat = estimate(critic, obs.repeat_interleave(3, 1), candidates.flatten(1, 2), 0.1)
        assert_close(found, flat.unflatten(-1, (32, 3)))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_analytic_is_the_variance_of_many_passes(p):
    """Of 2,000, which have a relative standard error of sqrt(2 / 2,000) = 3.2%."""
    critic, obs, action = critic_and_pairs()
    sampled = uwac.mc_dropout_variance(critic, obs, action, p, 2000)
    ratio = uwac.analytic_dropout_variance(critic, obs, action, p) / sampled
    assert abs(ratio.mean() - 1) < 0.05
    assert (ratio - 1).square().mean().sqrt() < 0.07


@pytest.mark.parametrize("loss", ["critic", "actor"])
def test_the_weight_by_hand(loss):
    """beta / Var, at most the clip, whatever Q and loss; from no variance to an infinite one."""
    variance = torch.tensor([[0.0, 1.6, 4.0, math.inf]])
    args = uwac.Args("Own-v0", beta=1.6, weight_clip=1.5)
    agent = uwac.Agent(args, 5, 2)
    found = agent.weigh(variance, torch.randn(1, 4), loss)
    assert_close(found, torch.tensor([[1.5, 1.0, 0.4, 0.0]]))
    args.weight_clip = 0.5
    assert agent.weigh(variance, torch.randn(1, 4), loss).max() == 0.5


def transitions():
    obs, next_obs = torch.randn(2, 40, 5)
    done = (torch.rand(40) < 0.3).to(obs.dtype)
    return [obs, torch.rand(40, 2) * 2 - 1, torch.randn(40), next_obs, done]


def small(script, **changes):
    """Q enters the actor's loss at once, and the target critics are others than the critics."""
    settings = {"batch_size": 6, "num_candidates": 4, "num_mmd_samples": 3, "warmup_steps": 0}
    settings |= {"variance": "analytic"} if script is uwac else {}
    args = script.Args(**settings | changes)
    torch.manual_seed(1)
    agent = script.Agent(args, obs_dim=5, action_dim=2)
    for network in (agent.actor, agent.target_actor, agent.critic, agent.target_critic):
        for parameter in network.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
    return agent


def test_each_learning_rate_moves_its_own_network_alone_and_targets_follow(script):
    """By Adam's first step, which is the learning rate."""
    networks = {"actor_lr": "actor", "critic_lr": "critic", "vae_lr": "vae", "dual_lr": "log_alpha"}
    for rate, network in networks.items():
        agent = small(script, tau=0.1, **(dict.fromkeys(networks, 0.0) | {rate: 0.01}))
        before = copy.deepcopy(dict(agent.named_parameters()))
        script.update(agent, transitions(), 1)
        after = dict(agent.named_parameters())
        for name, old in before.items():
            if name.startswith("target_"):
                source = after[name.removeprefix("target_")]
                assert_close(after[name], 0.9 * old + 0.1 * source)
                continue
            distance = (after[name] - old).abs().max().item()
            expected = 0.01 if name.split(".")[0] == network else 0
            assert distance == pytest.approx(expected, rel=1e-3), name


@pytest.mark.parametrize("threshold, sign, limit", [(0.0, 1, 10), (1e3, -1, -5)])
def test_log_alpha_stays_from_minus_5_to_10(script, threshold, sign, limit):
    """It grows where MMD is above its threshold; Adam's first step is the learning rate."""
    agent = small(script, mmd_threshold=threshold, dual_lr=0.1)
    agent.log_alpha.data.fill_(limit - 0.15 * sign)
    script.update(agent, transitions(), 1)
    assert agent.log_alpha.item() == pytest.approx(limit - 0.05 * sign, rel=1e-3)
    script.update(agent, transitions(), 2)
    assert agent.log_alpha.item() == limit


def test_the_candidate_of_the_largest_q1_acts(script, monkeypatch):
    """Without dropout in Q1; unless told, of as many as an evaluation has."""
    args = script.Args(num_seeds=2, eval_candidates=20)
    agent = script.Agent(args, obs_dim=5, action_dim=2)
    obs = torch.randn(2, 4, 5)
    candidates = torch.randn(2, 4, 30, 2)
    q = torch.randn(2, 2, 4, 30)
    asked = []
    monkeypatch.setattr(agent.actor, "sample", lambda obs, num: candidates[:, :, :num])
    of = lambda obs, actions: asked.append((obs, actions)) or q[..., : actions.shape[2]]
    monkeypatch.setattr(agent.critic, "forward", of)
    action = torch.tensor(agent.act(obs.numpy(), 30))
    best = q[0].argmax(-1)[:, :, None, None]
    assert_close(action, candidates.tanh().take_along_dim(best, dim=2).squeeze(2))
    ((of_obs, of_candidates),) = asked
    agent.act(obs.numpy())
    assert torch.equal(asked[1][1], candidates[:, :, :20].tanh())
    assert torch.equal(of_obs, obs) and torch.equal(of_candidates, candidates.tanh())
