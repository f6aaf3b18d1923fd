"""Agent.update against Algorithm 1 written a second time, without stacks, and a stack of agents against single ones."""

import copy
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import bear
import uwac

OBS_DIM, ACTION_DIM, STEPS = 5, 2, 40
NETWORKS = ("actor", "critic", "vae", "target_actor", "target_critic")


@pytest.fixture(autouse=True)
def double():
    """In float64 the order of sums shows in the 15th digit, and every comparison can be tight."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def transitions():
    rng = np.random.default_rng(0)
    data = {"obs": rng.normal(size=(STEPS, OBS_DIM)), "action": rng.uniform(-1, 1, (STEPS, ACTION_DIM))}
    data |= {"reward": rng.normal(size=STEPS), "next_obs": rng.normal(size=(STEPS, OBS_DIM))}
    return data | {"done": (rng.random(STEPS) < 0.3).astype(float)}


def make_agent(script, **changes):
    """A small agent whose Q enters the actor's loss at once, and whose targets differ from the networks."""
    if script is uwac:
        changes = {"variance": "analytic", "weight_clip": 500.0, "spectral_norm": False} | changes
    args = script.Args(**{"batch_size": 6, "num_candidates": 4, "num_mmd_samples": 3, "warmup_steps": 0} | changes)
    torch.manual_seed(1)
    agent = script.Agent(args, transitions(), torch.device("cpu"))
    with torch.no_grad():
        for parameter in (*agent.target_actor.parameters(), *agent.target_critic.parameters()):
            parameter.add_(0.01 * torch.randn_like(parameter))
    return agent


def everything(agent):
    """All that an update changes, by name."""
    state = {f"{name}.{key}": value for name in NETWORKS for key, value in getattr(agent, name).state_dict().items()}
    return {key: value.clone() for key, value in (state | {"log_alpha": agent.log_alpha.detach()}).items()}


def record(monkeypatch, module, name):
    """Every value that `module.name` returns from now on."""
    original, values = getattr(module, name), []

    def recorded(*args, **kwargs):
        values.append(original(*args, **kwargs))
        return values[-1]

    monkeypatch.setattr(module, name, recorded)
    return values


def net(mlp, x, k=0, masks=(1, 1)):
    """Network k of a stack, layer by layer."""
    for layer, mask in zip(mlp.layers[:2], masks):
        x = (x @ layer.weight[k] + layer.bias[k]).clamp(min=0) * mask
    return x @ mlp.layers[2].weight[k] + mlp.layers[2].bias[k]


def for_each(obs, samples):
    """The states once more for each of their samples: (B, D) -> (B, N, D)."""
    return obs.unsqueeze(1).expand(-1, samples.shape[1], -1)


def two_q(critic, obs, action, masks=((1, 1), (1, 1))):
    x = torch.cat([obs, action], -1)
    return torch.stack([net(critic, x, k, masks[k]).squeeze(-1) for k in (0, 1)])


def gaussian(actor, obs, noise):
    mean, log_std = net(actor, obs).chunk(2, -1)
    return mean.unsqueeze(1) + log_std.clamp(-20, 2).exp().unsqueeze(1) * noise


def adam_step(parameters, lr, loss):
    parameters = list(parameters)
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
        parameter.grad = gradient
    torch.optim.Adam(parameters, lr).step()


