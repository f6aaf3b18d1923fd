"""lunarlander_uncertainty.py: Algorithm 1 and returns by hand, the cut, and a whole run."""

import inspect
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.image import imread
from torch.testing import assert_close

import lunarlander_uncertainty as lunar
import uwac

SHARED = "InputError StackedLinear MLP.__init__ MLP.forward concat Critic.forward "
SHARED += "Agent.minimize analytic_dropout_variance"
TINY = lunar.Args(num_seeds=2, total_steps=3, batch_size=8, hidden_dim=8, expert_iterations=1)


def q_of_all_actions(critic, obs):
    """Q (2, B, A) of one seed's critics, which are uwac.py's and tested there."""
    return critic(obs[None], lunar.every_action(obs[None]))[:, 0].detach()


def test_update_by_hand(monkeypatch):
    """Algorithm 1 with plain torch: lines 3 to 8 and 12, and with critics that stay, 10 and 11. Of
    50 candidates all four actions are among them."""
    monkeypatch.setattr(F, "dropout", lambda x, p: x)
    settings = {"num_candidates": 50, "gamma": 0.5, "beta": 0.03, "tau": 0.25}
    args = replace(TINY, num_seeds=1, critic_lr=0.0, **settings)
    agent = lunar.Agent(args)
    agent.critic.layers[2].weight.data.normal_()  # Q and its variance differ between actions
    agent.target_critic.layers[2].weight.data.normal_()
    done = (torch.arange(200) % 3 == 0).float()
    actions = torch.eye(4).repeat(50, 1)
    data = [torch.randn(200, 8), actions, torch.randn(200), torch.randn(200, 8), done]
    torch.manual_seed(1)
    index = torch.randint(200, (1, 8))[0]
    obs, action, reward, next_obs, done = (array[index] for array in data)
    q = q_of_all_actions(agent.target_critic, next_obs)
    y, best = (0.75 * q.amin(0) + 0.25 * q.amax(0)).max(-1)
    target = reward + 0.5 * (1 - done) * y
    best_action = torch.eye(4)[best][None]
    variance = lunar.dropout_variance(agent.target_critic, next_obs[None], best_action, args)[0]
    weight = (0.03 / variance).clamp(max=1.5)
    assert weight.min() < 1.4
    q = q_of_all_actions(agent.critic, obs)
    error = (q * action).sum(-1) - target
    every_action = lunar.every_action(obs[None])
    actors_variance = lunar.dropout_variance(agent.critic, obs[None], every_action, args)[0]
    actors_weight = (0.03 / actors_variance).clamp(max=1.5)
    policy = agent.actor(obs[None])[0].softmax(-1)
    actor_loss = -(policy * actors_weight * q.amin(0)).sum(-1).mean()
    gradients = torch.autograd.grad(actor_loss, list(agent.actor.parameters()))
    old = [p.clone() for p in agent.target_critic.parameters()]
    torch.manual_seed(1)
    metrics = lunar.update(agent, data, args)
    assert_close(metrics["target_q"], target.mean()[None])
    assert_close(metrics["critic_loss"], (weight * error.square()).mean(1).sum()[None])
    assert_close(metrics["actor_loss"], actor_loss.detach()[None])
    for parameter, gradient in zip(agent.actor.parameters(), gradients):
        assert_close(parameter.grad, gradient)
    online = agent.critic.parameters()
    for now, before, new in zip(agent.target_critic.parameters(), old, online):
        assert_close(now, 0.75 * before + 0.25 * new)
    agent.critic.layers[2].weight.data.zero_()  # Var[Q] is 0, and has a logarithm all the same
    assert lunar.state_variance(agent, obs, args).log10().isfinite().all()


def test_td_lambda_returns_by_hand():
    """Of three environments one goes on, one terminates at step 1, one runs out of time there."""
    steps = {
        "next_obs": torch.tensor([[8.0], [16], [32]]).expand(3, 3).unsqueeze(-1),
        "reward": torch.tensor([[100.0], [200], [400]]).expand(3, 3),
        "done": torch.tensor([[0, 0, 0], [0, 1, 0], [0, 0, 0]]),
        "ended": torch.tensor([[0, 0, 0], [0, 1, 1], [0, 0, 0]], dtype=torch.bool),
    }
    # The last row: 4 + 0.5 * 32 = 20. Before it 2 + 0.5 * (0.5 * 16 + 0.5 * 20) = 11; 2 where it
    # terminated; 2 + 0.5 * 16 = 10 where time was up. First: 1 + 0.5 * (0.5 * 8 + 0.5 * [...]).
    expected = torch.tensor([[5.75, 3.5, 5.5], [11, 2, 10], [20, 20, 20]])
    assert torch.equal(lunar.td_lambda_returns(lambda x: x, steps, 0.5, 0.5), expected)


def test_a_cut_removes_states_and_next_states():
    x, y = [0.05, 0.1, 0.2, 0.2, 0.3], [0.8, 0.9, 0.1, 0.81, 0.5]
    obs = np.zeros((5, 3, 8))  # the same in three environments
    obs[:, :, 0], obs[:, :, 1] = np.transpose([x] * 3), np.transpose([y] * 3)
    name = np.arange(5)[:, None] + 10 * np.arange(3)
    expert = {"obs": obs, "next_obs": obs[[1, 2, 0, 4, 2]], "name": name}
    # left: 0 begins at 0.05, 2 ends there; 0.1 is kept. top: 1 and 3 begin above 0.8, 0 ends there.
    for clip, kept, num_removed in (("left", [1, 3, 4], 3), ("top", [2, 4], 6)):
        known, test, removed = lunar.cut(expert, clip)
        assert known["name"].tolist() == [20 + i for i in kept]
        assert sorted(test["name"]) == [10 * e + i for e in (0, 1) for i in kept]
        assert len(removed) == num_removed


def test_whole_run(tmp_path):
    """Its expert's steps, pictures with something on them, and the same numbers once more."""
    folder = tmp_path / "run"
    result = lunar.main(replace(TINY, run_dir=str(folder)))
    expert = dict(np.load(folder / "expert.npz"))
    ended = expert["ended"][:-1]  # where the next state is not the following step's, but the last
    same = (expert["next_obs"][:-1] == expert["obs"][1:]).all(-1)
    assert 5 < ended.sum() < 50 and np.array_equal(same, ~ended)
    for clip, numbers in result["clips"].items():
        image = imread(folder / f"{clip}.png")
        assert max(image.shape[:2]) <= 1000 and image[..., :3].std() > 0.1
        assert len(numbers["auroc_variance"]) == 2 and len(numbers["auroc_distance"]) == 1
    assert lunar.auroc(torch.tensor([[1.0, 2]]), torch.tensor([[2.0, 3]])) == [0.875]  # a tie: half
    again = lunar.main(replace(TINY, run_dir=str(tmp_path / "again")), expert)
    assert again["clips"] == result["clips"]


@pytest.mark.parametrize("name", SHARED.split())
def test_code_shared_with_uwac_is_the_same_to_the_letter(name):
    find = attrgetter(name)
    assert inspect.getsource(find(lunar)) == inspect.getsource(find(uwac))
