"""benchmark/evaluate.py and diagnose.py on runs: numbers, a film, one line for bad input."""

import itertools
import json
import shutil
from pathlib import Path

import diagnose
import ensembles
import evaluate
import h5py
import numpy as np
import pytest
import torch
from conftest import Point, command_line, short

import bear
import uwac

pytestmark = pytest.mark.usefixtures("points")


def run_of(script, **changes):
    """Two seeds' run, and its last evaluation."""
    size = {"ensemble_size": 2} if script is ensembles else {}
    return script.main(short(script, num_seeds=2, **size, **changes))["history"][-1]


def evaluation(run="run"):
    """What evaluation.json holds: returns by policy and candidates."""
    found = json.loads(Path(run, "evaluation.json").read_text())
    return {(one["policy"], one["candidates"]): np.array(one["returns"]) for one in found}


@pytest.mark.parametrize("script", [bear, uwac, ensembles], ids=["bear", "uwac", "ensembles"])
def test_the_last_evaluation_again(script, monkeypatch, capsys):
    """With the run's seed and settings; of other candidates or another seed, other returns."""
    last = run_of(script, seed=3, eval_episodes=4)
    capsys.readouterr()
    words = "run --episodes 4 --candidates 3 5 --policies best sample --seed"
    assert command_line(evaluate, f"{words} 3", monkeypatch) == 0
    again = evaluation()
    assert list(again) == [("best", 3), ("best", 5), ("sample", 1)]
    assert again["best", 3].mean(1).tolist() == last["return"]
    assert again["sample", 1].mean(1).tolist() == last["score_sample"]  # the score is the return
    assert (again["best", 3] != again["best", 5]).all()
    lines = capsys.readouterr().out.splitlines()
    for name, policy in (("best of 3", ("best", 3)), ("best of 5", ("best", 5))):
        for agent in (0, 1):
            returns = again[policy][agent]
            start = f"Point-v0, {script.__name__}, 6 updates, agent {agent}, {name}, 4 episodes: "
            error = returns.std(ddof=1) / 2
            means = f"score {returns.mean():.1f} ± {error:.1f}, return {returns.mean():.1f}"
            assert lines.pop(0) == start + means
    assert command_line(evaluate, f"{words} 4", monkeypatch) == 0
    assert (evaluation()["best", 3] != again["best", 3]).all()


def test_policies_of_known_networks(monkeypatch):
    """The actor's mean is 0.5 with next to no spread, the VAE's action 1.5; Q1 is the sum of the
    actions, whose largest candidate `greedy` takes."""
    agent = uwac.Agent(short(uwac, num_seeds=2), 3, 2)
    with torch.no_grad():
        for network in (agent.actor, agent.vae.decoder, agent.critic):
            for parameter in network.parameters():
                parameter.zero_()
        agent.actor.layers[2].bias[..., :2] = 0.5
        agent.actor.layers[2].bias[..., 2:] = -2
        agent.vae.decoder.layers[2].bias.fill_(1.5)
        agent.critic.layers[0].weight[..., 3:, :1] = 1
        agent.critic.layers[0].bias.fill_(5)  # above 0 for every action
        agent.critic.layers[1].weight[..., :1, :1] = 1
        agent.critic.layers[2].weight[..., :1, :] = 1
    obs = np.zeros((2, 40, 3))
    actions = {}
    for name in evaluate.POLICIES:
        num = 50 if name in evaluate.CHOOSING else 1
        actions[name] = evaluate.act(agent, name, obs, num)
    assert all(action.shape == (2, 40, 2) for action in actions.values())
    assert actions["mean"] == pytest.approx(np.tanh(0.5))
    assert actions["vae"] == pytest.approx(np.tanh(1.5))
    assert np.arctanh(actions["sample"]).std() == pytest.approx(np.exp(-2), rel=0.2)
    assert np.arctanh(actions["sample"]).mean() == pytest.approx(0.5, abs=0.05)
    torch.manual_seed(1)
    greedy = evaluate.act(agent, "greedy", obs, 50)
    torch.manual_seed(1)
    candidates = agent.actor.sample(torch.zeros(2, 40, 3), 50).tanh().sum(-1)
    assert greedy.sum(-1) == pytest.approx(candidates.max(2).values.numpy(force=True), abs=1e-6)
    q1 = {name: action.sum(-1).mean() for name, action in actions.items()}
    assert q1["sample"] < q1["best"] < q1["greedy"]  # the noise of passes: nearly as good


