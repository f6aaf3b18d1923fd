"""lunarlander_uncertainty.py: the expert against numbers worked by hand, the clips, the variance, whole runs."""

import ast
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import lunarlander_uncertainty as lunar

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "lunarlander_uncertainty.py"
TINY = lunar.Args(
    num_seeds=2, total_steps=3, batch_size=8, hidden_dim=8, passes=3, expert_iterations=2, expert_episodes=3
)  # 4,096 steps of an expert that has learned next to nothing
# What stands in uwac.py to the letter.
SAME = {"InputError", "StackedLinear", "MLP", "dropout_masks", "mc_dropout_variance", "analytic_dropout_variance"}
SAME |= {"uncertainty_weight", "Critic.forward", "Agent.q_values", "Agent.q_variance", "Agent.minimize"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which one tiny run on both clips has been made."""
    path = tmp_path_factory.mktemp("lunar")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        result = lunar.main(TINY)
    return path, result


@pytest.fixture
def saved_expert(folder, tmp_path, monkeypatch):
    """A copy of that run's expert in a folder of its own, which becomes the current one."""
    monkeypatch.chdir(tmp_path)
    (original,) = (folder[0] / "runs").glob("*.npz")
    copy = tmp_path / "runs" / original.name
    copy.parent.mkdir()
    copy.write_bytes(original.read_bytes())
    return copy


def test_td_lambda_returns_by_hand():
    """gamma = lambda = 0.5. First column: never ended. Second: terminated at step 1. Third: truncated at step 1."""
    reward = np.array([[1.0, 1, 1], [2, 2, 2], [4, 4, 4]])
    next_value = np.array([[8.0, 8, 8], [16, 16, 16], [32, 32, 32]])
    terminated = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]], bool)
    ended = np.array([[0, 0, 0], [0, 1, 1], [0, 0, 0]], bool)
    # The last row goes on with V: 4 + 0.5 * 32 = 20. Before it 2 + 0.5 * (0.5 * 16 + 0.5 * 20) = 11; 2 where
    # terminated; 2 + 0.5 * 16 = 10 where truncated. First row: 1 + 0.5 * (0.5 * 8 + 0.5 * [11, 2, 10]).
    expected = np.array([[5.75, 3.5, 5.5], [11, 2, 10], [20, 20, 20]])
    assert np.array_equal(lunar.td_lambda_returns(reward, next_value, terminated, ended, 0.5, 0.5), expected)


def test_awr_weights_by_hand():
    """Advantages 1, 3, 5, 7: mean 4, deviation sqrt(5)."""
    advantage = torch.tensor([1.0, 3, 5, 7])
    z = torch.tensor([-3, -1, 1, 3]) / math.sqrt(5)
    assert_close(lunar.awr_weights(advantage, 1.0, 20.0), z.exp(), rtol=1e-4, atol=0)
    assert_close(lunar.awr_weights(advantage, 0.5, 2.0), (2 * z).exp().clamp(max=2), rtol=1e-4, atol=0)


def test_expert_transitions(folder):
    """Within an episode a step's next state is the following step's state; where it ends, it is its own last state."""
    (path,) = (folder[0] / "runs").glob("*.npz")
    with np.load(path) as file:
        data = {name: file[name] for name in lunar.TRANSITION}
    assert len(data["obs"]) == 4096 and data["obs"].shape == data["next_obs"].shape == (4096, 8)
    goes_on = data["episode"][1:] == data["episode"][:-1]
    assert np.array_equal(data["next_obs"][:-1][goes_on], data["obs"][1:][goes_on])
    assert not (data["next_obs"][:-1] == data["obs"][1:]).all(1)[~goes_on].any()
    first = np.flatnonzero(~goes_on) + 1
    assert (np.abs(data["obs"][first, 1] - 1.41) < 0.05).all()  # every episode begins in the middle of the sky
    done = data["done"] == 1
    assert 5 < done.sum() < 100 and set(data["done"]) == {0, 1}
    assert not goes_on[np.flatnonzero(done[:-1])].any()
    assert (np.abs(data["reward"][done]) == 100).mean() > 0.9  # the crash or the landing itself


