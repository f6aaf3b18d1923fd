"""`update` where the authors' trajectories (test_lockstep.py) tell nothing: seeds stacked, targets,
the limits of alpha, every argument; and that it learns."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from lockstep import drawing
from torch.testing import assert_close

import bear
import uwac


@pytest.fixture
def double():
    """In float64 the order of sums shows in the 15th digit, and comparisons can be tight."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def transitions():
    """Forty random ones, of 5 observations and 2 actions."""
    obs, next_obs = torch.randn(2, 40, 5)
    action = torch.rand(40, 2) * 2 - 1
    reward = torch.randn(40)
    done = (torch.rand(40) < 0.3).to(reward.dtype)
    return [obs, action, reward, next_obs, done]


def small(script, **changes):
    """Arguments and an agent, whose Q enters the actor's loss at once. Its actor and critics have
    larger weights than at the start, its target critics others than its critics."""
    settings = {"batch_size": 6, "num_candidates": 4, "num_mmd_samples": 3, "warmup_steps": 0}
    if script is uwac:
        settings |= {"variance": "analytic", "spectral_norm": False, "weight_clip": 500.0}
    args = script.Args(**settings | changes)
    torch.manual_seed(1)
    agent = script.Agent(args, obs_dim=5, action_dim=2)
    for network in (agent.actor, agent.target_actor, agent.critic, agent.target_critic):
        for parameter in network.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
    return args, agent


def trained(**changes):
    """UWAC's metrics of the second update."""
    torch.manual_seed(0)
    data = transitions()
    args, agent = small(uwac, **changes)
    uwac.update(agent, data, 1, args)
    return uwac.update(agent, data, 2, args)


def share(stack, k, shape):
    """Seed k's part of a tensor of three seeds, which is of this shape."""
    if stack.shape == shape:  # the units of actions, which all seeds share
        return stack
    (seeds,) = [i for i, size in enumerate(shape) if size != stack.shape[i]]
    return stack.narrow(seeds, k, 1)


MC = {"variance": "mc", "passes": 3, "spectral_norm": True, "weighting": "std"}


@pytest.mark.parametrize("script, changes", [(bear, {}), (uwac, {}), (uwac, MC)])
def test_three_seeds_are_three_single_ones(script, changes, double):
    """Each one alone, on its part of the random numbers, has the same metrics and weights."""
    args, stack = small(script, num_seeds=3, **changes)
    start = {name: tensor.clone() for name, tensor in stack.state_dict().items()}
    assert not torch.equal(*stack.actor.layers[0].weight[:2])  # else nothing would show
    data = transitions()
    drawn = []

    def record(draw, shape):
        drawn.append(draw(shape))
        return drawn[-1]

    with drawing(record):
        metrics = [script.update(stack, data, step, args) for step in (1, 2, 3)]

    for k in range(3):
        args, single = small(script, num_seeds=1, **changes)
        shapes = {name: tensor.shape for name, tensor in single.state_dict().items()}
        single.load_state_dict({name: share(start[name], k, shapes[name]) for name in shapes})
        numbers = iter(drawn)

        def replay(draw, shape):
            return share(next(numbers), k, shape)

        with drawing(replay):
            for step in (1, 2, 3):
                of_seed = {name: value[k : k + 1] for name, value in metrics[step - 1].items()}
                assert_close(script.update(single, data, step, args), of_seed, rtol=1e-9, atol=1e-9)
        for name, tensor in stack.state_dict().items():
            expected = share(tensor, k, shapes[name])
            assert_close(single.state_dict()[name], expected, rtol=0, atol=1e-9)


def test_all_targets_follow(script):
    args, agent = small(script, tau=0.1)
    before = {name: tensor.clone() for name, tensor in agent.state_dict().items()}
    script.update(agent, transitions(), 1, args)
    for name, target in agent.state_dict().items():
        if name.startswith("target_"):
            source = agent.state_dict()[name.removeprefix("target_")]
            assert_close(target, 0.9 * before[name] + 0.1 * source)
            assert not torch.equal(target, before[name])


