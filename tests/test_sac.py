"""benchmark/datasets/sac.py: an update by hand, a training that goes on, which snapshots count."""

import pytest
import torch
from conftest import Point
from torch.distributions import Normal, TanhTransform, TransformedDistribution
from torch.testing import assert_close

from benchmark.datasets import sac
from benchmark.make_dataset import Args

SMALL = {"train_steps": 400, "learning_starts": 150, "eval_every": 100, "eval_episodes": 1}


def test_sacs_replay_has_its_own_steps_and_ends_by_time(tmp_path, monkeypatch):
    """Rows are drawn among those that are filled."""
    args = Args(**SMALL | {"train_steps": 60, "learning_starts": 20})
    args.env = "Point-v0"
    drawn = []
    monkeypatch.setattr(sac.SAC, "update", lambda self, batch: drawn.append(torch.cat(batch, -1)))
    (obs, _, _, next_obs, terminal, timeout), _ = sac.train(args, tmp_path)
    assert (obs == next_obs).all() and not terminal.any()
    assert timeout[:, 0].nonzero()[:, 0].tolist() == list(range(4, 60, 5))
    drawn = torch.stack(drawn)
    assert (drawn[..., :3] != 0).any(-1).all()
    assert drawn.shape[:3] == (41, 1, 256)  # an update a step


def test_the_settings_of_sac_are_its_papers():
    """Haarnoja et al., 2018b, table 1; gamma, tau and the target entropy are in the next tests."""
    agent = sac.SAC(obs_dim=5, action_dim=2)
    (group,) = agent.adam.param_groups
    assert (group["lr"], group["betas"]) == (3e-4, (0.9, 0.999))
    widths = [layer.weight.shape[-1] for layer in agent.actor.layers]
    assert widths == [256, 256, 4] and [*agent.critic.layers[1].weight.shape[-2:]] == [256, 256]


def test_a_training_of_sac_that_was_stopped_goes_on_to_the_same_bits(points, tmp_path):
    """Also as one that was evaluated only in the end."""
    args = Args(**SMALL | {"train_steps": 42, "learning_starts": 10})
    args.env = "Point-v0"
    whole, _ = sac.train(args, tmp_path / "whole")
    args.eval_every = 10
    Point.at_step = {len(Point.played) + 45: lambda: 1 / 0}
    with pytest.raises(ZeroDivisionError):
        sac.train(args, tmp_path / "stopped")
    assert_close(sac.train(args, tmp_path / "stopped")[0], whole, rtol=0, atol=0)
    one, two = (torch.load(tmp_path / name / "checkpoint.pt") for name in ("whole", "stopped"))
    assert [step for step, _ in one["progress"][2]] == [0, 42]
    assert [step for step, _ in two["progress"][2]] == [0, 10, 20, 30, 40, 42]
    for name in ("agent", "adam", "generator"):
        assert_close(one[name], two[name], rtol=0, atol=0)
    args.train_steps = 48  # goes on with another episode, though the one before was cut off
    *_, timeout = sac.train(args, tmp_path / "stopped")[0]
    assert timeout[:, 0].nonzero()[:, 0].tolist() == [*range(4, 40, 5), 41, 46, 47]
    args.learning_starts = 11
    with pytest.raises(ValueError, match="checkpoint.pt: not a checkpoint of this training"):
        sac.train(args, tmp_path / "stopped")


def test_medium_is_near_a_third_of_the_way_and_expert_the_best():
    """From 0 to 90, so 30: 45 comes after it."""
    returns = [0, 5, 20, 45, 90, 60]
    history = [[100 * i, value] for i, value in enumerate(returns)]
    assert sac.choose(history) == {"medium": 200, "expert": 400}
    history[2][1] = 10
    assert sac.choose(history) == {"medium": 300, "expert": 400}


def test_sac_by_hand():
    agent = sac.SAC(obs_dim=5, action_dim=2)
    for network in (agent.critic, agent.target_critic):
        for parameter in network.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    agent.log_alpha.data.fill_(0.5)
    alpha = torch.tensor(0.5).exp()
    obs, next_obs = torch.randn(2, 1, 6, 5)
    action = torch.rand(1, 6, 2) * 2 - 1
    reward, terminal = torch.randn(1, 6), torch.tensor([[0, 1, 0, 0, 1, 0.0]])
    torch.manual_seed(1)
    with torch.no_grad():
        next_action, next_log_prob = agent.sample(next_obs)
        new_action, log_prob = agent.sample(obs)
        mean, log_std = agent.actor(obs)
        policy = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform())
        assert_close(log_prob, policy.log_prob(new_action).sum(-1), rtol=1e-4, atol=1e-4)
        value = agent.target_critic(next_obs, next_action).amin(0) - alpha * next_log_prob
        target = reward + 0.99 * (1 - terminal) * value
        critic_loss = (agent.critic(obs, action) - target).square().mean(-1).sum()
        actor_loss = (alpha * log_prob - agent.critic(obs, new_action).amin(0)).mean()
        alpha_loss = -alpha * (log_prob.mean() - 2)  # the target entropy is -A
        pairs = zip(agent.target_critic.parameters(), agent.critic.parameters())
        following = [0.995 * old + 0.005 * new for old, new in pairs]
    losses = []
    agent.minimize = lambda loss, parameters: losses.append(loss.detach())
    torch.manual_seed(1)
    agent.update([obs, action, reward[..., None], next_obs, terminal[..., None], None])
    assert_close(losses, [critic_loss, actor_loss + alpha_loss])
    assert_close([*agent.target_critic.parameters()], following)
