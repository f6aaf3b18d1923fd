"""lunarlander_uncertainty.py: Algorithm 1 and AWR by hand, the study of two fakes, a whole run."""

import inspect
import json
import sys
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import command_line
from scipy.spatial import KDTree
from torch.testing import assert_close

import lunarlander_uncertainty as lunar
import uwac

SHARED = ["StackedLinear", "MLP", "concat", "Critic.forward", "analytic_dropout_variance", "pick"]
SHARED += ["Agent.minimize"]
TINY = lunar.Args(num_seeds=2, total_steps=1, batch_size=8, hidden_dim=8, expert_iterations=1)


@pytest.mark.parametrize("name", SHARED)
def test_code_shared_with_uwac_is_the_same_to_the_letter(name):
    find = attrgetter(name)  # uwac.py's MLP goes on
    assert inspect.getsource(find(uwac)).startswith(inspect.getsource(find(lunar)))


def test_defaults_are_those_of_uwac():
    names = ["beta", "dropout", "weight_clip", "batch_size", "gamma", "tau", "lmbda"]
    find = attrgetter(*names, "num_candidates", "actor_lr")
    assert find(lunar.Args()) == find(uwac.Args())


def test_update_by_hand(monkeypatch):
    """All that the target actor may do is among 50 candidates."""
    monkeypatch.setattr(lunar.F, "dropout", lambda x, p: (1 - p) * x)
    args = replace(TINY, num_candidates=50, gamma=0.5, lmbda=0.6, tau=0.25, critic_lr=0.0)
    args = replace(args, beta=0.03, weight_clip=1.2, dropout=0.2, actor_lr=0.5)
    agent = lunar.Agent(args)
    actor, critic, target_critic = agent.actor, agent.critic, agent.target_critic
    assert actor.layers[1].weight.shape == (2, 8, 8) and critic.layers[1].weight.shape[1:] == (
        2,
        8,
        8,
    )
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
    mixture = 0.6 * q.amin(0) + 0.4 * q.amax(0)
    y, best = (mixture + agent.target_actor(next_obs)).max(-1)  # of those that are not improbable
    target_q = reward + 0.5 * (1 - done) * y
    var_y = lunar.analytic_dropout_variance(target_critic, next_obs, torch.eye(4)[best], 0.2).sum(0)
    weight = (0.03 / var_y).clamp(max=1.2)
    assert 0 < (weight == 1.2).sum() < weight.numel()
    error = (critic(obs, every_action, 0.2) * action).sum(-1).detach() - target_q
    q = critic(obs, every_action).detach()
    variance = lunar.analytic_dropout_variance(critic, obs, every_action, 0.2).sum(0)
    policy = actor(obs).softmax(-1).detach()
    assert_close(lunar.state_variance(agent, obs[0])[0], (policy * variance).sum(-1)[0])
    actor_loss = -(policy * (0.03 / variance).clamp(max=1.2) * q.amin(0)).sum(-1).mean(1)
    targets = [*agent.target_actor.parameters(), *target_critic.parameters()]
    before = [parameter.clone() for parameter in targets]
    torch.manual_seed(1)
    metrics = lunar.update(agent, data)
    critic_loss = (weight * error.square()).sum(0).mean(1)
    means = [target_q.mean(1), var_y.mean(1), weight.mean(1)]
    assert_close(list(metrics.values()), [critic_loss, actor_loss, *means])
    online = [*actor.parameters(), *critic.parameters()]
    assert_close((online[0] - before[0]).abs().max(), torch.tensor(0.5))  # Adam's first step
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
    """The value learns the returns of the old value, and the actor advantages of the new one."""
    actor, value = lunar.MLP((), 8, 16, 4), lunar.MLP((), 8, 16, 1)
    steps = {"obs": torch.randn(50, 2, 8), "next_obs": torch.randn(50, 2, 8)}
    steps |= {"action": torch.randint(4, (50, 2)), "reward": 100 * torch.randn(50, 2)}
    steps |= {"done": torch.zeros(50, 2), "ended": torch.zeros(50, 2, dtype=torch.bool)}
    obs, action = steps["obs"].flatten(0, 1), steps["action"].flatten()
    old_returns = lunar.td_lambda_returns(value, steps, 0.999, 0.98).flatten()
    groups = [{"params": value.parameters(), "lr": 0.01}, {"params": actor.parameters(), "lr": 0.0}]
    optimizer = torch.optim.SGD(groups)
    found = []  # gradients of the last biases, and values after the step

    def remember(*_):
        of_value, of_actor = value.layers[2].bias.grad, actor.layers[2].bias.grad
        found.append((of_value, of_actor, value(obs).detach().flatten()))

    optimizer.register_step_post_hook(remember)
    torch.manual_seed(1)
    last_batches = [torch.randint(100, (n, 256))[-1] for n in (100, 200)]
    torch.manual_seed(1)
    lunar.awr_update(actor, value, optimizer, steps)
    assert len(found) == 300
    error = found[98][2] - old_returns
    assert_close(found[99][0], 2 * error[last_batches[0]].mean()[None, None])
    advantage = lunar.td_lambda_returns(value, steps, 0.999, 0.98).flatten() - found[99][2]
    assert (advantage + error).abs().mean() > 0.1  # others than by the old returns
    weight = ((advantage - advantage.mean()) / advantage.std() / 0.3).exp().clamp(max=20)
    of_logits = weight[:, None] * (actor(obs).detach().softmax(-1) - lunar.F.one_hot(action, 4))
    assert_close(found[-1][1], of_logits[last_batches[1]].mean(0)[None])


