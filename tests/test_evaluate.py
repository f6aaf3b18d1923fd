"""benchmark/evaluate.py on runs: numbers, a film, one line for bad input."""

import json
import shutil
from pathlib import Path

import ensembles
import evaluate
import gymnasium as gym
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
    """With the run's seed and settings; of other candidates or another seed, other returns. Errors
    are of the two agents' means, and the returns of an environment of one's own no score."""
    last = run_of(script, seed=3, eval_episodes=4)
    capsys.readouterr()
    words = "run --episodes 4 --candidates 3 5 --policies best sample --seed"
    assert command_line(evaluate, f"{words} 3", monkeypatch) == 0
    again = evaluation()
    assert list(again) == [("best", 3), ("best", 5), ("sample", 1)]
    assert again["best", 3].mean(1).tolist() == last["return"]
    assert again["sample", 1].mean(1).tolist() == last["score_sample"]  # the score is the return
    assert (again["best", 3] != again["best", 5]).all()
    one, two = last["return"]
    numbers = f"return {(one + two) / 2:.1f} ± {abs(one - two) / 2:.1f}"
    where = f"run, {script.__name__} on Point-v0, 6 updates, best of 3, 2 agents x 4 episodes"
    assert capsys.readouterr().out.splitlines()[0] == f"{where}: {numbers}"
    assert command_line(evaluate, f"{words} 4", monkeypatch) == 0
    assert (evaluation()["best", 3] != again["best", 3]).all()


def test_a_score_with_its_error():
    assert evaluate.mean_and_error(np.array([1.0, 2.0, 6.0])) == "3.0 ± 1.5"
    assert evaluate.mean_and_error(np.array([1.0])) == "1.0"


def test_policies_of_known_networks():
    """The actor's mean is 0.5 with next to no spread, the VAE's action 1.5; Q1 is the sum of the
    actions, whose largest candidate `greedy` takes. Bounds of -1 and 3: 2 a + 1."""
    agent = uwac.Agent(short(uwac, num_seeds=2), 3, 2, -1.0, 3.0)
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
        torch.manual_seed(1)
        actions[name] = (evaluate.act(agent, name, obs, num) - 1) / 2
    assert all(action.shape == (2, 40, 2) for action in actions.values())
    assert actions["mean"] == pytest.approx(np.tanh(0.5))
    assert actions["vae"] == pytest.approx(np.tanh(1.5))
    assert np.arctanh(actions["sample"]).std() == pytest.approx(np.exp(-2), rel=0.2)
    assert np.arctanh(actions["sample"]).mean() == pytest.approx(0.5, abs=0.05)
    torch.manual_seed(1)
    candidates = agent.actor.sample(torch.zeros(2, 40, 3), 50).tanh().sum(-1)
    largest = candidates.max(2).values.numpy(force=True)
    assert actions["greedy"].sum(-1) == pytest.approx(largest, abs=1e-6)
    q1 = {name: action.sum(-1).mean() for name, action in actions.items()}
    assert q1["sample"] < q1["best"] < q1["greedy"]  # the noise of passes: nearly as good


@pytest.mark.parametrize("policy", evaluate.POLICIES)
def test_actions_stay_within_uneven_bounds(policy):
    """At its upper limit 1 becomes 0.3, where float32 arithmetic says 0.30000004."""
    space = gym.spaces.Box(np.float32(-0.9), np.float32(0.3), (2,))
    agent = uwac.Agent(short(uwac), 3, 2, space.low, space.high)
    with torch.no_grad():
        for network in (agent.actor, agent.vae.decoder):
            for parameter in network.parameters():
                parameter.zero_()
            network.layers[2].bias[..., :2] = 50
    (action,) = evaluate.act(agent, policy, np.zeros((1, 1, 3)), 5)[0]
    assert action in space and (action == space.high).all()


def test_a_later_call_adds_to_what_is_there(monkeypatch, capsys):
    """One record of each policy, number of episodes and update."""
    run_of(uwac)
    assert command_line(evaluate, "run --episodes 2 --policies sample vae", monkeypatch) == 0
    first = json.loads(Path("run/evaluation.json").read_text())
    assert command_line(evaluate, "run --episodes 2 --policies vae mean", monkeypatch) == 0
    assert command_line(evaluate, "run --episodes 1 --policies mean", monkeypatch) == 0
    found = json.loads(Path("run/evaluation.json").read_text())
    policies = [(one["policy"], one["episodes"], one["step"]) for one in found]
    assert policies == [("sample", 2, 6), ("vae", 2, 6), ("mean", 2, 6), ("mean", 1, 6)]
    assert found[:2] == first


def test_a_full_disk_leaves_earlier_results(monkeypatch, capsys):
    run_of(bear)
    assert command_line(evaluate, "run --episodes 1", monkeypatch) == 0
    before = Path("run/evaluation.json").read_bytes()

    def half(path, content):
        path.open("wb").write(content[:9])
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    assert command_line(evaluate, "run --episodes 2", monkeypatch) == 1
    assert "No space left" in capsys.readouterr().err
    assert Path("run/evaluation.json").read_bytes() == before


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
    ("nothing", "nothing: not a run's folder"),
    ("run --episodes 0", "an episode"),
    ("run --candidates 0", "a candidate"),
    ("run --candidates", "a candidate"),
    ("run --policies", "a policy"),
    ("unfinished", "unfinished: was not evaluated yet"),
    ("damaged", "damaged/evaluation.json: damaged, move it away"),
    ("other", "other/evaluation.json: not of evaluate.py, move it away"),
])  # fmt: skip
def test_bad_input_is_one_line(words, message, monkeypatch, capsys):
    run_of(bear, total_steps=1)
    for copy in ("unfinished", "damaged", "other"):
        shutil.copytree("run", copy)
    checkpoint = torch.load("run/checkpoint.pt", weights_only=True)
    torch.save(checkpoint | {"history": []}, "unfinished/checkpoint.pt")
    Path("damaged/evaluation.json").write_text("[{")
    Path("other/evaluation.json").write_text('{"candidates": {}}')  # an earlier version's
    capsys.readouterr()
    assert command_line(evaluate, words, monkeypatch) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line
    assert not Path("run/evaluation.json").exists()


@pytest.mark.parametrize("words", ["run", "run --film"])
def test_an_environment_without_a_step_limit_is_refused(words, monkeypatch, capsys):
    run_of(bear, total_steps=1)
    monkeypatch.setattr(gym.registry["Point-v0"], "max_episode_steps", None)
    capsys.readouterr()
    assert command_line(evaluate, words, monkeypatch) == 1
    assert "error: Point-v0: needs a step limit" in capsys.readouterr().err
