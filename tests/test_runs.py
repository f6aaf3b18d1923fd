"""Both scripts from data to files: what a run leaves, and one line for what cannot be."""

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, Point, command_line, scalars, short, words

import d4rl
import uwac

pytestmark = pytest.mark.usefixtures("points")
RUN = Path("run")
gym.register("Endless-v0", Point)
gym.register("own/Point-v0", Point, max_episode_steps=5)


def test_what_a_run_leaves(script, capsys):
    """Files, printed lines, and TensorBoard's curves of each seed."""
    result = script.main(short(script, num_seeds=2, lmbda=0.625))
    names = {path.name.split(".")[0] for path in RUN.iterdir()}
    assert names == {"checkpoint", "events", "result", "in-use"}
    assert json.loads((RUN / "result.json").read_text()) == json.loads(json.dumps(result))
    assert result["algorithm"] == script.__name__
    assert result["args"] == short(script, num_seeds=2, lmbda=0.625).resolved()
    assert (result["transitions"], result["clipped_actions"]) == (40, 0)
    assert result["data"] == d4rl.describe("points.hdf5")
    assert result["versions"]["torch"] == torch.__version__
    assert result["hardware"] == "cpu, 1 threads"

    history = result["history"]
    assert [row["step"] for row in history] == [3, 6]
    assert 0 < history[0]["seconds"] < history[1]["seconds"]
    names = set(history[0]) - {"step", "seconds"}
    assert {"score", "score_sample", "return", "return_std", "critic_loss", "mmd"} <= names
    curves = scalars(RUN)
    for name in names:
        of_evaluations = name.startswith(("score", "return", "ood"))
        for seed in (0, 1):
            curve = curves[f"{name}/agent-{seed}"]
            assert list(curve) == ([3, 6] if of_evaluations else [2, 3, 4, 6])
            for row in history:
                assert len(row[name]) == 2
                assert curve[row["step"]] == pytest.approx(row[name][seed], rel=1e-5)

    data, place, *lines = capsys.readouterr().out.splitlines()
    assert data == "40 transitions of points.hdf5 (not D4RL's own), 0 actions clipped"
    assert place.startswith("on cpu; results in run: ")
    found = [re.match(r"(\d)/6: (warm-up, )?vae_loss \S+, ", line).groups() for line in lines]
    assert found == [("2", "warm-up, "), ("3", None), ("4", None), ("6", None)]
    assert ["score" in line for line in lines] == [False, True, False, True]


def test_folders(monkeypatch):
    """Each run has its own, one deep, and in the result its own arguments, though they are changed
    for the next run; a home folder is found."""
    args = short(uwac, env_id="test_runs:own/Point-v0", total_steps=1, run_dir=None)
    results = []
    for args.seed in (3, 4, 3):
        results.append(uwac.main(args))
    assert [result["args"]["seed"] for result in results] == [3, 4, 3]
    runs = sorted(path.parent for path in Path("runs").glob("*/result.json"))
    time = r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{6}"
    for run, seed in zip(runs, (3, 3, 4), strict=True):
        assert re.fullmatch(f"test_runs-own-Point-v0__uwac__{seed}__{time}", run.name)
    monkeypatch.setenv("HOME", str(Path.cwd()))
    changes = {"dataset_path": "~/points.hdf5", "run_dir": "~/deep/run"}
    assert command_line(uwac, words(uwac, total_steps=3, **changes), monkeypatch) == 0
    assert command_line(uwac, "--resume ~/deep/run --total-steps 4", monkeypatch) == 0
    assert Path("deep/run/result.json").exists() and not Path("~").exists()


