"""What shows how a run goes: lines, TensorBoard, Weights & Biases, the video."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Point, command_line, scalars, short, words

import uwac

pytestmark = pytest.mark.usefixtures("points")


def test_a_line_at_every_log_and_evaluation(script, monkeypatch, capsys):
    """Without a terminal: what is trained, then step, losses, updates/s and time left; no bar."""
    assert command_line(script, words(script, total_steps=7), monkeypatch) == 0
    output = capsys.readouterr()
    first, *lines = output.out.splitlines()
    assert first.startswith(f"{script.SCRIPT}: 40 transitions of points.hdf5, on ")
    assert first.endswith("into run")
    assert [int(re.match(r"step (\d+): ", line)[1]) for line in lines] == [2, 3, 4, 6, 7]
    for line in lines:
        assert re.search(r"critic_loss \S+, .*; \d+\.\d updates/s, \d+:\d\d:\d\d left$", line)
    assert ["score" in line for line in lines] == [False, True, False, True, True]
    assert lines[-1].endswith("0:00:00 left") and output.err == ""


def test_tensorboard(script):
    """Hyper-parameters, updates/s, each seed's curves and their means, at every log."""
    result = script.main(short(script, num_seeds=2, lmbda=0.625))
    (log,) = Path("run").glob("events.*")
    assert b"0.625" in log.read_bytes()
    curves = scalars("run")
    row = result["history"][-1]
    for name in set(row) - {"step", "seconds"}:
        steps = [3, 6] if name in ("score", "return", "return_std", "ood_auroc") else [2, 3, 4, 6]
        assert list(curves[name]) == steps
        assert curves[name][6] == pytest.approx(np.mean(row[name]), rel=1e-5)
        for seed in (0, 1):
            assert curves[f"{name}/seed-{seed}"][6] == pytest.approx(row[name][seed], rel=1e-5)
    assert min(curves["updates_per_second"].values()) > 0


def test_weights_and_biases_offline(monkeypatch):
    """The run's record holds its arguments and TensorBoard's metrics."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "our-project")
    monkeypatch.setenv("WANDB_SILENT", "true")
    uwac.main(short(uwac, track=True, gamma=0.875, total_steps=3))
    wandb.teardown()  # all is written
    (record,) = Path("wandb").glob("offline-run-*/run-run.wandb")
    content = record.read_bytes()  # whose strings stand in the file as they are
    for text in ("our-project", "0.875", "critic_loss", "score", "ood_auroc"):
        assert text.encode() in content, text


@pytest.mark.parametrize("flag, package", [("track", "wandb"), ("capture-video", "moviepy")])
def test_what_is_not_installed_is_named(monkeypatch, capsys, flag, package):
    """Before any training, and no folder of results stays."""
    monkeypatch.setitem(sys.modules, package, None)
    assert command_line(uwac, f"{words(uwac)} --{flag}", monkeypatch) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and package in error
    assert not Path("run").exists()


def test_a_video_of_the_last_policy():
    """Of both seeds side by side, named by the update, at the environment's speed; --evaluate
    makes one, too."""
    moviepy = pytest.importorskip("moviepy")
    result = uwac.main(short(uwac, capture_video=True, num_seeds=2))
    assert Path("run/evaluation.json").exists() and len(result["history"]) == 2
    for _ in range(2):
        (film,) = Path("run").glob("*.mp4")
        assert "update-6" in film.name
        with moviepy.VideoFileClip(str(film)) as video:
            assert video.fps == Point.metadata["render_fps"]
            assert 4 <= round(video.duration * video.fps) <= 6
            assert video.size[0] * video.size[1] == 2 * 64 * 64
        film.unlink()
        uwac.main(uwac.Args(evaluate="run", capture_video=True, eval_episodes=1))


def test_graphics_that_cannot_be_had(tmp_path):
    """MuJoCo reads MUJOCO_GL where it is imported: a process of its own. PyOpenGL without its
    library raises at import, as this stand-in does."""
    (tmp_path / "OpenGL").mkdir()
    (tmp_path / "OpenGL" / "__init__.py").write_text("raise AttributeError('no libEGL')")
    file = ROOT / "data" / "door-demo.hdf5"
    line = words(uwac, env_id="door-demo", dataset_path=file)
    command = [sys.executable, str(ROOT / "uwac.py"), *line.split()]
    variables = {"MUJOCO_GL": "egl", "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: --env-id door-demo: cannot make its environment")
    assert not Path("run").exists()
