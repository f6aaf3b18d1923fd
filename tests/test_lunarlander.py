"""lunarlander_uncertainty.py: Algorithm 1 and AWR by hand, the expert, the cut, and a whole run."""

import inspect
import json
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import command_line
from filelock import FileLock
from torch.testing import assert_close

import lunarlander_uncertainty as lunar
import uwac

SHARED = ["StackedLinear", "MLP", "concat", "Critic.forward", "analytic_dropout_variance", "pick"]
SHARED += ["Agent.minimize"]
TINY = lunar.Args(num_seeds=2, total_steps=3, batch_size=8, hidden_dim=8, expert_iterations=1)


def test_code_shared_with_uwac_is_the_same_to_the_letter():
    for find in map(attrgetter, SHARED):  # uwac.py's MLP goes on
        assert inspect.getsource(find(uwac)).startswith(inspect.getsource(find(lunar)))


def test_update_by_hand(monkeypatch):
    """All that the target actor may do is among 50 candidates."""
    monkeypatch.setattr(lunar.F, "dropout", lambda x, p: (1 - p) * x)
    args = replace(TINY, critic_lr=0.0, num_candidates=50, gamma=0.5, beta=0.03, tau=0.25)
    agent = lunar.Agent(args)
    actor, critic, target_critic = agent.actor, agent.critic, agent.target_critic
    for last in (critic.layers[2], target_critic.layers[2]):
        last.weight.data.normal_()  # Q and its variance differ between actions
    agent.target_actor.forward = lambda obs: -1e9 * (obs[..., :4] < obs[..., :4].mean(-1, True))
    data = [torch.randn(200, 8), torch.eye(4).repeat(50, 1), torch.randn(200), torch.randn(200, 8)]
    data.append((torch.arange(200) % 3 == 0).float())  # done
    torch.manual_seed(1)
    index = torch.randint(200, (2, 8))
    obs, action, reward, next_obs, done = (array[index] for array in data)
    every_action = torch.eye(4).expand(2, 8, 4, 4)
    q = target_critic(next_obs, every_action).detach()  # (2, S, B, A)
    mixture = 0.75 * q.amin(0) + 0.25 * q.amax(0)
    y, best = (mixture + agent.target_actor(next_obs)).max(-1)  # of those that are not improbable
    target_q = reward + 0.5 * (1 - done) * y
    var_y = lunar.analytic_dropout_variance(target_critic, next_obs, torch.eye(4)[best], 0.1).sum(0)
    weight = (0.03 / var_y).clamp(max=1.5)
    error = (critic(obs, every_action, 0.1) * action).sum(-1).detach() - target_q
    q = critic(obs, every_action).detach()
    variance = lunar.analytic_dropout_variance(critic, obs, every_action, 0.1).sum(0)
    policy = actor(obs).softmax(-1).detach()
    assert_close(lunar.state_variance(agent, obs[0])[0], (policy * variance).sum(-1)[0])
    actor_loss = -(policy * (0.03 / variance).clamp(max=1.5) * q.amin(0)).sum(-1).mean(1)
    targets = [*agent.target_actor.parameters(), *target_critic.parameters()]
    before = [parameter.clone() for parameter in targets]
    torch.manual_seed(1)
    metrics = lunar.update(agent, data)
    critic_loss = (weight * error.square()).sum(0).mean(1)
    means = [target_q.mean(1), var_y.mean(1), weight.mean(1)]
    assert_close(list(metrics.values()), [critic_loss, actor_loss, *means])
    online = [*actor.parameters(), *critic.parameters()]
    assert_close(targets, [0.75 * old + 0.25 * new for old, new in zip(before, online)])


