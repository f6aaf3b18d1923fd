"""benchmark/measure/evaluate.py: who plays, and what stays of it."""

import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import mujoco
import numpy as np
import pytest
import torch
from conftest import Point, command_line, short, zeroed
from filelock import FileLock

import d4rl
import uwac
from benchmark import policies
from benchmark.measure import diagnose, evaluate, true_q
from benchmark.methods import SCRIPTS, script_of


def records(file="run/evaluation.json"):
    return {(one["policy"], one["candidates"]): one for one in json.loads(Path(file).read_text())}


@pytest.mark.parametrize("path", sorted(set(SCRIPTS.values())))
def test_the_last_evaluation_again(points, path, monkeypatch, capsys):
    """An environment of one's own has no score, so that is the return."""
    script = script_of(path)
    norm = {} if path == "bear.py" else {"spectral_norm": True, "variance": "analytic"}
    args = short(script, num_seeds=2, seed=3, eval_episodes=4, **norm)
    main = getattr(script, "main", uwac.main)
    result = main(args, agent_type=script.Agent, update=script.update)
    last = result["history"][-1]
    capsys.readouterr()
    words = "run --episodes 4 --candidates 3 5 --policies best sample --seed"
    assert command_line(evaluate, f"{words} 3", monkeypatch) == 0
    again = {key: np.array(one["returns"]) for key, one in records().items()}
    assert list(again) == [("best", 3), ("best", 5), ("sample", 1)]
    assert again["best", 3].mean(1).tolist() == last["score"]  # the return
    assert again["sample", 1].mean(1).tolist() == last["score_sample"]
    assert (again["best", 3] != again["best", 5]).all()
    one, two = last["score"]
    numbers = f"return {(one + two) / 2:.1f} ± {abs(one - two) / 2:.1f}"
    where = f"run, {result['algorithm']} on Point-v0, 6 updates, best of 3, 2 agents x 4 episodes"
    assert capsys.readouterr().out.splitlines()[0] == f"{where}: {numbers}"
    assert command_line(evaluate, f"{words} 4", monkeypatch) == 0
    assert (np.array(records()["best", 3]["returns"]) != again["best", 3]).all()


def test_each_policy_plays_its_own_actions(points, monkeypatch):
    """The mean is 0.5 before the tanh, one sample has a std of e^2; the VAE's is 50."""
    agent, saved = uwac.Agent(short(uwac), 3, 2), {"updates": 6}
    zeroed(agent.actor, agent.vae.decoder)
    with torch.no_grad():
        agent.actor.layers[2].bias[:] = torch.tensor([0.5, 0.5, 2, 2])
        agent.vae.decoder.layers[2].bias.fill_(50)
    Path("run").mkdir()
    monkeypatch.setattr(evaluate, "load", lambda run: (uwac, agent, saved))
    means = {}
    for policy in ("mean", "sample", "vae"):
        Point.played.clear()
        evaluate.main(evaluate.Args(runs=(Path("run"),), policies=(policy,), episodes=20))
        means[policy] = np.abs(Point.played).mean()  # actions go to 2
    assert means["mean"] == pytest.approx(2 * np.tanh(0.5)) and means["vae"] == 2
    assert 1.6 < means["sample"] < 1.99


def test_a_run_plays_in_its_own_precision(points, monkeypatch):
    found = []

    def act(*given):
        found.append(torch.get_float32_matmul_precision())
        return act_before(*given)

    act_before = policies.act
    for precision in ("medium", "high"):
        uwac.main(short(uwac, total_steps=1, matmul_precision=precision, run_dir=precision))
    monkeypatch.setattr(policies, "act", act)
    evaluate.main(evaluate.Args(runs=(Path("medium"), Path("high")), episodes=1))
    assert found == ["medium"] * 5 + ["high"] * 5
    for precision in ("medium", "high"):
        (record,) = records(f"{precision}/evaluation.json").values()
        assert record["matmul_precision"] == precision


def test_a_score_is_said_where_there_is_one(tmp_path, monkeypatch, capsys):
    """It is a D4RL task's, and not its return."""
    monkeypatch.chdir(tmp_path)
    settings = {"env_id": "door-demo", "dataset_path": None, "batch_size": 8, "eval_every": 2}
    uwac.main(short(uwac, total_steps=2, eval_candidates=1, num_seeds=1, **settings))
    capsys.readouterr()
    assert command_line(evaluate, "run --episodes 2 --policies sample", monkeypatch) == 0
    (one,) = records().values()
    low, high = d4rl.TASKS["door"][2:]
    (scores,) = (np.array(one["returns"]) - low) / (high - low) * 100
    assert one["scores"][0] == pytest.approx(scores) and scores[0] != scores[1]
    error = abs(scores[0] - scores[1]) / 2
    end = f"1 agents x 2 episodes: score {scores.mean():.1f} ± {error:.1f}"
    assert capsys.readouterr().out.strip().endswith(end)
    assert evaluate.mean_and_error(np.array([12.34])) == "12.3"  # of one there is no error


def test_two_calls_at_once_keep_the_results_of_both(points, monkeypatch):
    """While one plays its second policy, another adds its own."""
    uwac.main(short(uwac))
    number = iter(range(9))

    def evaluation(*_):
        if next(number) == 1:
            evaluate.main(evaluate.Args(runs=(Path("run"),), policies=("vae",), episodes=3))
        return np.zeros((1, 3))

    monkeypatch.setattr(uwac, "evaluate", evaluation)
    evaluate.main(evaluate.Args(runs=(Path("run"),), policies=("sample", "mean"), episodes=3))
    assert [policy for policy, _ in records()] == ["sample", "vae", "mean"]


