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


@pytest.mark.parametrize("script", [bear, uwac, ensembles], ids=["bear", "uwac", "ensembles"])
def test_the_last_evaluation_again(script, monkeypatch, capsys):
    """With the run's seed and settings; of other candidates or another seed, other returns."""
    last = run_of(script, seed=3, eval_episodes=4)
    capsys.readouterr()
    words = "run --episodes 4 --candidates 3 5 --seed"
    assert command_line(evaluate, f"{words} 3", monkeypatch) == 0
    found = json.loads(Path("run/evaluation.json").read_text())
    assert found["step"] == 6 and found["args"]["candidates"] == [3, 5]
    again = {num: np.array(one["returns"]) for num, one in found["candidates"].items()}
    assert again["3"].mean(1).tolist() == last["return"]
    assert np.mean(found["candidates"]["3"]["scores"], 1).tolist() == last["score"]
    assert (again["3"] != again["5"]).all()
    lines = capsys.readouterr().out.splitlines()
    policies = [(num, seed) for num in ("3", "5") for seed in (0, 1)]
    for line, (num, seed) in zip(lines, policies, strict=True):
        returns = again[num][seed]
        name = script.__name__
        start = f"Point-v0, {name}, seed {3 + seed}, 6 updates, 4 episodes, {num} candidates: "
        error = returns.std(ddof=1) / 2  # the score is the return
        means = f"score {returns.mean():.1f} ± {error:.1f}, return {returns.mean():.1f}"
        assert line == start + means
    assert command_line(evaluate, f"{words} 4", monkeypatch) == 0
    found = json.loads(Path("run/evaluation.json").read_text())
    assert (found["candidates"]["3"]["returns"] != again["3"]).all()


def test_lines_of_several_runs_are_told_apart(monkeypatch, capsys):
    """Two runs of one script, whose lines are the same words: each stands under its folder."""
    run_of(uwac)
    shutil.copytree("run", "other")
    capsys.readouterr()
    assert command_line(evaluate, "run other --episodes 2", monkeypatch) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "run" and lines[2] == "other"  # a line for each of two seeds
    assert lines[:2] == lines[3:]


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
    data's actions are 0, where the critic has no variance: dealt anew, they are themselves."""
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
    assert found["auroc_dealt"] == 0.5
    assert found["auroc_uniform"] == pytest.approx(7 / 8, abs=0.1)  # a quarter has no variance
    # And where only a state's own action, here the state, has none but what a call gives to all.
    masks = itertools.count(0, -9)
    distance = lambda _, obs, x, args: (x - obs).norm(dim=-1) + next(masks)
    monkeypatch.setattr(uwac, "uncertainty", distance)
    obs = torch.rand(1, 40, 3)
    assert min(diagnose.aurocs(agent, obs, obs, None).values()) > 0.8


def test_other_data_are_no_diagnosis():
    run_of(uwac)
    with h5py.File("points.hdf5", "a") as file:
        file["rewards"][0] += 1
    with pytest.raises(uwac.InputError, match="run: points.hdf5 is not the data"):
        diagnose.diagnose(Path("run"))
