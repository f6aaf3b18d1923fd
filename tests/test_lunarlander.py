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
    """Algorithm 1 with plain torch: lines 3 to 8 and 12, and with critics that stay, 10 and 11. All
    actions that the target actor may take, which depend on the state, are among 50 candidates."""
    monkeypatch.setattr(F, "dropout", lambda x, p: x)
    settings = {"num_candidates": 50, "gamma": 0.5, "beta": 0.03, "tau": 0.25}
    args = replace(TINY, num_seeds=1, critic_lr=0.0, **settings)
    agent = lunar.Agent(args)
    agent.critic.layers[2].weight.data.normal_()  # Q and its variance differ between actions
    agent.target_critic.layers[2].weight.data.normal_()
    agent.target_actor.forward = lambda obs: 1e9 * (obs[..., :4] > 0)
    done = (torch.arange(200) % 3 == 0).float()
    actions = torch.eye(4).repeat(50, 1)
    data = [torch.randn(200, 8), actions, torch.randn(200), torch.randn(200, 8), done]
    torch.manual_seed(1)
    index = torch.randint(200, (1, 8))[0]
    obs, action, reward, next_obs, done = (array[index] for array in data)
    q = q_of_all_actions(agent.target_critic, next_obs)
    allowed = next_obs[:, :4] > 0
    allowed |= ~allowed.any(1, keepdim=True)  # or all four
    mixture = 0.75 * q.amin(0) + 0.25 * q.amax(0)
    y, best = mixture.masked_fill(~allowed, -torch.inf).max(-1)
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


def test_awr_by_hand():
    """The gradients of its last batch, in the last biases of a value and an actor that stay."""
    torch.manual_seed(0)
    actor, value = lunar.MLP((), 8, 16, 4), lunar.MLP((), 8, 16, 1)
    value.layers[2].weight.data.normal_()  # without it as a baseline, advantages differ
    parameters = [*actor.parameters(), *value.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.0)
    biases = (value.layers[2].bias, actor.layers[2].bias)
    found = []
    optimizer.register_step_post_hook(lambda *_: found.append([bias.grad for bias in biases]))
    steps = {"obs": torch.randn(50, 2, 8), "next_obs": torch.randn(50, 2, 8)}
    steps |= {"action": torch.randint(4, (50, 2)), "reward": 100 * torch.randn(50, 2)}
    steps |= {"done": torch.zeros(50, 2), "ended": torch.zeros(50, 2, dtype=torch.bool)}
    returns = lunar.td_lambda_returns(value, steps).flatten()
    values = value(steps["obs"].flatten(0, 1)).detach().flatten()
    policy = actor(steps["obs"].flatten(0, 1)).detach().softmax(-1)
    advantage = returns - values
    advantage = (advantage - advantage.mean()) / advantage.std()
    weight = (advantage / 0.3).exp().clamp(max=20)
    torch.manual_seed(1)
    of_value, of_actor = (torch.randint(100, (n, 256))[-1] for n in (100, 200))
    of_logits = weight[:, None] * (policy - F.one_hot(steps["action"].flatten(), 4))
    torch.manual_seed(1)
    lunar.awr_update(actor, value, optimizer, steps)
    assert len(found) == 300
    assert_close(found[99][0], 2 * (values - returns)[of_value].mean()[None, None])
    assert_close(found[299][1], of_logits[of_actor].mean(0)[None])


def test_study_of_a_known_critic(monkeypatch):
    """One whose variance grows to the left, where states were removed: all of them lie above all
    that were kept. And what the agents are given."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(100, 4, 8)).astype(np.float32)
    expert = {"obs": obs, "next_obs": obs + 1, "action": rng.integers(4, size=(100, 4))}
    expert |= {"reward": obs[..., 1], "done": np.zeros_like(obs[..., 1])}
    update = lunar.update
    given = []
    monkeypatch.setattr(lunar, "update", lambda *a: given.append(a[1]) or update(*a))
    monkeypatch.setattr(lunar, "state_variance", lambda agent, obs, args: (-obs[None, :, 0]).exp())
    numbers, _ = lunar.study(expert, "left", TINY)
    assert numbers["auroc_variance"] == [1.0]
    assert 0.5 < numbers["auroc_distance"][0] < 1
    obs, _, _, next_obs, _ = given[0]
    assert (next_obs - obs).min() > 0.5


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


def test_whole_run(tmp_path, monkeypatch):
    """Its expert's steps, pictures with something on them, and the same numbers once more."""
    folder = tmp_path / "run"
    learned = []
    awr_update = lunar.awr_update
    monkeypatch.setattr(lunar, "awr_update", lambda *a: learned.append(a[-1]) or awr_update(*a))
    result = lunar.main(replace(TINY, run_dir=str(folder)))
    expert = dict(np.load(folder / "expert.npz"))
    ended = expert["ended"][:-1]  # where the next state is not the following step's, but the last
    same = (expert["next_obs"][:-1] == expert["obs"][1:]).all(-1)
    assert 5 < ended.sum() < 50 and np.array_equal(same, ~ended)
    same = (learned[0]["next_obs"][:-1] == learned[0]["obs"][1:]).all(-1)
    assert np.array_equal(same, ~ended)
    for clip, numbers in result["clips"].items():
        image = imread(folder / f"{clip}.png")
        assert max(image.shape[:2]) <= 1200 and image[..., :3].std() > 0.1
        assert len(numbers["auroc_variance"]) == 2 and len(numbers["auroc_distance"]) == 1
    assert lunar.auroc(torch.tensor([[1.0, 2]]), torch.tensor([[2.0, 3]])) == [0.875]  # a tie: half
    again = lunar.main(replace(TINY, run_dir=str(tmp_path / "again")), expert)
    assert again["clips"] == result["clips"]


@pytest.mark.parametrize("name", SHARED.split())
def test_code_shared_with_uwac_is_the_same_to_the_letter(name):
    find = attrgetter(name)
    assert inspect.getsource(find(lunar)) == inspect.getsource(find(uwac))
