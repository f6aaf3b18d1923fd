"""Both scripts from the command line: what a run leaves, and one line for what cannot be."""

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, Point, command_line, scalars, short, words

import uwac

pytestmark = pytest.mark.usefixtures("points")
DOOR = {"env_id": "door-demo", "dataset_path": str(ROOT / "data" / "door-demo.hdf5")}
RUN = Path("run")


def test_what_a_run_leaves(script):
    result = script.main(short(script, **DOOR, num_seeds=2, gamma=0.875))
    assert {path.name.split(".")[0] for path in RUN.iterdir()} == {"checkpoint", "events", "result"}
    assert json.loads((RUN / "result.json").read_text()) == json.loads(json.dumps(result))
    assert result["algorithm"] == script.__name__
    assert result["args"]["env_id"] == "door-demo" and result["args"]["gamma"] == 0.875
    assert result["transitions"] == 25 * 199  # the last step of 25 episodes has no next one
    assert result["data"]["path"] == DOOR["dataset_path"] and len(result["data"]["sha256"]) == 64
    assert {"torch", "mujoco"} <= set(result["versions"])
    assert result["hardware"] and re.fullmatch("[0-9a-f]{40}(-dirty)?|", result["commit"])

    history = result["history"]
    assert [row["step"] for row in history] == [3, 6]
    assert 0 < history[0]["seconds"] < history[1]["seconds"]
    names = set(history[0]) - {"step", "seconds"}
    assert {"score", "return", "return_std", "critic_loss", "mmd"} <= names
    for name in names:
        values = np.array([row[name] for row in history])
        assert values.shape == (2, 2) and np.isfinite(values).all()

    low, high = -56.512833, 2880.5693087298737
    for row in history:
        assert row["score"] == pytest.approx(100 * (np.array(row["return"]) - low) / (high - low))


def test_lines_and_tensorboard(script, capsys):
    """Both at every log and evaluation; the curves are each seed's."""
    result = script.main(short(script, num_seeds=2, lmbda=0.625))
    first, *lines = capsys.readouterr().out.splitlines()
    data = "40 transitions of points.hdf5 (unverified)"
    assert first.startswith(f"{script.__name__}: {data}, on cpu; ")
    pattern = r" (\d)/6 \[.* updates.*\]: (warm-up, )?vae_loss \S+, "
    steps, warmup = zip(*(re.search(pattern, line).groups() for line in lines))
    assert steps == ("2", "3", "4", "6")
    assert warmup == ("warm-up, ", None, None, None)
    assert ["score" in line for line in lines] == [False, True, False, True]
    (log,) = RUN.glob("events.*")
    assert b"0.625" in log.read_bytes()
    curves = scalars(RUN)
    row = result["history"][-1]
    for name in set(row) - {"step", "seconds"}:
        of_evaluations = name.startswith(("score", "return", "ood"))
        for seed in (0, 1):
            curve = curves[f"{name}/agent-{seed}"]
            assert list(curve) == ([3, 6] if of_evaluations else [2, 3, 4, 6])
            assert curve[6] == pytest.approx(row[name][seed], rel=1e-5)


def test_a_run_within_the_warmup_says_so(script, capsys):
    """At its start and at its end."""
    script.main(short(script, total_steps=2))
    _, second, *_, last = capsys.readouterr().out.splitlines()
    assert second == last and last.startswith("all 2 updates are warm-up: the actor only imitates")


def test_the_folder_of_a_run(monkeypatch, capsys):
    """Sorts by date by itself, and is not another run's, even of the same second."""
    for _ in range(3):
        uwac.main(short(uwac, total_steps=1, seed=3, run_dir=None, exp_name="mine"))
    run, *others = Path("runs").iterdir()
    assert re.fullmatch(r"Point-v0__mine__3__\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{6}", run.name)
    assert len(others) == 2
    before = {path: path.read_bytes() for path in run.iterdir()}
    assert command_line(uwac, words(uwac, run_dir=run), monkeypatch) == 2
    assert f"error: --run-dir {run}: choose another, or --resume {run}" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_how_often_one_evaluates_and_logs_changes_nothing(script):
    """But the seed changes every weight."""
    rest = {"eval_every": 2, "eval_episodes": 2, "eval_candidates": 5, "log_every": 1}
    weights = []
    for changes in ({}, rest, {"seed": 1}):
        run = f"run{len(weights)}"
        script.main(short(script, run_dir=run, **changes))
        weights.append(script.load_checkpoint(run)[0].state_dict())
    one, two, other = weights
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if "weight" in name)