def test_clip_removes_states_and_next_states():
    x, y = [0.05, 0.1, 0.2, 0.2, 0.3], [0.8, 0.9, 0.1, 0.81, 0.5]
    obs = np.zeros((5, 8), np.float32)
    obs[:, 0], obs[:, 1] = x, y
    next_obs = obs[[1, 2, 0, 4, 2]]
    data = {"obs": obs, "next_obs": next_obs, "action": np.arange(5)}

    def kept(clip):
        return lunar.clip_dataset(data, clip)["action"].tolist()

    assert kept("none") == [0, 1, 2, 3, 4]
    assert kept("left") == [1, 3, 4]  # 0 begins at 0.05, 2 ends there; 0.1 itself is kept
    assert kept("top") == [2, 4]  # 1 and 3 begin above 0.8, 0 ends there; 0.8 itself is kept
    assert kept("left:0.25") == [] and kept("left:0.15") == [3, 4]
    assert kept("top:0.95") == [0, 1, 2, 3, 4] and kept("top:0.805") == [2, 4]
    assert set(lunar.clip_dataset(data, "left")) == set(data)


@pytest.mark.parametrize("clip", ["right", "left:", "top:high", "", "left:0.1:2"])
def test_unknown_clip(clip):
    if clip == "left:":
        assert lunar.parse_clip(clip) == lunar.parse_clip("left")
        return
    with pytest.raises(lunar.InputError, match="--clip"):
        lunar.Args(clip=(clip,))


def test_variance_estimators_agree():
    """Both within their known errors of 20,000 passes, at the sizes in use here; 0 without dropout."""
    critic, obs = lunar.Critic(2, 8, 4, 64), torch.randn(2, 32, 8)
    action = torch.eye(4).repeat(8, 1).expand(2, -1, -1)
    truth = lunar.mc_dropout_variance(critic, obs, action, 0.1, 20_000)

    def error(estimate):
        return (estimate / truth - 1).square().mean().sqrt()

    assert error(lunar.analytic_dropout_variance(critic, obs, action, 0.1)) < 0.05
    assert 0.7 < error(lunar.mc_dropout_variance(critic, obs, action, 0.1, 101)) / math.sqrt(2 / 100) < 1.4
    assert (lunar.analytic_dropout_variance(critic, obs, action, 0.0) == 0).all()
    assert (lunar.mc_dropout_variance(critic, obs, action, 0.0, 5) == 0).all()


def random_agent(seeds=2, **changes):
    """An agent on 200 random transitions, and these."""
    data = {"obs": torch.randn(200, 8).numpy() * 3 + 1, "action": np.arange(200) % 4, "episode": np.arange(200)}
    data |= {
        "reward": torch.randn(200).numpy(),
        "done": np.zeros(200, np.float32),
        "next_obs": data["obs"][::-1].copy(),
    }
    return lunar.Agent(replace(TINY, num_seeds=seeds, **changes), data), data


def test_update_is_algorithm_1_by_hand():
    """One update of one seed with dropout 0 and weights of 1, on a batch that is recomputed with plain torch."""
    agent, _ = random_agent(seeds=1, dropout=0.0, weighting="none", gamma=0.5, num_candidates=50)
    weights = [[p.detach().clone() for p in layer.parameters()] for layer in agent.critic.layers]
    torch.manual_seed(1)
    index = torch.randint(200, (1, 8))[0]
    obs, action, reward, next_obs, done = (array[index] for array in agent.data)

    def q(i, s, a):
        h = torch.cat([s, a], -1)
        for n, (weight, bias) in enumerate(weights):
            h = h @ weight[i] + bias[i]
            h = h.relu() if n < 2 else h
        return h.squeeze(-1)

    everything = torch.stack(
        [torch.stack([q(i, next_obs, row.expand(8, 4)) for row in torch.eye(4)], -1) for i in (0, 1)]
    )
    y = (0.75 * everything.amin(0) + 0.25 * everything.amax(0)).amax(-1)  # 50 candidates hold all four actions
    target = reward + 0.5 * (1 - done) * y
    loss = sum((q(i, obs, action) - target).square().mean() for i in (0, 1))
    torch.manual_seed(1)
    metrics = agent.update()
    assert_close(metrics["target_q"], target.mean()[None])
    assert_close(metrics["critic_loss"], loss[None])
    assert_close(metrics["weight"], torch.ones(1))


