"""Both scripts from the command line: what a run leaves, and one line for what cannot be."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from conftest import ROOT, command_line, short, words

import uwac

pytestmark = pytest.mark.usefixtures("points")
DOOR = {"env_id": "door-demo", "dataset_path": str(ROOT / "data" / "door-demo.hdf5")}


@pytest.mark.parametrize("seeds", [1, 2])
def test_what_a_run_leaves(script, seeds):
    result = script.main(short(script, **DOOR, num_seeds=seeds))
    run = Path("run")
    assert json.loads((run / "result.json").read_text()) == json.loads(json.dumps(result))
    assert json.loads((run / "args.json").read_text()) == result["args"]
    assert result["task"] == "door-demo" and result["algorithm"] == script.SCRIPT
    assert result["transitions"] == 25 * 199  # the last step of 25 episodes has no next one
    assert result["data"]["path"] == DOOR["dataset_path"] and len(result["data"]["sha256"]) == 64
    assert {"python", "torch", "mujoco"} <= set(result["versions"])
    assert result["hardware"] and re.fullmatch("[0-9a-f]{40}", result["commit"] or "0" * 40)
    assert result["seconds"] > 0 and result["ms_per_update"] > 0

    with open(run / "metrics.csv") as file:
        table = list(csv.DictReader(file))
    assert [(row["step"], row["seed"]) for row in table] == [
        (str(step), str(seed)) for step in (3, 6) for seed in range(seeds)
    ]
    assert [row["step"] for row in result["history"]] == [3, 6]
    names = set(result["history"][0]) - {"step"}
    assert {"seconds", "score", "return", "return_std", "critic_loss", "mmd"} <= names
    for name in names - {"seconds"}:
        values = np.array([row[name] for row in result["history"]])
        assert values.shape == (2, seeds) and np.isfinite(values).all()
        assert [float(row[name]) for row in table] == pytest.approx(values.flatten())

    returns = np.array([row["return"] for row in result["history"]])
    scores = np.array([row["score"] for row in result["history"]])
    assert scores == pytest.approx(100 * (returns + 56.512833) / (2880.5693087298737 + 56.512833))
    for name, means in (("last", scores[-1]), ("last_ten", scores.mean(0))):
        assert result[name]["mean"] == pytest.approx(means.mean())
        assert result[name]["std"] == (pytest.approx(means.std(ddof=1)) if seeds > 1 else None)

    picture = matplotlib.image.imread(run / "curves.png")
    assert picture.std() > 0 and max(picture.shape) <= 1000


def test_the_folder_of_a_run(monkeypatch):
    """Sorts by date by itself, and is not another run's."""
    uwac.main(short(uwac, total_steps=1, seed=3, run_dir=None))
    (run,) = Path("runs").iterdir()
    assert re.fullmatch(r"Point-v0__uwac__3__\d{4}-\d\d-\d\d_\d{6}", run.name)
    before = {path: path.read_bytes() for path in run.iterdir()}
    assert command_line(uwac, words(uwac, run_dir=run), monkeypatch) == 2
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_how_often_one_evaluates_and_logs_changes_nothing(script):
    rest = {"eval_every": 2, "eval_episodes": 2, "eval_candidates": 5, "log_every": 1}
    script.main(short(script, run_dir="one"))
    script.main(short(script, run_dir="two", checkpoint_every=1, **rest))
    one, two = (script.load_checkpoint(run)[0].state_dict() for run in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_evaluate_again(monkeypatch, capsys):
    """The same seed and settings: the last evaluation. Others: other episodes."""
    result = uwac.main(short(uwac, seed=3, num_seeds=2, eval_episodes=4))
    last = result["history"][-1]
    capsys.readouterr()
    line = "--evaluate run --eval-episodes 4 --eval-candidates 3 --seed"
    assert command_line(uwac, f"{line} 3", monkeypatch) == 0
    again = json.loads(Path("run/evaluation.json").read_text())
    assert np.mean(again["returns"], 1).tolist() == last["return"]
    assert np.mean(again["scores"], 1).tolist() == last["score"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for seed, returns in enumerate(again["returns"]):
        mean, error = np.mean(returns), np.std(returns, ddof=1) / 2
        assert f"seed {seed}" in lines[seed] and "6 updates, 4 episodes" in lines[seed]
        assert f"{mean:.1f} ± {error:.1f}" in lines[seed]
    assert command_line(uwac, f"{line} 4", monkeypatch) == 0
    assert json.loads(Path("run/evaluation.json").read_text())["returns"] != again["returns"]


def test_a_diverged_run(script, monkeypatch, capsys):
    """Exit code 3, one line that names a loss and the update; what came before stays."""
    line = words(script, critic_lr=1e9, total_steps=400, eval_every=1)
    assert command_line(script, line, monkeypatch) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "at update" in line
    _, saved = script.load_checkpoint("run")
    assert saved["step"] == len(saved["history"]) > 0
    assert json.loads(Path("run/result.json").read_text())["history"] == saved["history"]


WRONG = ["--gamma 2", "--variance typo", "--total-steps x", "--no-such 3", "--evaluate nothing"]
WRONG += ["--resume nothing", "--env-id antmaze-umaze-v0", "--env-id CartPole-v1"]
WRONG += ["--dataset-path missing.hdf5"]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments(monkeypatch, capsys, wrong):
    """Named, exit code 2, nothing is left."""
    assert command_line(uwac, f"{words(uwac)} {wrong}", monkeypatch) == 2
    error = capsys.readouterr().err
    assert any(word.strip("-") in error for word in wrong.split())
    assert not Path("run").exists()


def test_a_graphics_library_that_does_not_exist(script):
    """MuJoCo refuses the name when it is imported, also where nothing is drawn."""
    command = [sys.executable, script.__file__, "--env-id", "door-demo"]
    environment = os.environ | {"MUJOCO_GL": "foo"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: --env-id door-demo") and "MUJOCO_GL" in line
