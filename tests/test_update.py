"""`update` where the authors' trajectories (test_lockstep.py) tell nothing: targets, learning rates,
the limits of alpha, power iterations; and which action is chosen."""

import copy

import pytest
import torch
from torch.testing import assert_close

import bear
import uwac


def transitions():
    """Forty random ones, of 5 observations and 2 actions."""
    obs, next_obs = torch.randn(2, 40, 5)
    done = (torch.rand(40) < 0.3).to(obs.dtype)
    return [obs, torch.rand(40, 2) * 2 - 1, torch.randn(40), next_obs, done]


def small(script, **changes):
    """Arguments and an agent, whose Q enters the actor's loss at once. Its actor and critics have
    larger weights than at the start, its target critics others than its critics."""
    settings = {"batch_size": 6, "num_candidates": 4, "num_mmd_samples": 3, "warmup_steps": 0}
    settings |= {"variance": "analytic"} if script is uwac else {}
    args = script.Args(**settings | changes)
    torch.manual_seed(1)
    agent = script.Agent(args, obs_dim=5, action_dim=2)
    for network in (agent.actor, agent.target_actor, agent.critic, agent.target_critic):
        for parameter in network.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
    return args, agent


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
    before = copy.deepcopy(dict(agent.named_parameters()))
    script.update(agent, transitions(), 1, args)
    after = dict(agent.named_parameters())
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
    args, agent = small(uwac)
    expected = copy.deepcopy(agent)
    expected.critic.power_iteration()
    expected.target_critic.power_iteration()
    uwac.update(agent, transitions(), 1, args)
    for name, tensor in expected.state_dict().items():
        if name.endswith(".u"):
            assert torch.equal(agent.state_dict()[name], tensor), name


def test_the_candidate_of_the_largest_q1_acts(script, monkeypatch):
    """In UWAC with the noise of stochastic passes (test_uncertainty.py) in Q1."""
    agent = script.Agent(script.Args(num_seeds=2), obs_dim=5, action_dim=2)
    obs = torch.randn(2, 4, 5)
    candidates = torch.randn(2, 4, 30, 2)
    q = torch.randn(2, 2, 4, 30)
    asked = []
    monkeypatch.setattr(agent.actor, "sample", lambda obs, num: candidates[:, :, :num])
    owner, name = (agent.critic, "forward") if script is bear else (agent, "q_values")
    monkeypatch.setattr(owner, name, lambda *args, **noise: asked.append((args, noise)) or q)
    action = torch.tensor(agent.act(obs.numpy(), 30))
    best = q[0].argmax(-1)[:, :, None, None]
    assert_close(action, candidates.tanh().take_along_dim(best, dim=2).squeeze(2))
    (((*critic, of_obs, of_candidates), noise),) = asked
    assert torch.equal(of_obs, obs) and torch.equal(of_candidates, candidates.tanh())
    assert script is bear or (critic, noise) == ([agent.critic], {"noise": True})


@pytest.mark.parametrize("noise", [True, False])
def test_q_noise_is_in_targets_and_in_the_actors_loss(noise, monkeypatch):
    args, agent = small(uwac, q_noise=noise)
    q_values, asked = agent.q_values, []
    monkeypatch.setattr(agent, "q_values", lambda *words: asked.append(words) or q_values(*words))
    uwac.update(agent, transitions(), 1, args)
    expected = [(agent.target_critic, noise), (agent.critic, noise)]
    assert [(critic, noise) for critic, _, _, noise in asked] == expected