def test_precision_is_in_force_in_training_and_full_in_evaluation(script, monkeypatch):
    found = {"update": [], "evaluate": [], "ood_auroc": []}

    def spied(name, function):
        def spy(*args):
            found[name].append(torch.get_float32_matmul_precision())
            return function(*args)

        return spy

    for name in {"evaluate", "ood_auroc"} & vars(script).keys():
        monkeypatch.setattr(script, name, spied(name, getattr(script, name)))
    update = spied("update", script.update)
    script.main(short(script, matmul_precision="medium"), update=update)
    assert found["update"] == ["medium"] * 6  # three of them after an evaluation
    assert set(found["evaluate"]) == {"highest"}
    assert found["ood_auroc"] == ["highest"] * 2 * (script is uwac)


def test_a_diverged_run(script, monkeypatch, capsys):
    """Exit code 3, a line that names a loss and the update; what came before stays."""
    line = words(script, critic_lr=1e9, total_steps=400, eval_every=1)
    assert command_line(script, line, monkeypatch) == 3
    error = capsys.readouterr().err
    step = int(re.search(r"error: \w+ is .* at update (\d+): diverged\n", error)[1])
    history = script.load_checkpoint("run")[1]["history"]
    assert step > 1 and [row["step"] for row in history] == [*range(1, step)]
    assert json.loads((RUN / "result.json").read_text())["history"] == history


WRONG = ["--gamma 2", "--variance typo", "--total-steps x", "--no-such 3", "--resume nothing"]
WRONG += ["--env-id CartPole-v1", "--env-id gymnasium_robotics:FetchReach-v4"]
WRONG += ["--dataset-path missing.hdf5"]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments(monkeypatch, capsys, wrong):
    """Named, exit code 2, nothing is left."""
    assert command_line(uwac, f"{words(uwac)} {wrong}", monkeypatch) == 2
    error = capsys.readouterr().err
    assert any(word.strip("-") in error for word in wrong.split())
    assert not RUN.exists()


@pytest.mark.parametrize("space, problem", [
    (gym.spaces.Box(-np.inf, np.inf, (2,)), "must have finite bounds"),
    (gym.spaces.Box(np.float32([-1, 0]), np.float32([1, 0])), "must have finite bounds"),
    (gym.spaces.Discrete(2), "vectors"),
])  # fmt: skip
def test_an_environment_that_cannot_be_used(script, monkeypatch, space, problem):
    monkeypatch.setattr(Point, "action_space", space)
    with pytest.raises(script.InputError, match=f"--env-id Point-v0: .*{problem}"):
        script.main(short(script))


def test_a_bug_in_an_environment_is_a_traceback(script, monkeypatch):
    monkeypatch.setattr(Point, "__init__", lambda self: {}["missing"])
    with pytest.raises(KeyError):
        script.main(short(script))


def test_the_commit_says_when_a_file_is_edited(tmp_path):
    copy = shutil.copy(ROOT / "uwac.py", tmp_path)
    git = "git -c user.name=x -c user.email=x"
    setup = f"cd {tmp_path} && git init -q && git add uwac.py && {git} commit -qm x"
    subprocess.run(setup, shell=True, check=True)
    describe = runpy.run_path(copy)["GIT_DESCRIBE"]
    assert re.fullmatch("[0-9a-f]{40}", subprocess.getoutput(describe))
    (tmp_path / "uwac.py").write_text("an edit")
    assert re.fullmatch("[0-9a-f]{40}-dirty", subprocess.getoutput(describe))