def test_what_is_trained_on_and_scored(monkeypatch):
    """Actions in [-1, 1]. On D4RL's tasks those beyond are clipped, and a score is D4RL's."""
    monkeypatch.setitem(d4rl.TASK_OF, "Point-v0", "door")
    arrays = {"observations": np.random.default_rng(0).normal(size=(4, 3))}
    arrays |= {"actions": np.array([[1.0, -2.0], [0.5, 0.0], [2.5, 2.0], [0.0, 0.0]])}
    arrays |= {"rewards": np.arange(4.0), "terminals": np.array([0, 1, 0, 0])}
    seen = []

    def spied(agent, data, step, args):
        seen.extend(data)
        return uwac.update(agent, data, step, args)

    args = short(uwac, total_steps=1, eval_episodes=2, dataset_path=None)
    result = uwac.main(args, dataset=arrays, update=spied)
    obs, action, reward, next_obs, done = (tensor.tolist() for tensor in seen)
    rows = arrays["observations"].astype(np.float32)
    assert obs == rows[:3].tolist() and next_obs[0] == rows[1].tolist()
    assert action == [[0.5, -1.0], [0.25, 0.0], [1.0, 1.0]]
    assert (reward, done) == ([0, 1, 2], [0, 1, 0])
    assert (result["clipped_actions"], result["data"]["path"]) == (1, "arrays from Python")
    (row,) = result["history"]
    random, expert = -56.512833, 2880.5693087298737
    assert row["score"] == [pytest.approx(100 * (row["return"][0] - random) / (expert - random))]


def test_how_often_one_evaluates_and_logs_changes_nothing(monkeypatch):
    """But the seed changes all weights, and, where the weights are the same, what is drawn."""
    rest = {"eval_every": 2, "eval_episodes": 2, "eval_candidates": 5, "log_every": 1}
    weights = []
    for changes in ({}, rest, {"seed": 1}):
        run = f"run{len(weights)}"
        uwac.main(short(uwac, run_dir=run, **changes))
        weights.append(uwac.load_checkpoint(run)[0].state_dict())
    one, two, other = weights
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if "weight" in name)

    drawn = []

    def spied(*args):
        drawn.append(torch.rand(4).tolist())
        return uwac.update(*args)

    for seed in (0, 1):
        uwac.main(short(uwac, run_dir=f"seed{seed}", seed=seed, total_steps=1), update=spied)
    assert drawn[0] != drawn[1]


def test_evaluations(monkeypatch):
    """The best of --eval-candidates samples and one sample play the same episodes, in float32;
    --matmul-precision is that of training."""
    found = []

    def spied(name, function):
        def spy(*args):
            found.append((name, torch.get_float32_matmul_precision(), *args[2:]))
            return function(*args)

        return spy

    for name in ("evaluate", "ood_auroc"):
        monkeypatch.setattr(uwac, name, spied(name, getattr(uwac, name)))
    update = spied("update", uwac.update)
    args = short(uwac, matmul_precision="medium", seed=5)
    uwac.main(args, update=update)
    expected = []
    for step in range(1, 7):
        expected.append(("update", "medium", step, args))
        if step in (3, 6):
            expected += [("evaluate", "highest", [5, step], num) for num in (3, 1)]
            expected.append(("ood_auroc", "highest", args))
    assert found == expected


def test_one_diverged_seed_ends_a_run(script):
    """And what came before stays."""

    def diverging(agent, data, step, args):
        metrics = script.update(agent, data, step, args)
        if step == 4:
            metrics["critic_loss"] = torch.tensor([1.0, np.nan])
        return metrics

    with pytest.raises(FloatingPointError, match="diverged at update 4: .*critic_loss"):
        script.main(short(script, num_seeds=2), update=diverging)
    assert [row["step"] for row in script.load_checkpoint(RUN)[1]["history"]] == [3]


def test_a_reward_that_is_not_a_number(script, monkeypatch, capsys):
    """In the second evaluation: one line and exit code 1; no NaN gets into a file."""
    step = Point.step

    def broken(self, action):
        obs, reward, *ends = step(self, action)
        return obs, np.nan if Point.steps == 13 else reward, *ends

    monkeypatch.setattr(Point, "step", broken)
    assert command_line(script, words(script), monkeypatch) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.match("error: diverged at update 6: .*return", error)
    assert [row["step"] for row in script.load_checkpoint(RUN)[1]["history"]] == [3]
    assert "NaN" not in (RUN / "result.json").read_text()