@pytest.mark.parametrize("threshold, sign, limit", [(0.0, 1, 10), (1e3, -1, -5)])
def test_log_alpha_stays_from_minus_5_to_10(script, threshold, sign, limit):
    """It grows where MMD is above its threshold; Adam's first step is the learning rate."""
    args, agent = small(script, mmd_threshold=threshold, dual_lr=0.1)
    agent.log_alpha.data.fill_(limit - 0.15 * sign)
    script.update(agent, transitions(), 1, args)
    assert agent.log_alpha.item() == pytest.approx(limit - 0.05 * sign, rel=1e-3)
    script.update(agent, transitions(), 2, args)
    assert agent.log_alpha.item() == limit


CHANGES = {"batch_size": 7, "gamma": 0.5, "tau": 0.1, "lmbda": 0.1, "num_candidates": 2}
CHANGES |= {"num_mmd_samples": 2, "mmd_kernel": "laplacian", "mmd_sigma": 1.0, "mmd_threshold": 0.5}
CHANGES |= {"warmup_steps": 9, "actor_lr": 0.1, "critic_lr": 0.1, "vae_lr": 0.1, "dual_lr": 0.1}
CHANGES |= {"beta": 0.1, "dropout": 0.4, "variance": "mc", "passes": 3, "weighting": "std"}
CHANGES |= {"weight_clip": 0.001, "spectral_norm": True, "q_noise": True}
OF_RUNS = {"env_id", "seed", "num_seeds", "matmul_precision", "run_dir", "exp_name"}


def test_every_argument_that_shapes_training_does():
    """Another value, and two updates have other metrics."""
    names = [field.name for field in dataclasses.fields(uwac.Args)]
    assert set(names) - uwac.MAY_CHANGE - OF_RUNS == set(CHANGES)
    for name, value in CHANGES.items():
        common = {"variance": "mc", "passes": 2} if name == "passes" else {}
        usual = trained(**common)
        changed = trained(**common | {name: value})
        assert any(usual[metric] != changed[metric] for metric in usual), name


def test_the_candidate_of_the_largest_q1_acts(script, monkeypatch):
    """Of bear.py, and of uwac.py where there is no dropout."""
    parts_off = {"dropout": 0, "weighting": "none"} if script is uwac else {}
    agent = script.Agent(script.Args(num_seeds=2, **parts_off), obs_dim=5, action_dim=2)
    obs = torch.randn(2, 4, 5)
    candidates = torch.randn(2, 4, 30, 2)
    monkeypatch.setattr(agent.actor, "sample", lambda obs, num: candidates[:, :, :num])
    action = torch.tensor(agent.act(obs.numpy(), 30))
    q1, q2 = agent.critic(obs, candidates.tanh())
    assert_close(agent.critic(obs, action)[0], q1.amax(-1))
    assert not torch.equal(q1.argmax(-1), q2.argmax(-1))


def test_act_gives_the_environments_units(script):
    """By the bounds of its actions; inside, they are from -1 to 1."""
    bounds = np.float32([-2, 0]), np.float32([2, 0.4])
    actions = []
    for limits in ((), bounds):
        torch.manual_seed(0)
        agent = script.Agent(script.Args(), 5, 2, *limits)
        actions.append(agent.act(np.ones((50, 5))))
    agent.actor.layers[2].bias.data.fill_(1.0)  # where the tanh matters
    mean, _ = agent.actor(torch.ones(1, 50, 5))
    deterministic = agent.act(np.ones((50, 5)), deterministic=True)
    np.testing.assert_allclose(deterministic, agent.to_env(mean.tanh()))
    inside, outside = actions
    np.testing.assert_allclose(outside, inside * [2, 0.2] + [0, 0.2], rtol=1e-5)
    assert np.abs(inside).max() > 0.9