def test_auroc_by_hand():
    found = lunar.auroc(torch.tensor([[1.0, 2]]), torch.tensor([[2.0, 3], [0, 1]]))
    assert found.tolist() == [0.875, 0.125]  # of two seeds, each with a tie
    assert lunar.auroc(torch.tensor([1.0, 2]), torch.tensor([2.0, 3])).item() == 0.875


@pytest.fixture(scope="module", params=["left", "top"])
def studied(request):
    """A study of two fakes, on states of which many are removed. One's variance is 1 everywhere,
    the other's at first the larger, and after the last of 25 updates the smaller, the farther a
    state lies to the removed side."""
    clip = request.param
    states = np.random.default_rng(0).normal(size=(2500, 4, 8)).astype(np.float32)
    expert = {"obs": states, "next_obs": states + 1, "action": states[..., 2].astype(int) % 4}
    expert |= {"reward": states[..., 3], "done": states[..., 4]}
    to_removed_side = lambda obs: -obs[..., 0] if clip == "left" else obs[..., 1]
    data, measured = [], []

    def update(agent, agent_data):
        data.append(agent_data)
        agent.sign = -(len(data) // 25)  # 0 before the last
        return {"critic_loss": torch.zeros(2), "weight": torch.tensor([1.0, 2])}

    def variance(agent, obs):
        measured.append(obs)
        fake = (getattr(agent, "sign", 1) * to_removed_side(obs)).exp()
        return torch.stack([fake, torch.ones(len(obs))])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lunar, "update", update)
        patch.setattr(lunar, "state_variance", variance)
        numbers, figure = lunar.study(expert, clip, replace(TINY, total_steps=25))
    is_removed = lambda obs: obs[..., 0] < 0.1 if clip == "left" else obs[..., 1] > 0.8
    is_kept = ~is_removed(states) & ~is_removed(states + 1)
    known = states[:, 2:][is_kept[:, 2:]]  # what agents may learn from
    return SimpleNamespace(
        clip=clip,
        known=known,
        removed=states[is_removed(states)],
        held_out=states[:, :2][is_kept[:, :2]],
        normalize=lambda obs: (obs - known.mean(0)) / (known.std(0) + 1e-3),
        to_removed_side=to_removed_side,
        all_states=states.reshape(-1, 8),
        data=[tensor.numpy() for tensor in data[0]],
        measured=[tensor.numpy() for tensor in measured],
        numbers=numbers,
        axes={axes.get_title(): axes for axes in figure.axes},
    )