def test_actor_moves_towards_weighted_q():
    """Its step is that on -sum over actions of pi * weight * min(Q1, Q2), from both networks as they then are."""
    agent, _ = random_agent(seeds=1, actor_lr=1e-2, critic_lr=0.0, beta=1e-3)
    torch.manual_seed(1)
    index = torch.randint(200, (1, 8))[0]
    obs = agent.data[0][index]
    logits = agent.actor(obs[None])
    before = {name: p.detach().clone() for name, p in agent.actor.named_parameters()}
    q, variance = (x.detach() for x in agent.of_all_actions(agent.critic, obs[None]))
    weight = (1e-3 / variance).clamp(max=1.5)
    assert 0 < weight.min() < weight.max() < 1.5
    loss = -(logits.softmax(-1) * weight * q.amin(1)).sum(-1).mean()
    gradients = torch.autograd.grad(loss, list(agent.actor.parameters()))
    torch.manual_seed(1)
    agent.update()
    for (name, p), gradient in zip(agent.actor.named_parameters(), gradients):
        assert_close(p.grad, gradient, msg=name)
        assert (p != before[name]).any()


@pytest.mark.parametrize("variance", ["mc", "analytic"])
def test_variance_of_all_actions_is_that_of_each(variance):
    """Two critics' variances are added, each action's with its own one-hot vector."""
    agent, _ = random_agent(variance=variance, passes=5000)
    obs = torch.randn(2, 3, 8)
    q, found = agent.of_all_actions(agent.critic, obs)
    twice = obs.repeat_interleave(2, 0)
    for a in range(4):
        action = torch.eye(4)[a].expand(4, 3, 4)
        if variance == "mc":
            each = lunar.mc_dropout_variance(agent.critic, twice, action, 0.1, 5000)
        else:
            each = lunar.analytic_dropout_variance(agent.critic, twice, action, 0.1)
        assert_close(found[..., a], each.view(2, 2, 3).sum(1), rtol=0.2 if variance == "mc" else 1e-5, atol=0)
        assert_close(q[..., a], agent.critic(twice, action).view(2, 2, 3))


def test_measures():
    """Distance: to the nearest training state in units of deviations, 0 at one of them. Ensemble: over seeds."""
    agent, data = random_agent(seeds=3)
    far = data["obs"][:2].copy()
    far[1] += 100
    found = agent.measures(far)
    pairs, states = found["distance"]
    scaled = (data["obs"] - data["obs"].mean(0)) / (data["obs"].std(0, ddof=1) + 1e-3)
    at = (far - data["obs"].mean(0)) / (data["obs"].std(0, ddof=1) + 1e-3)
    distances = np.linalg.norm(at[:, None] - scaled[None], axis=-1)
    expected = np.stack([distances[:, data["action"] == a].min(1) for a in range(4)], -1)
    assert_close(pairs[0], torch.as_tensor(expected), rtol=1e-3, atol=5e-3, check_dtype=False)
    assert_close(states[0], pairs[0].amin(-1))
    inputs = agent.inputs(torch.as_tensor(far)).expand(3, -1, -1)
    q, variance = agent.of_all_actions(agent.critic, inputs)
    policy = agent.actor(inputs).softmax(-1)
    assert_close(found["ensemble"][0][0], q.mean(1).var(0))
    assert_close(found["ensemble"][1][0], (q.mean(1).var(0) * policy.mean(0)).sum(-1))
    assert_close(found["dropout"][0], variance)
    assert_close(found["dropout"][1], (variance * policy).sum(-1))


