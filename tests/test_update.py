"""`update` where the authors' trajectories (test_lockstep.py) tell nothing: seeds stacked, batches,
targets, the limits of alpha, learning rates; and which action is chosen."""

import copy

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
    done = (torch.rand(40) < 0.3).to(obs.dtype)
    return [obs, torch.rand(40, 2) * 2 - 1, torch.randn(40), next_obs, done]


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
    assert not torch.equal(*drawn[0][:2])  # mini-batches

    for k in range(3):
        args, single = small(script, num_seeds=1, **changes)
        shapes = {name: tensor.shape for name, tensor in single.state_dict().items()}
        single.load_state_dict({name: share(start[name], k, shapes[name]) for name in shapes})
        numbers = iter(drawn)
        with drawing(lambda draw, shape: share(next(numbers), k, shape)):
            for step in (1, 2, 3):
                of_seed = {name: value[k : k + 1] for name, value in metrics[step - 1].items()}
                assert_close(script.update(single, data, step, args), of_seed, rtol=1e-9, atol=1e-9)
        for name, tensor in stack.state_dict().items():
            expected = share(tensor, k, shapes[name])
            assert_close(single.state_dict()[name], expected, rtol=0, atol=1e-9)


def test_each_seed_has_a_mini_batch_of_its_own(script):
    """After terminal steps the mean target is that of the batch's rewards."""
    args, agent = small(script, num_seeds=3)
    *rest, done = transitions()
    metrics = script.update(agent, [*rest, torch.ones_like(done)], 1, args)
    assert len(metrics["target_q"].unique()) == 3


def test_each_learning_rate_moves_its_own_network_alone(script):
    """By Adam's first step, which is the learning rate."""
    networks = {"actor_lr": "actor", "critic_lr": "critic", "vae_lr": "vae", "dual_lr": "log_alpha"}
    for rate, network in networks.items():
        args, agent = small(script, tau=0.0, **(dict.fromkeys(networks, 0.0) | {rate: 0.01}))
        before = copy.deepcopy(dict(agent.named_parameters()))
        script.update(agent, transitions(), 1, args)
        for name, parameter in agent.named_parameters():
            distance = (parameter - before[name]).abs().max().item()
            expected = 0.01 if name.split(".")[0] == network else 0
            assert distance == pytest.approx(expected, rel=1e-3), name


def test_all_targets_follow(script):
    args, agent = small(script, tau=0.1)
    before = copy.deepcopy(agent.state_dict())
    script.update(agent, transitions(), 1, args)
    after = agent.state_dict()
    for name, old in before.items():
        if name.startswith("target_"):
            source = after[name.removeprefix("target_")]
            assert_close(after[name], 0.9 * old + 0.1 * source)
            assert not torch.equal(after[name], old)


@pytest.mark.parametrize("threshold, sign, limit", [(0.0, 1, 10), (1e3, -1, -5)])
def test_log_alpha_stays_from_minus_5_to_10(script, threshold, sign, limit):
    """It grows where MMD is above its threshold; Adam's first step is the learning rate."""
    args, agent = small(script, mmd_threshold=threshold, dual_lr=0.1)
    agent.log_alpha.data.fill_(limit - 0.15 * sign)
    script.update(agent, transitions(), 1, args)
    assert agent.log_alpha.item() == pytest.approx(limit - 0.05 * sign, rel=1e-3)
    script.update(agent, transitions(), 2, args)
    assert agent.log_alpha.item() == limit


def test_an_update_takes_a_power_iteration_of_critics_and_targets():
    args, agent = small(uwac, spectral_norm=True)
    expected = copy.deepcopy(agent)
    expected.critic.power_iteration()
    expected.target_critic.power_iteration()
    uwac.update(agent, transitions(), 1, args)
    for name, tensor in expected.state_dict().items():
        if name.endswith(".u"):
            assert torch.equal(agent.state_dict()[name], tensor), name


def test_the_candidate_of_the_largest_q1_acts(script, monkeypatch):
    agent = script.Agent(script.Args(num_seeds=2), obs_dim=5, action_dim=2)
    obs = torch.randn(2, 4, 5)
    candidates = torch.randn(2, 4, 30, 2)
    q = torch.randn(2, 2, 4, 30)

    def found_q(*args, **settings):
        expected = (obs, candidates.tanh()) if script is bear else (agent.critic, obs)
        assert all(given is wanted or given.equal(wanted) for given, wanted in zip(args, expected))
        assert settings == ({} if script is bear else {"noise": True})
        return q

    monkeypatch.setattr(agent.actor, "sample", lambda obs, num: candidates[:, :, :num])
    owner, name = (agent.critic, "forward") if script is bear else (agent, "q_values")
    monkeypatch.setattr(owner, name, found_q)
    best = q[0].argmax(-1)[:, :, None, None]
    expected = candidates.tanh().take_along_dim(best, dim=2).squeeze(2)
    assert_close(torch.tensor(agent.act(obs.numpy(), 30)), expected)


@pytest.mark.parametrize("noise", [True, False])
def test_q_noise_is_in_targets_and_in_the_actors_loss(noise, monkeypatch):
    args, agent = small(uwac, q_noise=noise)
    q_values, asked = agent.q_values, []

    def recorded(critic, obs, action, noise):
        asked.append((critic, noise))
        return q_values(critic, obs, action, noise)

    monkeypatch.setattr(agent, "q_values", recorded)
    uwac.update(agent, transitions(), 1, args)
    assert asked == [(agent.target_critic, noise), (agent.critic, noise)]