def test_a_later_call_adds_to_what_is_there(monkeypatch, capsys):
    """One record of each policy, number of episodes and update; a single episode has no error."""
    run_of(uwac)
    capsys.readouterr()
    assert command_line(evaluate, "run --episodes 2 --policies sample vae", monkeypatch) == 0
    first = Path("run/evaluation.json").read_text()
    assert command_line(evaluate, "run --episodes 2 --policies vae mean", monkeypatch) == 0
    assert command_line(evaluate, "run --episodes 1 --policies mean", monkeypatch) == 0
    *_, line, _ = capsys.readouterr().out.splitlines()  # the last is of both agents
    assert "nan" not in line and "±" not in line and ", 1 episode: " in line
    found = json.loads(Path("run/evaluation.json").read_text())
    policies = [(one["policy"], one["episodes"], one["step"]) for one in found]
    assert policies == [("sample", 2, 6), ("vae", 2, 6), ("mean", 2, 6), ("mean", 1, 6)]
    assert found[:2] == json.loads(first)
    Path("run/evaluation.json").write_text('{"candidates": {}}')  # an earlier version's
    assert command_line(evaluate, "run --episodes 1", monkeypatch) == 2
    assert "move it away" in capsys.readouterr().err
    assert Path("run/evaluation.json").read_text() == '{"candidates": {}}'


def test_agents_of_runs_that_differ_in_the_seed_are_averaged(monkeypatch, capsys):
    """Two runs of two agents and one of another discount: a mean of four, and one of two."""
    for run, changes in (("a", {}), ("b", {"seed": 5}), ("c", {"gamma": 0.5})):
        run_of(bear, run_dir=run, **changes)
    capsys.readouterr()
    words = "a b c --episodes 2 --policies vae --matmul-precision medium"
    assert command_line(evaluate, words, monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "agent" not in line] == ["a", "b", "c"]
    means = [evaluation(run)["vae", 1].mean(1) for run in "abc"]
    four = evaluate.mean_and_error(np.concatenate(means[:2]))
    assert lines[-2] == f"a, b: VAE (behaviour cloning), 4 agents: score {four}"
    assert (
        lines[-1]
        == f"c: VAE (behaviour cloning), 2 agents: score {evaluate.mean_and_error(means[2])}"
    )
    assert evaluate.mean_and_error(np.array([1.0, 2.0, 6.0])) == "3.0 ± 1.5"
    assert torch.get_float32_matmul_precision() == "medium"


def test_a_film(monkeypatch):
    """Of both seeds side by side, named by the update, at the environment's speed."""
    moviepy = pytest.importorskip("moviepy")
    run_of(uwac)
    assert command_line(evaluate, "run --film --episodes 1", monkeypatch) == 0
    (film,) = Path("run").glob("*.mp4")
    assert "update-6" in film.name
    with moviepy.VideoFileClip(str(film)) as video:
        assert video.fps == Point.metadata["render_fps"]
        assert round(video.duration * video.fps) == 6  # 5 steps
        assert video.size[0] * video.size[1] == 2 * 64 * 64