def literal_update(script, agent, index, normals, masks):
    """Algorithm 1 for one seed, from the same random numbers; changes `agent` and returns the metrics."""
    args = agent.args
    obs, action, reward, next_obs, done = (array[index[0]] for array in agent.data)
    vae_noise, target_noise, actor_noise, latent = (noise[0] for noise in normals)
    weight = policy_weight = torch.ones(())
    m = {}

    mean, log_std = net(agent.vae.encoder, torch.cat([obs, action], -1)).chunk(2, -1)
    std = log_std.clamp(-4, 15).exp()
    decoded = net(agent.vae.decoder, torch.cat([obs, mean + std * vae_noise], -1)).tanh()
    kl = -0.5 * (1 + (std**2).log() - mean**2 - std**2)
    m["vae_loss"] = ((decoded - action) ** 2).mean() + 0.5 * kl.mean()
    adam_step(agent.vae.parameters(), args.vae_lr, m["vae_loss"])

    with torch.no_grad():
        candidates = gaussian(agent.target_actor, next_obs, target_noise).tanh()
        q1, q2 = two_q(agent.target_critic, for_each(next_obs, candidates), candidates)
        mixture = args.lmbda * torch.minimum(q1, q2) + (1 - args.lmbda) * torch.maximum(q1, q2)
        target = reward + args.gamma * (1 - done) * mixture.max(1).values
        if script is uwac:
            best = candidates[range(len(candidates)), mixture.argmax(1)].expand(2, -1, -1)
            var = uwac.analytic_dropout_variance(
                agent.target_critic, next_obs.expand(2, -1, -1), best, args.dropout
            ).sum(0)
            weight = (args.beta / var).clamp(max=args.weight_clip)
            m |= {"variance": var.mean(), "weight": weight.mean()}
            assert weight.min() < args.weight_clip < (args.beta / var).max()  # both branches are tried
    scaled = [mask / (1 - args.dropout) for mask in masks]  # of the first and the second hidden layer, for both critics
    q = two_q(agent.critic, obs, action, list(zip(*scaled)) or ((1, 1), (1, 1)))
    m["critic_loss"] = (weight * (q[0] - target) ** 2).mean() + (weight * (q[1] - target) ** 2).mean()
    adam_step(agent.critic.parameters(), args.critic_lr, m["critic_loss"])

    samples = gaussian(agent.actor, obs, actor_noise)
    likely = latent.clamp(-0.5, 0.5)
    data_samples = net(agent.vae.decoder, torch.cat([for_each(obs, likely), likely], -1)).detach()
    mmd = script.mmd(samples, data_samples, args.mmd_kernel, args.mmd_sigma)
    first = samples[:, 0].tanh()
    policy_q = torch.minimum(*two_q(agent.critic, obs, first))
    if script is uwac:
        pair = obs.expand(2, -1, -1), first.expand(2, -1, -1)
        policy_variance = uwac.analytic_dropout_variance(agent.critic, *pair, args.dropout).sum(0)
        policy_weight = (args.beta / policy_variance).clamp(max=args.weight_clip)
        m["policy_weight"] = policy_weight.mean()
    alpha, excess = agent.log_alpha.exp(), mmd - args.mmd_threshold
    q_term = policy_weight * policy_q if args.warmup_steps == 0 else torch.zeros(())
    m["actor_loss"] = (alpha.detach() * excess - q_term).mean()
    m |= {"alpha": alpha[0], "mmd": mmd.mean(), "target_q": target.mean(), "policy_q": policy_q.mean()}
    adam_step(agent.actor.parameters(), args.actor_lr, m["actor_loss"])
    adam_step([agent.log_alpha], args.dual_lr, -(alpha * excess.detach()).mean())
    with torch.no_grad():
        for target_net, source in ((agent.target_critic, agent.critic), (agent.target_actor, agent.actor)):
            for old, new in zip(target_net.parameters(), source.parameters()):
                old.copy_((1 - args.tau) * old + args.tau * new)
    return m


@pytest.mark.parametrize("changes", [{}, {"warmup_steps": 1, "mmd_kernel": "laplacian"}], ids=["with Q", "MMD alone"])
def test_update_is_algorithm_1(script, changes, monkeypatch):
    """Metrics and all weights after an update, from the random numbers that it drew: catches a wrong sign, a gradient
    that flows where none should, a target taken before or after the step that it belongs to."""
    agent = make_agent(script, **changes)
    literal = copy.deepcopy(agent)
    indices, normals = record(monkeypatch, torch, "randint"), record(monkeypatch, torch, "randn")
    masks = []
    if script is uwac:
        draw = uwac.dropout_masks

        def recorded(h, p):
            masks.append(next(draw(h, p)))
            yield masks[-1]

        monkeypatch.setattr(uwac, "dropout_masks", recorded)
    agent.update()
    expected = literal_update(script, literal, indices[0], normals, masks)
    assert len(normals) == 4 and len(masks) == (2 if script is uwac else 0)
    for name, value in agent.read_metrics(1, 1).items():
        assert value[0] == pytest.approx(expected.pop(name).item(), rel=1e-9), name
    assert not expected
    assert_close(everything(agent), everything(literal), rtol=0, atol=1e-9)


def feed_slices(monkeypatch, module, seeds, seed=None):
    """Random numbers from a fixed stream for a stack of `seeds` agents, or, of the same numbers, agent `seed`'s part."""
    stream = torch.Generator().manual_seed(7)

    def part(draw, shape):
        rows = shape[0] * (1 if seed is None else seeds)
        drawn = draw((rows, *shape[1:]), generator=stream)
        return drawn if seed is None else drawn.chunk(seeds)[seed]

    randn, rand = torch.randn, torch.rand
    monkeypatch.setattr(torch, "randn", lambda *shape, device: part(randn, shape))
    monkeypatch.setattr(torch, "randint", lambda high, shape, device: (part(rand, shape) * high).long())
    if module is uwac:
        monkeypatch.setattr(uwac, "dropout_masks", lambda h, p: iter(lambda: part(rand, h.shape) >= p, None))