def test_agents_learn_from_normalized_transitions(studied):
    obs, action, reward, next_obs, done = studied.data
    np.testing.assert_allclose(obs, studied.normalize(studied.known), atol=1e-4)
    np.testing.assert_allclose(next_obs, studied.normalize(studied.known + 1), atol=1e-4)
    assert (action == np.eye(4)[studied.known[:, 2].astype(int) % 4]).all()
    assert (reward == studied.known[:, 3]).all() and (done == studied.known[:, 4]).all()
    assert studied.numbers["transitions_trained"] == len(studied.known)
    assert studied.numbers["states_removed"] == len(studied.removed)


def test_2000_random_states_of_each_side_are_compared(studied):
    for sample, states in zip(studied.measured, (studied.held_out, studied.removed)):
        distance, nearest = KDTree(studied.normalize(states)).query(sample)
        assert len(set(nearest)) == len(sample) == min(2000, len(states)) and distance.max() < 1e-4
        assert (np.diff(nearest) < 0).any()  # not in order, so not the first ones


def test_what_is_simpler_than_variance_has_the_auroc_of_the_same_states(studied):
    kept, removed = studied.measured[:2]
    functions = {"auroc_norm": lambda obs: np.linalg.norm(obs, axis=1)}
    functions["auroc_distance"] = lambda obs: KDTree(studied.data[0]).query(obs)[0]
    for name, function in functions.items():
        larger = function(removed)[:, None] > function(kept)
        assert studied.numbers[name] == pytest.approx(larger.mean(), abs=1e-3)


def test_auroc_is_measured_before_training_and_ten_times_on_the_way(studied):
    numbers, history = studied.numbers, studied.numbers["history"]
    assert numbers["auroc_variance_untrained"] == [1, 0.5] and numbers["auroc_variance"] == [0, 0.5]
    assert [row["step"] for row in history] == [0, 2, 5, 7, 10, 12, 15, 17, 20, 22, 25]
    assert history[0] == {"step": 0, "auroc_variance": [1, 0.5]}
    metrics = {"critic_loss": [0, 0], "weight": [1, 2]}
    assert history[-1] == {"step": 25, "auroc_variance": [0, 0.5]} | metrics


def test_map_of_states(studied):
    axes = studied.axes[f"the expert's states ({studied.clip} removed)"]
    (mesh,) = axes.collections
    corners = mesh.get_coordinates()  # (51, 51, 2)
    edges = (corners[:, 0, 1], corners[0, :, 0])
    x, y = studied.all_states[:, :2].T
    counts, *_ = np.histogram2d(y, x, edges)
    assert counts.sum() > 1000 and (mesh.get_array() == counts).all()
    assert mesh.colorbar.ax.get_ylabel() == "number of states"


@pytest.mark.parametrize("title, sign", [("untrained", 1), ("trained", -1)])
def test_map_of_variance(studied, title, sign):
    (mesh,) = studied.axes[title].collections
    corners = mesh.get_coordinates()
    middles = (corners[1:, 1:] + corners[:-1, :-1]) / 2  # (50, 50, 2)
    others = np.broadcast_to(studied.known.mean(0)[2:], (50, 50, 6))
    obs = studied.normalize(np.concatenate([middles, others], -1))
    of_fake = sign * studied.to_removed_side(obs) / np.log(10)
    np.testing.assert_allclose(mesh.get_array(), (of_fake + 0) / 2, atol=1e-5)  # log 1 is 0
    assert mesh.colorbar.ax.get_ylabel() == r"$\log_{10}$ Var[Q], mean of agents"
    assert abs(studied.measured[-1][:, 2:]).max() < 1e-4