WRONG = {
    "--gamma 2": "--gamma 2.0: Input should be less than or equal to 1",
    "--resume nothing": "nothing/checkpoint.pt",
    "--env-id CartPole-v1": "CartPole-v1: must have vectors",
    "--env-id Endless-v0": "Endless-v0: needs a step limit",
    "--env-id Nothing-v0": "Nothing-v0",
    "--dataset-path missing.hdf5": "missing.hdf5",
    "--run-dir .": "--run-dir . exists: choose another, or --resume .",
    "--run-dir points.hdf5/run": "points.hdf5/run",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_is_one_line(monkeypatch, capsys, wrong):
    """Exit code 1, and nothing is left."""
    before = {path.name for path in Path().iterdir()}
    assert command_line(uwac, f"{words(uwac)} {wrong}", monkeypatch) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ") and WRONG[wrong] in error
    assert {path.name for path in Path().iterdir()} == before


@pytest.mark.parametrize("wrong", ["--variance typo", "--total-steps x", "--no-such 3"])
def test_the_parser_names_what_it_does_not_know(monkeypatch, capsys, wrong):
    assert command_line(uwac, f"{words(uwac)} {wrong}", monkeypatch) == 2
    error = capsys.readouterr().err
    assert wrong.split()[0] in error and "Traceback" not in error


@pytest.mark.parametrize("stdout", [None, io.StringIO()], ids=["closed", "a notebook's"])
def test_any_standard_output_will_do(script, monkeypatch, stdout):
    monkeypatch.setattr(sys, "stdout", stdout)
    assert command_line(script, words(script, total_steps=1), monkeypatch) == 0
    assert stdout is None or "1/1: " in stdout.getvalue()


def test_an_agent_typed_in_a_notebook(script, monkeypatch):
    """Its module has no file."""
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    typed = type("Typed", (script.Agent,), {"__module__": "__main__"})
    result = script.main(short(script, total_steps=1), agent_type=typed)
    assert result["algorithm"] == script.__name__
    assert type(script.load_checkpoint(RUN, typed)[0]) is typed


def test_a_copy_of_script_and_d4rl_runs_alone(tmp_path, monkeypatch):
    """In a folder of any name, without standard output; the result has the copy's commit, and
    whether it was edited since."""
    copy = tmp_path / "o'brien\"; touch RAN; $(touch RAN)"
    shutil.copytree(ROOT / "d4rl", copy / "d4rl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "uwac.py", copy)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x"]
    for command in (["init", "-q"], ["add", "uwac.py"], ["commit", "-qm", "x"]):
        subprocess.run(git + command, cwd=copy, check=True)
    head = ["rev-parse", "--short", "HEAD"]
    commit = subprocess.check_output(git + head, cwd=copy, text=True).strip()
    line = "--env-id door-demo --total-steps 1 --eval-episodes 1 --eval-candidates 2 --batch-size 4"
    line += " --variance analytic --run-dir copied"
    start = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, copy / "uwac.py", *line.split()]
    done = subprocess.run(start, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "copied" / "result.json").read_text())
    assert result["commit"] == commit
    assert result["data"]["path"] == str(copy / "d4rl" / "door-demo.hdf5")
    (copy / "uwac.py").write_text("an edit")
    monkeypatch.setitem(sys.modules, "edited", module := ModuleType("edited"))
    module.__file__ = str(copy / "uwac.py")
    edited = type("Edited", (uwac.Agent,), {"__module__": "edited"})
    assert uwac.main(short(uwac, total_steps=1), agent_type=edited)["commit"] == f"{commit}-dirty"
    assert not [*tmp_path.glob("**/RAN")]