def test_td_lambda_returns_by_hand():
    next_value = torch.tensor([[8.0], [16], [32]]).expand(3, 3)
    steps = {"next_obs": next_value.unsqueeze(-1), "reward": 12.5 * next_value}
    steps["done"] = torch.tensor([[0, 0, 0], [0, 1, 0], [0, 0, 0]])
    steps["ended"] = torch.tensor([[0, 0, 0], [0, 1, 1], [0, 0, 0]]) == 1
    # Last: 4 + 0.5 * 32. Before: 2 + 0.5 * (0.5 * 16 + 0.5 * 20); 2, terminated; 2 + 0.5 * 16, cut.
    expected = torch.tensor([[5.75, 3.5, 5.5], [11, 2, 10], [20, 20, 20]])
    assert torch.equal(lunar.td_lambda_returns(lambda x: x, steps, 0.5, 0.5), expected)


def test_awr_by_hand():
    actor, value = lunar.MLP((), 8, 16, 4), lunar.MLP((), 8, 16, 1)
    value.layers[2].weight.data.normal_()  # without it as a baseline, advantages differ
    optimizer = torch.optim.SGD([*actor.parameters(), *value.parameters()], lr=0.0)
    biases = (value.layers[2].bias, actor.layers[2].bias)  # which stay; their gradients are seen
    found = []
    optimizer.register_step_post_hook(lambda *_: found.append([bias.grad for bias in biases]))
    steps = {"obs": torch.randn(50, 2, 8), "next_obs": torch.randn(50, 2, 8)}
    steps |= {"action": torch.randint(4, (50, 2)), "reward": 100 * torch.randn(50, 2)}
    steps |= {"done": torch.zeros(50, 2), "ended": torch.zeros(50, 2, dtype=torch.bool)}
    advantage = lunar.td_lambda_returns(value, steps, 0.999, 0.98).flatten()
    obs, action = steps["obs"].flatten(0, 1), steps["action"].flatten()
    advantage -= value(obs).detach().flatten()
    weight = ((advantage - advantage.mean()) / advantage.std() / 0.3).exp().clamp(max=20)
    of_logits = weight[:, None] * (actor(obs).detach().softmax(-1) - lunar.F.one_hot(action, 4))
    torch.manual_seed(1)
    of_value, of_actor = (torch.randint(100, (n, 256))[-1] for n in (100, 200))
    torch.manual_seed(1)
    lunar.awr_update(actor, value, optimizer, steps)
    assert_close(found[99][0], -2 * advantage[of_value].mean()[None, None])
    assert_close(found[-1][1], of_logits[of_actor].mean(0)[None])