@pytest.mark.parametrize("locks", [True, False])
def test_many_add_at_once_and_none_is_lost(locks, tmp_path, monkeypatch):
    """Where files cannot be locked, one after the other."""
    write_json = policies.write_json

    def slow(*given):  # long enough for another to read
        time.sleep(0.05)
        write_json(*given)

    monkeypatch.setattr(policies, "write_json", slow)
    if not locks:
        monkeypatch.setattr(FileLock, "acquire", Mock(side_effect=OSError(37, "No locks")))
    about = {"step": 1, "policy": "vae", "candidates": 1, "seed": 0}
    results = [about | {"episodes": n} for n in range(4)]
    with ThreadPoolExecutor(4 if locks else 1) as pool:
        list(pool.map(lambda one: policies.add_result(tmp_path, one), results))
    added = json.loads((tmp_path / "evaluation.json").read_text())
    assert sorted(one["episodes"] for one in added) == [0, 1, 2, 3]


@pytest.mark.parametrize("program, words", [
    (evaluate, "run"), (diagnose, "run"), (true_q, "--policy run")
])  # fmt: skip
def test_a_folder_that_cannot_be_written_is_refused_at_once(
    points, program, words, monkeypatch, refused
):
    uwac.main(short(uwac, variance="analytic"))
    full = Mock(side_effect=OSError("Read-only file system"))
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    monkeypatch.setattr(uwac.Actor, "sample", None)  # nobody plays
    assert refused(words, program) == "error: Read-only file system"


CLIP = """
from pathlib import Path

class ImageSequenceClip:
    def __init__(self, frames, fps):
        self.frames = frames

    def write_videofile(self, path, logger):
        Path(path).write_text(str(len(self.frames)))
"""


@pytest.fixture
def moviepy(tmp_path, monkeypatch):
    """In place of the package, one that writes how many pictures there are."""
    folder = tmp_path / "packages" / "moviepy" / "video" / "io"
    folder.mkdir(parents=True)
    (folder / "ImageSequenceClip.py").write_text(CLIP)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "moviepy"]:
        del sys.modules[name]


@pytest.mark.usefixtures("points", "moviepy")
def test_a_film_of_each_agent_has_a_name_for_its_policy_and_seed(monkeypatch, capsys):
    """With a picture before each of five steps and after the last."""
    monkeypatch.setattr(Point, "metadata", {"render_modes": ["rgb_array"], "render_fps": 9})
    monkeypatch.setattr(Point, "render_mode", "rgb_array")
    monkeypatch.setattr(Point, "render", lambda self: np.zeros((4, 4, 3), np.uint8))
    monkeypatch.setattr(Point, "__init__", lambda self, render_mode=None: None)
    uwac.main(short(uwac, num_seeds=2))
    capsys.readouterr()
    words = "run --film --episodes 1 --policies sample best --candidates 2 3"
    assert command_line(evaluate, f"{words} --seed 4", monkeypatch) == 0
    assert command_line(evaluate, f"{words} --seed 5 --policies vae", monkeypatch) == 0
    names = "best-3-seed-4", "vae-1-seed-5"
    files = [f"run/film-6/{name}-agent-{i}-episode-0.mp4" for name in names for i in (0, 1)]
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "film" in line] == files
    assert sorted(map(str, Path("run/film-6").iterdir())) == files
    assert {Path(file).read_text() for file in files} == {"6"}

    def no_screen(self):
        raise mujoco.FatalError("an OpenGL platform library has not been loaded")

    monkeypatch.setattr(Point, "render", no_screen)
    with pytest.raises(ValueError, match="^--film: without a screen, set MUJOCO_GL=egl .an OpenGL"):
        evaluate.main(evaluate.Args(runs=(Path("run"),), film=True))


def test_a_later_call_adds_to_what_is_there(points, monkeypatch, refused):
    """What goes wrong leaves what was there, and no environment open."""
    closed = []
    monkeypatch.setattr(Point, "close", lambda self: closed.append(1))
    uwac.main(short(uwac, num_seeds=2))
    closed.clear()
    assert command_line(evaluate, "run --episodes 2 --policies sample vae", monkeypatch) == 0
    assert len(closed) == 4
    first = records()
    assert command_line(evaluate, "run --episodes 2 --policies vae mean", monkeypatch) == 0
    assert command_line(evaluate, "run --episodes 1 --policies mean", monkeypatch) == 0
    before = Path("run/evaluation.json").read_bytes()
    found = [(one["policy"], one["episodes"], one["step"]) for one in json.loads(before)]
    assert found == [("sample", 2, 6), ("vae", 2, 6), ("mean", 2, 6), ("mean", 1, 6)]
    assert records().items() >= first.items()

    in_the_second = len(Point.played) + 2 * 2 * 5 + 3
    monkeypatch.setattr(Point, "at_step", {in_the_second: lambda: np.nan})
    closed.clear()
    words = "run --episodes 2 --policies best sample --candidates 2"
    assert "a reward is not finite: nan" in refused(words, evaluate)
    assert len(closed) == 4
    *others, last = json.loads(Path("run/evaluation.json").read_text())
    assert (others, last["policy"]) == (json.loads(before), "best")

    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError("No space left on device")))
    before = Path("run/evaluation.json").read_bytes()
    assert "error: No space left" in refused(words, evaluate)
    assert Path("run/evaluation.json").read_bytes() == before