def test_auroc_by_hand():
    """Of the six pairs of (1, 2, 3) and (2, 4): 2 beats 1 and ties with 2, 4 beats all."""
    known, novel = torch.tensor([[3.0, 1, 2], [0, 0, 0]]), torch.tensor([[2.0, 4], [1, 1]])
    assert lunar.auroc(known, novel).tolist() == [pytest.approx(4.5 / 6), 1.0]
    assert lunar.auroc(novel, known).tolist() == [pytest.approx(1.5 / 6), 0.0]


def test_uncertainty_map():
    """Rows are y and columns x; the rest of the state is the training data's mean."""
    agent, data = random_agent()
    grid = lunar.uncertainty_map(agent, np.array([-0.5, 0.0, 0.5]), np.array([0.2, 0.9]))
    assert grid.shape == (2, 2, 3)
    state = data["obs"].mean(0, keepdims=True)
    state[0, :2] = 0.5, 0.2
    assert_close(torch.as_tensor(grid[:, 0, 2]), agent.measures(state)["dropout"][1][:, 0], rtol=1e-4, atol=0)


def pixels(path):
    from matplotlib.image import imread

    return imread(path)[..., :3]


def test_whole_run(folder):
    """Every figure as PNG and PDF, with something on it in colour; result.json is what main returns."""
    path, result = folder
    (run,) = (path / "runs").glob("*lunarlander_uncertainty*")
    assert json.loads((run / "result.json").read_text()) == json.loads(json.dumps(result))
    names = {"expert", "map_left", "map_top", "histograms"}
    assert {file.stem for file in run.glob("*.png")} == {file.stem for file in run.glob("*.pdf")} == names
    for name in names:
        image = pixels(run / f"{name}.png")
        assert image.std() > 0.03
        assert len(np.unique((image.reshape(-1, 3) * 255).astype(int), axis=0)) > 100
        assert (run / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert (pixels(run / "map_left.png") != pixels(run / "map_top.png")).any()
    assert set(result["clips"]) == {"left", "top"}
    for numbers in result["clips"].values():
        assert numbers["states_kept"] + numbers["states_removed"] == 4096
        assert numbers["transitions_trained"] + numbers["transitions_held_out"] == numbers["transitions_kept"] < 4096
        assert numbers["transitions_kept"] <= numbers["states_kept"]
        for key in ("auroc_states", "auroc_random_actions"):
            assert {name: len(v) for name, v in numbers[key].items()} == {"dropout": 2, "ensemble": 1, "distance": 1}
            assert all(0 <= value <= 1 for values in numbers[key].values() for value in values)
    assert result["expert"]["episodes"] == 3


def without_time(node):
    """A result without what the clock says."""
    if isinstance(node, dict):
        return {k: without_time(v) for k, v in node.items() if k != "seconds"}
    return [without_time(v) for v in node] if isinstance(node, list) else node


def test_same_arguments_same_numbers(folder, tmp_path, monkeypatch):
    """Trained anew in another folder, expert and all: the same to the last digit; with another seed, not."""
    monkeypatch.chdir(tmp_path)
    again = lunar.main(replace(TINY, clip=("top",)))
    top = {"top": folder[1]["clips"]["top"]}
    assert without_time(again["clips"]) == without_time(top)
    assert without_time(again["expert"]) == without_time(folder[1]["expert"])
    assert without_time(lunar.main(replace(TINY, clip=("top",), seed=1))["clips"]) != without_time(top)


def test_saved_expert_is_used_again(saved_expert, monkeypatch):
    with np.load(saved_expert) as file:
        expected = {name: file[name] for name in lunar.TRANSITION}
    monkeypatch.setattr(lunar, "train_expert", lambda args: pytest.fail("trained again"))
    found = lunar.expert_dataset(replace(TINY, seed=7, total_steps=9))  # what is not the expert's changes nothing
    for name, array in expected.items():
        assert np.array_equal(found[name], array)


def test_other_expert_arguments_train_another(saved_expert, monkeypatch):
    monkeypatch.setattr(lunar, "train_expert", lambda args: {"trained": np.array(1)})
    for change in ({"expert_seed": 2}, {"expert_iterations": 3}, {"expert_goal": 1.0}, {"expert_episodes": 2}):
        assert set(lunar.expert_dataset(replace(TINY, **change))) == {"trained"}
    assert len(list(saved_expert.parent.iterdir())) == 5  # and no file under a temporary name


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "changed", "foreign", "settings", "shape"])
def test_damaged_expert_is_refused(saved_expert, damage, capsys):
    """One line that names the file, exit code 2, and the file stays as it was."""
    whole = saved_expert.read_bytes()
    with np.load(saved_expert) as file:
        arrays = dict(file)
    if damage in ("foreign", "settings", "shape"):
        changed = {
            "foreign": {"weights": np.zeros(3)},
            "settings": arrays | {"settings": np.array(str(arrays["settings"]).replace("0.999", "0.9"))},
            "shape": arrays | {"reward": arrays["reward"][1:]},
        }[damage]
        np.savez(saved_expert, **changed)
    else:
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes(255 - b for b in whole[middle : middle + 100]) + whole[middle + 100 :]
        saved_expert.write_bytes(
            {"empty": b"", "text": b"an expert", "cut": whole[:middle], "changed": flipped}[damage]
        )
    before = saved_expert.read_bytes()
    with pytest.raises(lunar.InputError) as error:
        lunar.expert_dataset(TINY)
    assert saved_expert.name in str(error.value) and "\n" not in str(error.value)
    assert saved_expert.read_bytes() == before