@pytest.mark.parametrize(
    "script, changes",
    [(bear, {}), (uwac, {}), (uwac, {"variance": "mc", "passes": 3, "spectral_norm": True, "weighting": "std"})],
    ids=["bear", "uwac", "uwac with mc and spectral norm"],
)
def test_a_stack_of_agents_is_that_many_single_ones(script, changes, monkeypatch):
    """Three agents trained together for three updates, and each of them alone on its share of the random numbers."""
    stack = make_agent(script, num_seeds=3, **changes)
    singles = [make_agent(script, num_seeds=1, **changes) for _ in range(3)]
    for seed, single in enumerate(singles):
        for name in NETWORKS:
            network = getattr(stack, name).state_dict()
            getattr(single, name).load_state_dict({key: value.chunk(3)[seed] for key, value in network.items()})
    assert not torch.equal(*stack.actor.layers[0].weight[:2])  # three agents that do not differ would show nothing
    for seed, agent in (None, stack), *enumerate(singles):
        with monkeypatch.context() as patch:
            feed_slices(patch, script, 3, seed)
            for _ in range(3):
                agent.update()
    together = everything(stack)
    for seed, single in enumerate(singles):
        expected = {key: value.chunk(3)[seed] for key, value in together.items()}
        assert_close(everything(single), expected, rtol=0, atol=1e-9)
    metrics = [single.read_metrics(3, 3) for single in singles]
    for name, value in stack.read_metrics(3, 3).items():
        np.testing.assert_allclose(value, [m[name][0] for m in metrics], rtol=1e-9, err_msg=name)


def test_target_is_the_authors_for_their_candidates(script, monkeypatch):
    """Golden candidate values in, golden target out of Agent.update: one state for each of 32 seeds."""
    monkeypatch.setattr(
        script, "BehaviorVAE", functools.partial(script.BehaviorVAE, hidden_dim=4)
    )  # 32 of 750 are slow
    golden = np.load(Path(__file__).parent / "golden.npz")
    q1, q2, target = (torch.tensor(golden[f"cand_{name}"]).double() for name in ("q1", "q2", "target"))
    agent = make_agent(script, num_seeds=32, batch_size=1, num_candidates=10, gamma=1.0)
    agent.data[2].zero_(), agent.data[4].zero_()  # reward 0, nothing ends: the target is the next value
    q_values = agent.q_values

    def golden_for_the_target(critic, *args):
        return torch.stack([q1, q2], 1).unsqueeze(2) if critic is agent.target_critic else q_values(critic, *args)

    monkeypatch.setattr(agent, "q_values", golden_for_the_target)
    agent.update()
    np.testing.assert_allclose(agent.read_metrics(1, 1)["target_q"], target, rtol=1e-6)


def test_nothing_is_bootstrapped_over_an_end(script):
    agent = make_agent(script)
    agent.data[4].fill_(1)
    agent.data[2].fill_(-3)
    agent.update()
    assert agent.read_metrics(1, 1)["target_q"] == -3


def test_no_gradient_reaches_the_targets_or_passes_through_the_weight(script, monkeypatch):
    """Gradients of one update exist where a loss is minimized, and nowhere else."""
    agent = make_agent(script)
    weights = record(monkeypatch, uwac, "uncertainty_weight")
    agent.update()
    for name in NETWORKS:
        has = {parameter.grad is not None for parameter in getattr(agent, name).parameters()}
        assert has == {not name.startswith("target")}, name
    assert len(weights) == (2 if script is uwac else 0)
    assert not any(weight.requires_grad for weight in weights)


def test_q_enters_the_actors_loss_after_the_warm_up(script):
    """Twins whose critics differ have the same actor as long as MMD alone trains it, and not one update longer."""
    twins = [make_agent(script, warmup_steps=2) for _ in range(2)]
    with torch.no_grad():
        twins[1].critic.layers[2].weight.mul_(-2)
    same = []
    for _ in range(3):
        for agent in twins:
            torch.manual_seed(5)
            agent.update()
        same.append(torch.equal(*(agent.actor.layers[0].weight for agent in twins)))
    assert same == [True, True, False]


def test_alpha_follows_the_constraint_within_its_limits(script):
    """Alpha rises where MMD is above its threshold and falls where it is below; log alpha stays within [-5, 10]."""
    for threshold, sign in ((0.0, 1), (1e3, -1)):
        agent = make_agent(script, mmd_threshold=threshold, dual_lr=0.1)
        agent.update()
        assert agent.log_alpha.item() * sign == pytest.approx(0.1, rel=1e-3)  # Adam's first step is the learning rate
        agent.log_alpha.data.fill_(9.99 if sign > 0 else -4.99)
        agent.update()
        assert agent.log_alpha.item() == (10 if sign > 0 else -5)