@pytest.mark.parametrize("words, message", [
    ("", "a run"),
    ("nothing", "nothing: no run with a result.json"),
    ("run --episodes 0", "an episode"),
    ("run --candidates 0", "a candidate"),
    ("run --candidates", "a candidate"),
    ("run --policies", "a policy"),
    ("unfinished", "unfinished: no run with a result.json and a checkpoint.pt (it was not eval"),
])  # fmt: skip
def test_bad_input_is_one_line(words, message, monkeypatch, capsys):
    run_of(bear, total_steps=1)
    shutil.copytree("run", "unfinished")
    checkpoint = torch.load("run/checkpoint.pt", weights_only=True)
    torch.save(checkpoint | {"history": []}, "unfinished/checkpoint.pt")
    capsys.readouterr()
    assert command_line(evaluate, words, monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line
    assert not Path("run/evaluation.json").exists()


def test_diagnosis_of_known_networks(monkeypatch):
    """Actor and VAE at 0.5 and 1.5 whatever the state: MMD by hand, and all of it the gap's. The
    data's actions are 0, where the critic has no variance: shuffled, they are themselves."""
    with h5py.File("points.hdf5", "a") as file:
        file["actions"][:] = 0
    uwac.main(short(uwac, variance="analytic"))
    agent, saved = uwac.load_checkpoint("run")
    with torch.no_grad():
        for network in (agent.actor, agent.vae.decoder, agent.critic):
            for parameter in network.parameters():
                parameter.zero_()
        agent.actor.layers[2].bias[..., :2] = 0.5
        agent.actor.layers[2].bias[..., 2:] = -9  # limited to -5
        agent.vae.decoder.layers[2].bias.fill_(1.5)
        agent.critic.layers[0].weight[..., 3:, :2] = torch.eye(2)
        agent.critic.layers[1].weight[..., :2, :2] = torch.eye(2)
        agent.critic.layers[2].weight[..., :2, :] = 1
    monkeypatch.setattr(diagnose, "load", lambda run: ("uwac", agent, saved))
    found = {name: values[0] for name, values in diagnose.diagnose(Path("run")).items()}
    assert found["gap"] == found["gap_saturated"] == 1 == found["saturated"]
    for num in (4, 10, 100):
        assert found[f"mmd, {num}"] == pytest.approx((2 - 2 * np.exp(-2 / 40)) ** 0.5, rel=1e-3)
        assert found[f"mmd_of_vae, {num}"] == pytest.approx(1e-3)  # the root of 1e-6
        assert found[f"mmd_centred, {num}"] < 0.005
    assert found["actor_std"] == pytest.approx(np.exp(-5)) and found["vae_std"] == 0
    assert found["actor_error"] == pytest.approx(np.tanh(0.5))
    errors = diagnose.errors(agent, torch.zeros(1, 5, 3), torch.full((1, 5, 2), 0.25))
    assert errors["actor_error"].item() == pytest.approx(np.tanh(0.5) - 0.25)
    assert errors["vae_error"].item() == pytest.approx(np.tanh(1.5) - 0.25)
    assert found["auroc_shuffled"] == 0.5
    assert found["auroc_uniform"] == pytest.approx(7 / 8, abs=0.1)  # a quarter has no variance
    assert 0 < found["q_share"] < 1
    # And where only a state's own action, here the state, has none but what a call gives to all.
    masks = itertools.count(0, -9)
    distance = lambda _, obs, x: (x - obs).norm(dim=-1) + next(masks)
    monkeypatch.setattr(agent, "uncertainty", distance)
    obs = torch.rand(1, 40, 3)
    assert min(diagnose.aurocs(agent, obs, obs).values()) > 0.8


@pytest.mark.parametrize("script", [bear, uwac, ensembles], ids=["bear", "uwac", "ensembles"])
def test_share_of_q(script):
    """Twice alpha halves Q's part over MMD's, and a weight of 0 leaves nothing of Q. The other seed
    and the agent stay as they are."""
    run_of(script, warmup_steps=1_000)
    agent, _ = script.load_checkpoint("run")
    rng = torch.Generator().manual_seed(0)
    data = [torch.randn(50, *width, generator=rng) for width in ((3,), (2,), (), (3,))]
    data.append(torch.zeros(50))
    with torch.no_grad():
        agent.log_alpha.fill_(-5)  # so that neither part is next to nothing
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    share = diagnose.q_share(script.__name__, agent, data)
    assert share.shape == (2,) and (share > 0).all() and (share < 1).all()
    for name, value in agent.state_dict().items():
        assert torch.equal(value, before[name])
    with torch.no_grad():
        agent.log_alpha[0] += np.log(2)
    half = diagnose.q_share(script.__name__, agent, data)
    ratio, halved = (of[0].item() / (1 - of[0].item()) for of in (share, half))
    assert halved == pytest.approx(ratio / 2, rel=1e-3)
    assert half[1] == share[1]
    if script is not bear:
        agent.args.weight_clip = 0
        assert diagnose.q_share(script.__name__, agent, data).max() < 1e-6


def test_other_data_are_no_diagnosis():
    run_of(uwac)
    with h5py.File("points.hdf5", "a") as file:
        file["rewards"][0] += 1
    with pytest.raises(uwac.InputError, match="run: points.hdf5 is not the data"):
        diagnose.diagnose(Path("run"))