def test_refusals_on_the_command_line(saved_expert):
    """Exit code 2 and one line, for a damaged expert and for arguments out of range; nothing else is written."""
    saved_expert.write_bytes(b"no expert")
    flags = ["--expert-iterations", "2", "--expert-episodes", "3"]
    for words in (flags, ["--clip", "bottom"], ["--dropout", "1"], ["--passes", "1"], ["--num-seeds", "0"]):
        done = subprocess.run([sys.executable, SCRIPT, *words], check=False, capture_output=True, text=True)
        assert done.returncode == 2, done.stderr
        assert re.fullmatch(r"error: [^\n]+\n", done.stderr)
        assert [file.name for file in saved_expert.parent.iterdir()] == [saved_expert.name]


def test_a_clip_that_leaves_too_little(saved_expert):
    with pytest.raises(lunar.InputError, match="top:-5: leaves too little"):
        lunar.main(replace(TINY, clip=("top:-5",)))


def test_divergence_is_reported(saved_expert):
    with pytest.raises(FloatingPointError, match="clip none, update"):
        lunar.main(replace(TINY, clip=("none",), critic_lr=1e9, total_steps=40))


def definitions(script):
    """Source of every top-level function and class, and of every method as CLASS.METHOD, with what decorates it."""
    source, found = (ROOT / script).read_text(), {}
    for node in ast.parse(source).body:
        for name, part in [
            ("", node),
            *((f"{node.name}.", m) for m in getattr(node, "body", []) if hasattr(node, "name")),
        ]:
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                first = min([part.lineno, *(d.lineno for d in part.decorator_list)])
                found[name + part.name] = source.splitlines()[first - 1 : part.end_lineno]
    return found


def test_code_shared_with_uwac_is_the_same_to_the_letter():
    ours, theirs = definitions("lunarlander_uncertainty.py"), definitions("uwac.py")
    assert {name for name in SAME if ours[name] != theirs[name]} == set()


def test_the_script_as_a_file():
    """Length, Python 3.11, nothing unpickled, and the versions of requirements.txt in its head."""
    source = SCRIPT.read_text()
    assert len(source.splitlines()) <= 600 and max(map(len, source.splitlines())) <= 120
    ast.parse(source, feature_version=(3, 11))
    assert "pickle" not in source and "torch.load" not in source
    block = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", source, re.MULTILINE).group(1)
    listed = re.findall(r'"([^"]+)"', block.split("dependencies")[1])
    assert len(listed) == 7 and set(listed) <= set((ROOT / "requirements.txt").read_text().splitlines())
    assert [int(n) for n in re.findall(r"# Lines? (\d+)", source)] == [3, 5, 6, 7, 8, 10, 12]