@pytest.mark.parametrize("spread, low, high", [(1.0, 0.3, 3.5), (1e-3, 4.0, 5.0)])
def test_uwacs_choice_has_the_noise_of_literal_passes(spread, low, high, monkeypatch):
    """Seen in the mean rank of the chosen one of ten candidates, by Q1 without noise: 0 is a greedy
    choice, 4.5 a random one, as of candidates that lie close together under spectral norm."""
    args, agent = small(uwac, spectral_norm=True, passes=10)
    obs = torch.randn(1, 1000, 5)
    x = spread * torch.randn(1, 1000, 10, 2)
    candidates = x.tanh()
    monkeypatch.setattr(agent.actor, "sample", lambda obs, num: x)
    with torch.no_grad():
        q1, _ = agent.critic(obs, candidates)  # (1, 1000, 10)
        passes = [agent.critic(obs, candidates, args.dropout)[0] for _ in range(10)]
    ranks = (-q1).argsort(-1).argsort(-1).float()

    def mean_rank(chosen):
        return ranks.take_along_dim(chosen.unsqueeze(-1), dim=-1).mean().item()

    def rank_of_act():
        action = torch.tensor(agent.act(obs.numpy(), 10))
        return mean_rank((candidates == action.unsqueeze(2)).all(-1).int().argmax(-1))

    literal = mean_rank(torch.stack(passes).mean(0).argmax(-1))
    assert low < literal < high
    assert rank_of_act() == pytest.approx(literal, abs=5 * 2.9 * (2 / 1000) ** 0.5)  # 5 errors
    agent.args.dropout = 0.0
    assert rank_of_act() == 0


@pytest.mark.parametrize("noise", [True, False])
def test_q_noise_is_in_targets_and_in_the_actors_loss(noise):
    args, agent = small(uwac, q_noise=noise)
    q_values, asked = agent.q_values, []

    def recorded(critic, obs, action, noise):
        asked.append((critic, noise))
        return q_values(critic, obs, action, noise)

    agent.q_values = recorded
    uwac.update(agent, transitions(), 1, args)
    assert asked == [(agent.target_critic, noise), (agent.critic, noise)]


def test_an_update_takes_a_power_iteration_of_critics_and_targets():
    args, agent = small(uwac, spectral_norm=True)
    expected = copy.deepcopy(agent)
    expected.critic.power_iteration()
    expected.target_critic.power_iteration()
    uwac.update(agent, transitions(), 1, args)
    for name, tensor in expected.state_dict().items():
        if name.endswith(".v"):
            assert torch.equal(agent.state_dict()[name], tensor), name


def test_it_learns():
    """On door-demo, with small batches and large steps, MMD and the VAE's loss fall, and the score
    rises from a random policy's, 0. Policies open the door in this episode and not in that one, so
    that only the mean of several is steady."""
    settings = {"batch_size": 32, "num_candidates": 2, "num_mmd_samples": 4, "warmup_steps": 10_000}
    settings |= {"actor_lr": 2e-3, "vae_lr": 1e-3, "critic_lr": 1e-3, "dual_lr": 1e-2}
    args = uwac.Args("door-demo", variance="analytic", **settings)
    arrays, _ = uwac.read_file(uwac.find_dataset("door-demo"))
    transitions = uwac.to_transitions(arrays, 39, 28, 200, "door-demo")
    data = [torch.as_tensor(array) for array in transitions]
    agent = uwac.Agent(args, obs_dim=39, action_dim=28)
    envs = uwac.make_envs("door-demo", 2)
    history = []
    scores = []
    for step in range(1, 801):
        metrics = uwac.update(agent, data, step, args)
        history.append([metrics["vae_loss"].item(), metrics["mmd"].item()])
        if step in (1, 500, 600, 700, 800):
            returns = uwac.evaluate(agent, envs, [0, step], 10)
            scores.append(uwac.normalized_score("door-demo", returns).mean())
    envs.close()
    before = np.mean(history[:10], axis=0)
    after = np.mean(history[-50:], axis=0)
    assert (after < before * [0.02, 0.5]).all()
    assert scores[0] < 1
    assert np.mean(scores[1:]) > 10
