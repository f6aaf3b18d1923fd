"""lunarlander_uncertainty.py: Algorithm 1 and AWR by hand, the cut, a whole run, and the file."""

import inspect
import json
import re
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.image import imread
from torch.testing import assert_close

import lunarlander_uncertainty as lunar
import uwac

SHARED = "InputError StackedLinear MLP.__init__ MLP.forward rows Critic.forward Agent.minimize"
SHARED += " analytic_dropout_variance"
TINY = lunar.Args(num_seeds=2, total_steps=3, batch_size=8, hidden_dim=8, expert_iterations=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a tiny run on both clips, its expert, and what main returned."""
    folder = tmp_path_factory.mktemp("lunar") / "run"
    result = lunar.main(replace(TINY, run_dir=str(folder)))
    return folder, dict(np.load(folder / "expert.npz")), result


def agent_and_data(**changes):
    """An untrained agent of one seed, and 200 random transitions."""
    args = replace(TINY, num_seeds=1, **changes)
    action = torch.eye(4).repeat(50, 1)
    done = torch.arange(200) % 3 == 0
    data = [torch.randn(200, 8), action, torch.randn(200), torch.randn(200, 8), done.float()]
    agent = lunar.Agent(args)
    agent.critic.layers[2].weight.data.normal_()  # Q and its variance differ between actions
    agent.target_critic.layers[2].weight.data.normal_()
    return agent, data, args


def q_of_all_actions(critic, obs):
    """Q (2, B, A) of one seed's critics, which are uwac.py's and tested there."""
    return critic(obs[None], lunar.every_action(obs[None]))[:, 0].detach()


def test_critic_regresses_on_weighted_targets(monkeypatch):
    """Lines 3 to 8 and 12 with plain torch; of 50 candidates all four actions are among them."""
    monkeypatch.setattr(F, "dropout", lambda x, p: x)
    agent, data, args = agent_and_data(gamma=0.5, num_candidates=50, beta=0.03, tau=0.25)
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
    error = (q_of_all_actions(agent.critic, obs) * action).sum(-1) - target
    old = [p.clone() for p in agent.target_critic.parameters()]
    torch.manual_seed(1)
    metrics = lunar.update(agent, data, args)
    assert_close(metrics["target_q"], target.mean()[None])
    assert_close(metrics["variance"], variance.mean()[None])
    assert_close(metrics["weight"], weight.mean()[None])
    assert_close(metrics["critic_loss"], (weight * error.square()).mean(1).sum()[None])
    online = agent.critic.parameters()
    for now, before, new in zip(agent.target_critic.parameters(), old, online):
        assert_close(now, 0.75 * before + 0.25 * new)


def test_actor_moves_towards_weighted_q():
    """Lines 10 and 11: its gradient is that of -sum over actions of pi * weight * min(Q1, Q2)."""
    agent, data, args = agent_and_data(critic_lr=0.0, beta=0.03)
    torch.manual_seed(1)
    obs = data[0][torch.randint(200, (1, 8))]
    q = q_of_all_actions(agent.critic, obs[0])
    variance = lunar.dropout_variance(agent.critic, obs, lunar.every_action(obs), args)
    weight = (0.03 / variance).clamp(max=1.5)
    assert weight.min() < 1.4
    loss = -(agent.actor(obs).softmax(-1) * weight * q.amin(0)).sum(-1).mean()
    expected = torch.autograd.grad(loss, list(agent.actor.parameters()))
    torch.manual_seed(1)
    metrics = lunar.update(agent, data, args)
    assert_close(metrics["actor_loss"], loss.detach()[None])
    for parameter, gradient in zip(agent.actor.parameters(), expected):
        assert_close(parameter.grad, gradient)


def test_variance_of_a_state_is_its_policys_mean():
    """And the closed form is that of 2,000 passes, whose own error is 3%, at the sizes in use."""
    agent, data, args = agent_and_data(hidden_dim=64)
    obs = data[0][:5]
    policy = agent.actor(obs[None]).softmax(-1)[0].detach()
    inputs = agent.critic, obs[None], torch.eye(4).expand(1, 5, 4, 4), 0.1, 2_000
    variance = uwac.mc_dropout_variance(*inputs).sum(0)
    expected = (policy * variance.view(5, 4)).sum(-1)
    assert_close(lunar.state_variance(agent, obs, args)[0], expected, rtol=0.1, atol=0)


def test_auroc_by_hand():
    known, novel = torch.tensor([[3.0, 1, 2]]), torch.tensor([[2.5, 4]])
    assert lunar.auroc(known, novel) == [pytest.approx(5 / 6)]


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


def test_awr_finds_the_better_action():
    """Action 2 earns 100 and the others nothing, in episodes of a step: V is their mean, 0.25."""
    obs, ended = torch.zeros(16, 4, 8), torch.ones(16, 4, dtype=torch.bool)
    steps = {"obs": obs, "next_obs": obs, "done": ended.float(), "ended": ended}
    steps["action"] = torch.arange(64).view(16, 4) % 4
    steps["reward"] = 100.0 * (steps["action"] == 2)
    actor, value = lunar.MLP((), 8, 16, 4), lunar.MLP((), 8, 16, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *value.parameters()], 1e-2)
    lunar.awr_update(actor, value, optimizer, steps)
    assert_close(value(obs[0])[0, 0].item(), 0.25, rtol=0, atol=0.05)
    assert actor(obs[0])[0].softmax(-1)[2] > 0.9


def test_steps_of_the_expert(run):
    """A step's next state is the following step's state, but where an episode ends its own last."""
    _, expert, _ = run
    ended = expert["ended"][:-1]
    same = (expert["next_obs"][:-1] == expert["obs"][1:]).all(-1)
    assert 5 < ended.sum() < 50 and np.array_equal(same, ~ended)
    assert (np.abs(expert["obs"][1:][ended][:, 1] - 1.41) < 0.05).all()  # anew, high in the sky
    done = expert["done"] == 1
    assert not done[~expert["ended"]].any()
    assert (np.abs(expert["reward"][done]) == 100).all()  # the crash or the landing itself


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
    with pytest.raises(lunar.InputError, match="clip top"):
        lunar.cut({"obs": obs * 0, "next_obs": obs * 0}, "top")


def test_whole_run_and_once_more(run, tmp_path):
    """Pictures with something on them; on the saved expert the same numbers; another seed, not."""
    folder, expert, result = run
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(result))
    for clip, numbers in result["clips"].items():
        image = imread(folder / f"{clip}.png")
        assert max(image.shape[:2]) <= 1000 and image[..., :3].std() > 0.1
        assert len(numbers["auroc_variance"]) == 2 and len(numbers["auroc_distance"]) == 1
    again = lunar.main(replace(TINY, run_dir=str(tmp_path / "again")), expert)
    assert again["clips"] == result["clips"]
    other, _ = lunar.study(expert, "top", replace(TINY, seed=1))
    assert other != result["clips"]["top"]
    with pytest.raises(FloatingPointError, match="clip top"):
        lunar.study(expert, "top", replace(TINY, critic_lr=1e9, total_steps=20))


def test_refused_arguments():
    for name, value in {"dropout": 1.0, "clip": ("right",), "beta": "a", "seed": -1}.items():
        with pytest.raises(lunar.InputError, match=f"--{name}"):
            replace(TINY, **{name: value})


@pytest.mark.parametrize("name", SHARED.split())
def test_code_shared_with_uwac_is_the_same_to_the_letter(name):
    find = attrgetter(name)
    assert inspect.getsource(find(lunar)) == inspect.getsource(find(uwac))


def test_the_head_has_the_versions_of_requirements_txt():
    script = Path(lunar.__file__)
    head = script.read_text().partition('"""')[0]
    listed = dict(re.findall(r'"([\w-]+)[^"]*==([^"]+)"', head))
    rows = script.with_name("requirements.txt").read_text()
    required = dict(re.findall(r"^([\w-]+).*==(.+)$", rows, re.MULTILINE))
    assert len(listed) == 7 and listed.items() <= required.items()
