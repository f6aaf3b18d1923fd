"""`update` where the authors' trajectories (test_lockstep.py) tell nothing: seeds stacked, targets,
the limits of alpha, every argument; the choice of an action; and that it learns."""

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
    return stack.unflatten(seeds, (-1, 3)).select(seeds + 1, k)


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
OF_RUNS = {"env_id", "seed", "num_seeds", "matmul_precision"}


def test_every_argument_that_shapes_training_does():
    """Another value, and two updates have other metrics."""
    names = [field.name for field in dataclasses.fields(uwac.Args)]
    assert set(names) - uwac.MAY_CHANGE - OF_RUNS == set(CHANGES)
    for name, value in CHANGES.items():
        common = {"variance": "mc", "passes": 2} if name == "passes" else {}
        usual = trained(**common)
        changed = trained(**common | {name: value})
        assert any(usual[metric] != changed[metric] for metric in usual), name


def test_each_learning_rate_moves_its_own_network_alone(script):
    """By Adam's first step, which is the learning rate; targets follow the critics' and actor's."""
    networks = {"actor_lr": "actor", "critic_lr": "critic", "vae_lr": "vae", "dual_lr": "log_alpha"}
    for rate, network in networks.items():
        args, agent = small(script, tau=0.0, **(dict.fromkeys(networks, 0.0) | {rate: 0.01}))
        before = {name: tensor.clone() for name, tensor in agent.named_parameters()}
        script.update(agent, transitions(), 1, args)
        moved = {
            name: (p - before[name]).abs().max().item() for name, p in agent.named_parameters()
        }
        for name, distance in moved.items():
            expected = 0.01 if name.split(".")[0] == network else 0
            assert distance == pytest.approx(expected, rel=1e-3), name


def test_each_seed_has_a_mini_batch_of_its_own(script):
    """The mean target after terminal steps is that of the batch's rewards."""
    args, agent = small(script, num_seeds=3)
    data = transitions()
    data[4][:] = 1
    drawn = script.update(agent, data, 1, args)["target_q"]
    assert len(drawn.unique()) == 3


def test_the_candidate_of_the_largest_q1_acts(script, monkeypatch):
    """In UWAC with the noise of stochastic passes in Q1 (test_uncertainty.py: what it is)."""
    agent = script.Agent(script.Args(num_seeds=2), obs_dim=5, action_dim=2)
    obs = torch.randn(2, 4, 5)
    candidates = torch.randn(2, 4, 30, 2)
    q = torch.randn(2, 2, 4, 30)
    asked = []

    def q_values(*args, **settings):
        asked.append((args, settings))
        return q

    monkeypatch.setattr(agent.actor, "sample", lambda obs, num: candidates[:, :, :num])
    monkeypatch.setattr(agent.critic, "forward", q_values)
    if script is uwac:
        monkeypatch.setattr(agent, "q_values", q_values)
    action = torch.tensor(agent.act(obs.numpy(), 30))
    best = q[0].argmax(-1)[:, :, None, None]
    assert_close(action, candidates.tanh().take_along_dim(best, dim=2).squeeze(2))
    ((args, settings),) = asked
    assert_close(args[-2:], (obs, candidates.tanh()))
    assert script is bear or (args[0] is agent.critic and settings == {"noise": True})


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
        if name.endswith(".u"):
            assert torch.equal(agent.state_dict()[name], tensor), name


def test_it_learns():
    """Data of uniform actions, where the best one is 0.5 or -0.5, by the state's first number."""
    settings = {"warmup_steps": 0, "mmd_threshold": 1.0, "actor_lr": 2e-3, "critic_lr": 2e-3}
    settings |= {"batch_size": 64, "num_candidates": 4, "num_mmd_samples": 4}
    args = uwac.Args("Own-v0", variance="analytic", **settings)
    agent = uwac.Agent(args, obs_dim=3, action_dim=1)
    obs = torch.randn(1000, 3)
    action = torch.rand(1000, 1) * 2 - 1
    best = 0.5 * obs[:, :1].sign()
    reward = -5 * (action - best).square().sum(1)
    data = [obs, action, reward, obs, torch.ones(1000)]
    losses = [uwac.update(agent, data, step, args)["critic_loss"].item() for step in range(1, 101)]
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
    for settings in ({"deterministic": True}, {"num": 20}):
        distance = np.abs(agent.act(obs.numpy(), **settings)[0] - best.numpy()).mean()
        assert distance < 0.35  # 0.5 at the start
