"""What recorded numbers (test_lockstep.py) do not show of uwac.py's networks, estimates of Var[Q],
weights, actions and `update`, nor of benchmark/'s agents."""

import copy
import math

import numpy as np
import pytest
import torch
from conftest import zeroed
from torch.testing import assert_close

import uwac
from benchmark.measure import speed
from benchmark.variants import ensembles, uwac_code, what_bounds_q

OF_BEAR = {"weighting": "none", "dropout": 0.0}


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
    critic = uwac.Critic(2, obs_dim=39, action_dim=28, spectral_norm=True).double()
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

    x, y = 3000 + torch.randn(2, 5, 40, 3)
    squared = mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)
    assert_close(uwac.mmd(x, y, kernel, 7.0), (squared + 1e-6).sqrt(), rtol=1e-4, atol=0)
    x = torch.zeros(2, 4, 3, requires_grad=True)
    equal = uwac.mmd(x, x.detach().clone(), kernel, 20.0)
    equal.sum().backward()
    assert_close(equal.detach(), torch.full((2,), 1e-3))
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
    four = np.concatenate([obs, obs])
    for wrong in (obs[..., 1:], obs[..., :1], obs[:1], four, obs[None], obs[0, 0, 0]):
        with pytest.raises(ValueError, match="^observations .* are not "):
            agent.act(wrong)


def critic_and_pairs():
    """Critics with larger weights than untrained ones', and 32 states and actions of each seed."""
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
    """Without dropout in Q1."""
    agent = script.Agent(script.Args(num_seeds=2), obs_dim=5, action_dim=2)
    obs = torch.randn(2, 4, 5)
    candidates = torch.randn(2, 4, 30, 2)
    q = torch.randn(2, 2, 4, 30)
    asked = []
    monkeypatch.setattr(agent.actor, "sample", lambda obs, num: candidates[:, :, :num])
    monkeypatch.setattr(agent.critic, "forward", lambda *pairs: asked.append(pairs) or q)
    action = torch.tensor(agent.act(obs.numpy(), 30))
    best = q[0].argmax(-1)[:, :, None, None]
    assert_close(action, candidates.tanh().take_along_dim(best, dim=2).squeeze(2))
    ((of_obs, of_candidates),) = asked
    assert torch.equal(of_obs, obs) and torch.equal(of_candidates, candidates.tanh())


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


def test_noise_is_in_targets_and_in_the_actors_loss_and_in_the_choice(monkeypatch):
    """ml-uwac's, whose Var[Q] is 4 here: around Q, which is 0, noise has a std of 0.2, and the
    expected minimum of two normal numbers is -std / sqrt(pi)."""
    constant = lambda critic, obs, action, p: torch.full((2, *action.shape[:-1]), 4.0)
    monkeypatch.setattr(uwac, "analytic_dropout_variance", constant)
    settings = {"batch_size": 5_000, "num_candidates": 1, "lmbda": 1.0, "passes": 100}
    settings |= {"variance": "analytic", "spectral_norm": False, "critic_lr": 0.0}
    noisy = uwac_code.Agent(uwac_code.Args(**settings), 3, 2)
    zeroed(noisy.critic.layers[2], noisy.target_critic.layers[2])
    assert noisy.optimizers["critic"].param_groups[0]["params"] == [*noisy.critic.parameters()]
    n = 100
    data = [torch.rand(n, 3), torch.rand(n, 2), torch.ones(n), torch.rand(n, 3), torch.zeros(n)]
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
    """The control's weights in both losses, UWAC's own, and the smaller Q: two seeds, 50 states."""
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