CHANGES = {
    "batch_size": 7, "gamma": 0.5, "tau": 0.1, "lmbda": 0.1, "num_candidates": 2, "num_mmd_samples": 2, "mmd_sigma": 1.0,
    "mmd_kernel": "laplacian", "mmd_threshold": 0.5, "warmup_steps": 9, "actor_lr": 0.1, "critic_lr": 0.1, "vae_lr": 0.1,
    "dual_lr": 0.1, "beta": 0.1, "dropout": 0.4, "variance": "mc", "passes": 3, "weighting": "std", "weight_clip": 1.0,
    "spectral_norm": True,
}  # fmt: skip


@pytest.mark.parametrize("script, name", [(s, name) for s in (bear, uwac) for name in CHANGES if hasattr(s.Args, name)])
def test_every_argument_of_the_training_matters(script, name):
    """Two updates have other metrics where one argument has another value: none is dead."""
    common = {"variance": "mc", "passes": 2} if name == "passes" else {}
    metrics = []
    for changes in (common, common | {name: CHANGES[name]}):
        agent = make_agent(script, **changes)
        torch.manual_seed(3)
        agent.update()
        agent.update()
        metrics.append(agent.read_metrics(2, 2))
    assert metrics[0].keys() == metrics[1].keys()
    assert metrics[0] != metrics[1]


def test_uwac_without_its_parts_is_bear():
    """Without weighting, dropout and spectral norm UWAC is BEAR, number for number."""
    agents = [make_agent(bear), make_agent(uwac, weighting="none", dropout=0.0)]
    for agent in agents:
        torch.manual_seed(3)
        for _ in range(3):
            agent.update()
    assert all(torch.equal(*pair) for pair in zip(*(everything(agent).values() for agent in agents)))


def test_metrics_are_means_since_the_last_reading(script):
    agents, readings = (make_agent(script), make_agent(script)), ([], [])
    for agent, reading, reads_after in zip(agents, readings, ((1, 2, 3, 4), (1, 4))):
        torch.manual_seed(3)
        last = 0
        for step in range(1, 5):
            agent.update()
            if step in reads_after:
                reading.append(agent.read_metrics(step, step - last))
                last = step
    for name, value in readings[1][1].items():
        assert value[0] == pytest.approx(np.mean([single[name][0] for single in readings[0][1:]])), name


def test_a_loss_that_is_not_finite_is_named_with_its_seed_and_update(script):
    agent = make_agent(script, num_seeds=3)
    for step in range(1, 8):
        if step == 5:
            agent.actor.layers[1].bias.data[1] = torch.nan
        agent.update()
        if step == 2:
            agent.read_metrics(2, 2)
    with pytest.raises(FloatingPointError, match="actor_loss.*seed 1, update 5"):
        agent.read_metrics(7, 5)


@pytest.mark.parametrize(
    "script, changes", [(bear, {}), (uwac, {"spectral_norm": True})], ids=["bear", "uwac with spectral norm"]
)
def test_the_policy_is_each_seeds_actor_and_first_critic(script, changes):
    """A copy of the critics of that moment, as plain layers, drawn from no generator."""
    agent = make_agent(script, num_seeds=3, **changes)
    agent.update()
    obs, action = torch.randn(3, 4, OBS_DIM), torch.rand(3, 4, ACTION_DIM)
    expected = agent.q_values(agent.critic, obs, action)[:, 0].detach()
    before = torch.get_rng_state()
    actor, q1 = agent.policy()
    assert torch.equal(before, torch.get_rng_state())
    assert actor is agent.actor
    agent.update()
    assert_close(q1(obs, action), expected)


def test_ood_auroc(monkeypatch):
    """Against every pair compared in a loop, where data and random actions differ, agree and tie; draws nothing."""
    agent = make_agent(uwac, num_seeds=2)
    variances = record(monkeypatch, agent, "q_variance")
    before = torch.get_rng_state()
    auroc = agent.ood_auroc(0)
    assert torch.equal(torch.get_rng_state(), before)
    known, random = variances
    assert known.shape == random.shape == (2, STEPS)
    for seed in range(2):
        pairs = [(r > k) + 0.5 * (r == k) for k in known[seed] for r in random[seed]]
        assert auroc[seed] == pytest.approx(float(sum(pairs)) / STEPS**2)
    for sign, expected in ((1, 1.0), (0, 0.5), (-1, 0.0)):
        agent.data[1].zero_()
        monkeypatch.setattr(agent, "q_variance", lambda critic, obs, action, sign=sign: sign * action.abs().sum(-1))
        assert (agent.ood_auroc(0) == expected).all()