def test_maps_have_the_edge_of_what_is_removed(studied):
    maps = [axes for axes in studied.axes.values() if axes.get_ylabel() == "y"]
    assert len(maps) == 3 and {axes.get_xlabel() for axes in maps} == {"x"}
    for axes in maps:
        (edge,) = axes.lines
        at = edge.get_xdata() if studied.clip == "left" else edge.get_ydata()
        assert list(at) == [{"left": 0.1, "top": 0.8}[studied.clip]] * 2
        limits = [axes.get_xlim(), axes.get_ylim()]
        np.testing.assert_allclose(limits, [(-1, 1), (-0.1, 1.6)], atol=0.05)


def test_curve_of_auroc(studied):
    axes = studied.axes["AUROC of Var[Q] (black: mean, dotted: chance)"]
    curves = {line.get_color(): line for line in axes.lines[1:]}  # one agent's is left
    assert axes.lines[0].get_ydata().tolist() == [1, *[0.5] * 9, 0]
    assert curves["0.7"].get_ydata().tolist() == [0.5] * 11
    assert curves["black"].get_ydata().tolist() == [0.75, *[0.5] * 9, 0.25]
    assert curves["black"].get_xdata().tolist() == [0, 2, 5, 7, 10, 12, 15, 17, 20, 22, 25]


@pytest.mark.parametrize("clip, kept, gone", [("left", [1, 3, 4], [0]), ("top", [2, 4], [1, 3])])
def test_a_cut_removes_states_and_next_states(clip, kept, gone):
    x = [0.05, 0.1, 0.2, 0.2, 0.3]
    y = [0.8, 0.9, 0.1, 0.81, 0.5]
    obs = np.stack([[x] * 3, [y] * 3, [[10 * e + i for i in range(5)] for e in range(3)]]).T
    expert = {"obs": obs, "next_obs": obs[[1, 2, 0, 4, 2]]}  # (5, 3, 3), the last one is a name
    # left: 0 begins at 0.05, 2 ends there; 0.1 is kept. top: 1 and 3 begin above 0.8, 0 ends there.
    transitions, held_out, removed = lunar.cut(expert, clip)
    assert transitions["obs"][:, 2].tolist() == [20 + i for i in kept]
    assert sorted(held_out[:, 2]) == [10 * e + i for e in (0, 1) for i in kept]
    assert sorted(removed[:, 2]) == [10 * e + i for e in (0, 1, 2) for i in gone]


@pytest.mark.parametrize("x", [(0, 0, 0), (1, 1, 1), (0, 0, 1), (1, 1, 0)], ids=str)
def test_a_cut_leaves_states_on_each_side(x):
    """Of two held-out environments and one to learn from."""
    states = np.broadcast_to(np.array(x)[:, None], (5, 3, 8))
    with pytest.raises(ValueError, match="clip left: no state on one side"):
        lunar.cut({"obs": states, "next_obs": states}, "left")