def test_study_of_an_agent_whose_variance_grows_to_the_left_at_first(monkeypatch):
    """And to the right in the end. The other agent's is 1 everywhere."""
    assert lunar.auroc(torch.tensor([[1.0, 2]]), torch.tensor([[2.0, 3], [0, 1]])) == [0.875, 0.125]
    states = np.random.default_rng(0).normal(size=(1000, 4, 8)).astype(np.float32)
    expert = {"obs": states, "next_obs": states + 1, "action": states[..., 1].astype(int) % 4}
    expert |= {"reward": states[..., 2], "done": states[..., 3]}
    metrics = {"critic_loss": torch.zeros(2), "weight": torch.tensor([1.0, 2])}
    updates, measured = [], []

    def update(agent, data):
        updates.append(data)
        agent.sign = len(updates) // 25  # 0 until the last
        return metrics

    def variance(agent, obs):
        measured.append(obs)
        return torch.stack([(getattr(agent, "sign", -1) * obs[:, 0]).exp(), torch.ones(len(obs))])

    monkeypatch.setattr(lunar, "update", update)
    monkeypatch.setattr(lunar, "state_variance", variance)
    numbers, figure = lunar.study(expert, "left", replace(TINY, total_steps=25))
    x = states[..., 0]
    known = states[:, 2:][x[:, 2:] >= 0.1]
    normalize = lambda obs: (obs - known.mean(0)) / (known.std(0) + 1e-3)
    obs, action, reward, next_obs, done = (tensor.numpy() for tensor in updates[0])
    np.testing.assert_allclose([obs, next_obs], [normalize(known), normalize(known + 1)], atol=1e-4)
    assert (action.argmax(1) == known[:, 1].astype(int) % 4).all()
    assert (reward == known[:, 2]).all() and (done == known[:, 3]).all()

    kept, removed = (obs.numpy() for obs in measured[:2])
    assert len(kept) == (x[:, :2] >= 0.1).sum() and len(removed) == 2000  # not the first ones
    assert (abs(removed[:9] - normalize(states[x < 0.1][:9])) > 0.01).any()
    assert list(numbers.values())[:2] == [(x < 0.1).sum(), len(obs)]
    distance = lambda a: np.linalg.norm(a[:, None] - obs, axis=2).min(1)
    norm = lambda a: np.linalg.norm(a, axis=1)
    for name, function in (("auroc_distance", distance), ("auroc_norm", norm)):
        larger = function(removed)[:, None] > function(kept)
        assert numbers[name] == pytest.approx(larger.mean(), abs=1e-3)
    assert numbers["auroc_variance_untrained"] == [1, 0.5] and numbers["auroc_variance"] == [0, 0.5]
    history = numbers["history"]
    assert [row["step"] for row in history] == [0, 2, 5, 7, 10, 12, 15, 17, 20, 22, 25]
    then = {"critic_loss": [0, 0], "weight": [1, 2]}
    assert history[-1] == {"step": 25, "auroc_variance": [0, 0.5]} | then

    _, before, after, course = figure.axes[:4]
    corners = [[-1, -0.1, *known.mean(0)[2:]], [1, 1.6, *known.mean(0)[2:]]]
    np.testing.assert_allclose(measured[-1][[0, -1]], normalize(corners), atol=1e-4)
    for axes, sign in ((before, -1), (after, 1)):
        log_variance = sign * measured[-1][:, 0].view(50, 50) / np.log(10)
        np.testing.assert_allclose(axes.collections[0].get_array(), log_variance / 2, atol=1e-6)
    assert course.lines[2].get_ydata().tolist() == [0.75, *[0.5] * 9, 0.25]  # agents' mean
    metrics["critic_loss"][1] = torch.nan  # of one agent
    with pytest.raises(FloatingPointError, match=r"diverged at update 2: \['critic_loss'\] not"):
        lunar.study(expert, "top", replace(TINY, total_steps=25))


def test_a_cut_removes_states_and_next_states():
    x = [0.05, 0.1, 0.2, 0.2, 0.3]
    y = [0.8, 0.9, 0.1, 0.81, 0.5]
    obs = np.stack([[x] * 3, [y] * 3, [[10 * e + i for i in range(5)] for e in range(3)]]).T
    expert = {"obs": obs, "next_obs": obs[[1, 2, 0, 4, 2]]}  # (5, 3, 3), the last one is a name
    # left: 0 begins at 0.05, 2 ends there; 0.1 is kept. top: 1 and 3 begin above 0.8, 0 ends there.
    for clip, kept, gone in (("left", [1, 3, 4], [0]), ("top", [2, 4], [1, 3])):
        known, held_out, removed = lunar.cut(expert, clip)
        assert known["obs"][:, 2].tolist() == [20 + i for i in kept]
        assert sorted(held_out[:, 2]) == [10 * e + i for e in (0, 1) for i in kept]
        assert sorted(removed[:, 2]) == [10 * e + i for e in (0, 1, 2) for i in gone]
    for everywhere in (0.0, 0.5):
        obs[:, :, 0] = everywhere
        with pytest.raises(ValueError, match="clip left: no states on one side"):
            lunar.cut(expert, "left")