class Guess(gym.Env):
    """Episodes of one step: the reward is 100 for the place of the largest of four numbers, which
    differ by little."""

    observation_space = gym.spaces.Box(-9, 9, (8,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.obs = self.np_random.normal(3, 0.1, 8).astype(np.float32)
        return self.obs, {}

    def step(self, action):
        return self.obs, 100.0 * (action == self.obs[:4].argmax()), True, False, {}


def guessing(**changes):
    envs = gym.vector.SyncVectorEnv([Guess] * 16, autoreset_mode="Disabled")
    return lunar.train_expert(replace(TINY, **changes), envs)


def test_expert_learns(capsys):
    reward = guessing(expert_iterations=2)["reward"]
    before, after = reward[:128].mean(), reward[128:].mean()
    assert 20 < before < 30 and after > 75
    assert capsys.readouterr().out == f"expert, iteration 0: mean return {before:.0f}\n"


def test_expert_by_another_seed_and_for_longer_than_the_data(monkeypatch):
    monkeypatch.setattr(lunar, "awr_update", lambda *a: a[2].step())
    other, first = guessing(expert_seed=2), guessing()
    assert (other["obs"][0] != first["obs"][0]).any()
    assert (other["action"][0] != first["action"][0]).any()
    monkeypatch.setattr(lunar, "STEPS", 100)
    assert (guessing()["obs"] == first["obs"][28:]).all()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of seconds, where stdout and stderr are closed: its arguments, its result, and what the
    expert's updates got."""
    updates = []
    args = replace(TINY, run_dir=tmp_path_factory.mktemp("runs") / "run", expert_iterations=9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gym, "make_vec", partial(gym.make_vec, max_episode_steps=80))
        patch.setattr(lunar, "awr_update", lambda *a: updates.append(a) or a[2].step())
        save = lunar.Figure.savefig
        cheap = lambda figure, path, **how: save(
            figure if path.stem == "left" else lunar.Figure(), path, **how
        )
        patch.setattr(lunar.Figure, "savefig", cheap)
        patch.setattr(sys, "stdout", None)
        patch.setattr(sys, "stderr", None)
        result = lunar.main(args)
    return SimpleNamespace(args=args, result=result, updates=updates, folder=args.run_dir)


@pytest.fixture
def expert(run):
    return dict(np.load(run.folder / "expert.npz"))


def test_a_run_leaves_its_result_and_pictures(run, expert):
    files = ["expert.npz", "left.png", "result.json", "top.png"]
    assert sorted(path.name for path in run.folder.iterdir()) == files
    saved = json.loads((run.folder / "result.json").read_text(encoding="utf-8"))
    assert saved == json.loads(json.dumps(run.result, default=str))
    assert saved["args"] | {"run_dir": None} == vars(run.args) | {"run_dir": None}
    assert saved["mean_return"] == expert["reward"].sum() / expert["ended"].sum()
    removed = [numbers["states_removed"] for numbers in saved["clips"].values()]
    assert removed == [(expert["obs"][..., 0] < 0.1).sum(), (expert["obs"][..., 1] > 0.8).sum()]
    for numbers in saved["clips"].values():  # two seeds, two agents
        assert all(np.diff(row["auroc_variance"]) for row in numbers["history"])


def test_expert_is_recorded_as_it_played(expert):
    obs, ended = expert["obs"], expert["ended"]
    follows = (expert["next_obs"][:-1] == obs[1:]).all(-1)  # but where an episode ended
    assert (follows == ~ended[:-1]).all() and (ended > expert["done"]).any()
    assert ((abs(expert["reward"]) == 100) == expert["done"]).all()  # a crash or a landing
    lift = expert["next_obs"][..., 3] - obs[..., 3]  # of the main engine: action 2
    assert lift[expert["action"] == 2].mean() > lift[expert["action"] == 0].mean() + 0.01


def test_expert_learns_from_its_newest_steps_normalized_by_all(run, expert):
    _, _, optimizer, steps = run.updates[-1]
    mean, std = expert["obs"].mean((0, 1)), expert["obs"].std((0, 1))
    for name in ("obs", "next_obs"):
        newest = (expert[name][-1024:] - mean) / (std + 1e-3)
        np.testing.assert_allclose(steps[name], newest, 1e-3, 1e-3)
    assert (steps["action"].numpy() == expert["action"][-1024:]).all()
    assert [group["lr"] for group in optimizer.param_groups] == [0, 0]  # in the end


def test_agents_by_another_seed(run, expert):
    other, _ = lunar.study(expert, "top", replace(TINY, seed=1))
    assert other["auroc_norm"] != run.result["clips"]["top"]["auroc_norm"]  # of other states
    assert torch.initial_seed() == 1


def words(run, more=""):
    names = ("num_seeds", "total_steps", "batch_size", "hidden_dim")
    values = " ".join(f"--{name} {getattr(run.args, name)}" for name in names)
    return f"--expert {run.folder / 'expert.npz'} {values} {more}"


def test_command_line_repeats_a_run_with_its_expert(run, monkeypatch, capsys):
    monkeypatch.setattr(lunar.Figure, "savefig", lambda *_, **__: None)  # slow
    monkeypatch.setenv("HOME", str(run.folder.parent))
    more = "--expert ~/run/expert.npz --run-dir ~/more/again"
    assert command_line(lunar, words(run, more), monkeypatch) == 0
    again_folder = run.folder.parent / "more/again"
    again = json.loads((again_folder / "result.json").read_text(encoding="utf-8"))
    assert again["clips"] == run.result["clips"]
    said = f"expert's mean return: {again['mean_return']:.1f}; results in {again_folder}\n"
    for clip, numbers in again["clips"].items():
        said += f"clip {clip}\n"
        for row in numbers["history"]:
            values = np.float32(row["auroc_variance"]).round(3)
            said += f"update {row['step']}: AUROC of Var[Q] {values}\n"
    assert capsys.readouterr().out == said


REFUSED = {
    "a folder with files": ("--run-dir full", "--run-dir full exists: choose another"),
    "a folder in a file": ("--run-dir full/thesis.txt/run", "full/thesis.txt"),
    "nobody's home": ("--run-dir ~nobody-has-this-name/run", "home directory"),
    "text": ("--expert full/thesis.txt", "--expert full/thesis.txt: not a run's expert.npz ("),
    "other arrays": ("--expert other.npz", "--expert other.npz: not a run's expert.npz ("),
    "one array": ("--expert array.npz", "--expert array.npz: not a run's expert.npz ("),
    "no file": ("--expert none.npz", "--expert none.npz: not a run's expert.npz ("),
}


@pytest.mark.parametrize("words, expected", REFUSED.values(), ids=REFUSED)
def test_one_line_and_no_folder_for(words, expected, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/thesis.txt").write_text("words")
    np.savez("other.npz", obs=np.zeros(3))
    np.save("array.npy", np.zeros(3))
    Path("array.npy").rename("array.npz")
    files = set(Path().rglob("*"))
    line = refused(words, lunar)
    assert line.startswith("error: ") and expected in line
    assert set(Path().rglob("*")) == files


NO_BOX2D = gym.error.DependencyNotInstalled("Box2D is missing:\nyou can install it")
FAILURES = [(NO_BOX2D, "error: Box2D is missing: you can install it")]
FAILURES += [(KeyboardInterrupt, "stopped")]


@pytest.mark.parametrize("error, expected", FAILURES, ids=["Box2D", "interrupt"])
def test_one_line_and_no_folder_without(error, expected, tmp_path, refused, monkeypatch):
    def make_vec(*_):
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gym, "make_vec", make_vec)
    assert refused("", lunar) == expected
    assert not list(tmp_path.iterdir())


def test_one_line_where_it_diverges(run, tmp_path, refused):
    line = refused(words(run, f"--critic-lr 1e30 --run-dir {tmp_path}/run"), lunar)
    assert line == "error: diverged at update 1: actor_loss not finite"


def test_training_ends_at_once_where_one_agent_diverges(monkeypatch):
    metrics = {"weight": torch.ones(2), "critic_loss": torch.tensor([1, torch.nan])}
    monkeypatch.setattr(lunar, "update", lambda *_: metrics)
    monkeypatch.setattr(lunar, "state_variance", lambda *_: torch.ones(2, 3))
    with pytest.raises(FloatingPointError, match="diverged at update 1: critic_loss not finite"):
        lunar.train(lunar.Agent(replace(TINY, total_steps=25)), [], [], [])


def test_traceback_of_a_programmers_error(run, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "cdist", lambda *_: int("a student's"))
    with pytest.raises(ValueError, match="a student's"):
        command_line(lunar, words(run, f"--run-dir {tmp_path}/run"), monkeypatch)


WRONG = [{"expert_seed": 2**63}, {"dropout": 0.0}, {"beta": np.inf}, {"clip": "left"}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_arguments_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(TINY, **wrong)


def test_arguments_are_checked_on_the_command_line(monkeypatch):
    """In a notebook's environment, too, whose backend is not installed here."""
    monkeypatch.setenv("MPLBACKEND", "of-another-environment")
    for module in ("matplotlib", "matplotlib.figure"):  # imported once more, it reads that variable
        monkeypatch.delitem(sys.modules, module)
    assert command_line(lunar, "--tau 2", monkeypatch) == 2