def test_whole_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    made, learned = [], []
    make_vec = partial(gym.make_vec, max_episode_steps=80)
    monkeypatch.setattr(gym, "make_vec", lambda *a: made.append(make_vec(*a)) or made[-1])
    monkeypatch.setattr(lunar, "awr_update", lambda *a: learned.append(a) or a[2].step())
    run = tmp_path / "run"
    run.mkdir()
    for file in ("in-use.lock", "unfinished.npz"):  # of a run that was stopped before it had more
        (run / file).touch()
    result = lunar.main(replace(TINY, run_dir="~/run", expert_iterations=9, seed=np.int64(0)))
    files = ["expert.npz", "in-use.lock", "left.png", "result.json", "top.png"]
    assert sorted(path.name for path in run.iterdir()) == files
    expert = dict(np.load(run / "expert.npz"))
    obs = expert["obs"]
    follows = (expert["next_obs"][:-1] == obs[1:]).all(-1)  # but where an episode ended
    assert (follows == ~expert["ended"][:-1]).all() and (expert["ended"] > expert["done"]).any()
    assert ((abs(expert["reward"]) == 100) == expert["done"]).all()  # a crash or a landing
    assert result["mean_return"] == expert["reward"].sum() / expert["ended"].sum()
    removed = [numbers["states_removed"] for numbers in result["clips"].values()]
    assert removed == [(obs[..., 0] < 0.1).sum(), (obs[..., 1] > 0.8).sum()]
    for name in ("obs", "next_obs"):  # it learned from the newest, normalized by all
        normalized = (expert[name][-1024:] - obs.mean((0, 1))) / (obs.std((0, 1)) + 1e-3)
        np.testing.assert_allclose(learned[-1][3][name], normalized, 1e-3, 1e-3)
    assert [group["lr"] for group in learned[-1][2].param_groups] == [0, 0]  # in the end
    other, _ = lunar.study(expert, "top", replace(TINY, seed=1))
    assert other["auroc_norm"] != result["clips"]["top"]["auroc_norm"]  # of other states
    assert torch.initial_seed() == 1
    monkeypatch.setattr(lunar.Figure, "savefig", lambda *_, **__: None)  # slow
    again = lunar.main(replace(TINY, run_dir="~/again", expert="~/run/expert.npz"))
    assert again["clips"] == result["clips"] and len(made) == 1  # no second expert
    saved = json.loads((run / "result.json").read_text())
    assert saved == json.loads(json.dumps(result, default=str))
    other = lunar.train_expert(replace(TINY, expert_seed=2))
    assert (other["obs"][0] != obs[0]).any() and torch.initial_seed() == 2
    monkeypatch.setattr(lunar, "STEPS", 100)
    assert (lunar.train_expert(TINY)["obs"] == obs[28:128]).all()
    monkeypatch.setattr(lunar, "awr_update", lambda *a: 1 / 0)
    pytest.raises(ZeroDivisionError, lunar.train_expert, TINY)
    assert len(made) == 4 and all(envs.closed for envs in made)


def test_bad_input(tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lunar.gym, "make_vec", None)  # no expert is trained
    for file in ("full/thesis.txt", "used/in-use.lock", "text/text.npz"):
        Path(file).parent.mkdir()
        Path(file).write_text("words")
    np.savez("other.npz", obs=np.zeros(3))
    np.save("array.npz", np.zeros(3))
    files = set(Path().rglob("*"))
    assert "full has files: choose another" in refused("--run-dir full", lunar)
    with FileLock("used/in-use.lock"):
        assert "in-use.lock' could not be acquired" in refused("--run-dir used", lunar)
    for file in ("text/text.npz", "other.npz", "array.npz", "none.npz"):
        assert f"--expert {file}: not a run's expert.npz (" in refused(f"--expert {file}", lunar)
    assert set(Path().rglob("*")) == files
    for wrong in ({"expert_seed": 2**63}, {"dropout": 0.0}, {"beta": np.inf}, {"clip": "left"}):
        pytest.raises(ValueError, replace, TINY, **wrong)
    assert command_line(lunar, "--tau 2", monkeypatch) == 2
