"""What people expect of a training script: Weights & Biases, a video, one line an evaluation, a --help worth reading."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bear
import uwac

WORDS = "--env-id door-demo --total-steps 4 --eval-every 2 --eval-episodes 1 --eval-candidates 2 --batch-size 4"
PASSES = {bear: [], uwac: ["--passes", "2"]}


def command(script, folder, words, **variables):
    """The script in a process of its own, with its output in pipes, as with a redirected log."""
    line = [sys.executable, script.__file__, *WORDS.split(), *PASSES[script], *words.split()]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | variables
    return subprocess.run(line, check=False, cwd=folder, env=environment, capture_output=True, text=True)


def test_track_logs_to_weights_and_biases(tmp_path):
    """Offline: the record of the run holds its project, entity, group, arguments and the metrics of TensorBoard."""
    pytest.importorskip("wandb")
    words = "--track --wandb-project-name our-project --wandb-entity our-team --wandb-group our-group --gamma 0.875"
    done = command(uwac, tmp_path, words, WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    (record,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    (folder,) = (tmp_path / "runs").iterdir()
    content = record.read_bytes()  # protocol buffers, whose strings stand in the file as they are
    expected = ["our-project", "our-team", "our-group", folder.name, "0.875", "train/critic_loss", "evaluation/score"]
    expected += ["evaluation/ood_auroc", "train/weight"]
    assert [text for text in expected if text.encode() not in content] == []


@pytest.mark.parametrize("flag, package", [("--track", "wandb"), ("--capture-video", "moviepy")])
def test_what_is_not_installed_is_named(script, tmp_path, monkeypatch, flag, package):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(script.InputError, match=f"{flag} needs {package}"):
        script.main(script.parse_args([*WORDS.split(), flag], {}))


def headless_backend():
    """A value of MUJOCO_GL with which this machine draws without a screen, if there is one."""
    program = "import mujoco; mujoco.GLContext(8, 8).make_current()"
    for backend in ("egl", "osmesa"):
        command, variables = [sys.executable, "-c", program], os.environ | {"MUJOCO_GL": backend}
        if subprocess.run(command, check=False, env=variables, capture_output=True).returncode == 0:
            return backend
    return None


def test_a_video_of_the_last_policy(tmp_path):
    """Two seeds side by side, until both pens have fallen, and something moves. (uwac.py's `make_envs` is the same.)"""
    moviepy = pytest.importorskip("moviepy")
    if (backend := headless_backend()) is None:
        pytest.skip("neither EGL nor OSMesa")
    program = f"""
import sys; sys.path.insert(0, {str(Path(bear.__file__).parent)!r})
import torch, bear
envs = bear.make_envs("pen-expert", 2, bear.Path("video"))
sizes = 2, *envs.single_observation_space.shape, *envs.single_action_space.shape
torch.manual_seed(0)
print(bear.evaluate(bear.Actor(*sizes), bear.Critic(*sizes), envs, 2, [0]).shape)
envs.close()
"""
    command, variables = [sys.executable, "-c", program], os.environ | {"MUJOCO_GL": backend}
    done = subprocess.run(command, check=False, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.stdout == "(2, 1)\n", done.stderr
    (path,) = (tmp_path / "video").iterdir()
    assert path.name == "evaluation-step-0.mp4"
    with moviepy.VideoFileClip(str(path)) as video:
        first, last = video.get_frame(0), video.get_frame(video.duration - 1 / video.fps)
        assert 5 < round(video.duration * video.fps) <= 100
    assert first.shape[1] == 2 * first.shape[0]
    for half in np.split(last.astype(int) - first, 2, axis=1):
        assert np.abs(half).mean() > 0.5


def test_one_line_an_evaluation_in_a_redirected_log(script, tmp_path):
    """Step, score, Q target, weight and ood_auroc with their spread over seeds, updates per second; no progress bar."""
    done = command(script, tmp_path, "--num-seeds 2")
    assert done.returncode == 0, done.stderr
    number, signed = r"\d+\.\d+ ± \d+\.\d+", r"-?\d+\.\d+ ± \d+\.\d+"
    rest = rf", weight {number}, ood_auroc {number}" if script is uwac else ""
    first, *lines = done.stdout.splitlines()
    assert first.startswith(f"{script.__name__}: door-demo, 4975 transitions of ")
    assert len(lines) == 2
    for step, line in zip((2, 4), lines):
        assert re.fullmatch(rf"step {step}: score {signed}, Q target {signed}{rest}, \d+\.\d updates/s", line)
    assert not [line for line in done.stderr.splitlines() if not line.startswith("AdroitHand")]


def test_help_is_in_groups_and_names_every_argument(script, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as end:
        script.parse_args(["--help"], {})
    assert end.value.code == 0
    text = capsys.readouterr().out
    titles = re.findall(r"^\W*(\w+) options\W*$", text, re.MULTILINE)
    assert titles == ["task", "BEAR", *(["UWAC"] if script is uwac else []), "evaluation", "run"]
    for name in vars(script.Args()):
        assert f"--{name.replace('_', '-')}" in text
    groups = dict(zip(titles, re.split(r"\w+ options\W*\n", text)[1:]))
    for group, names in {"task": ["env-id"], "BEAR": ["gamma"], "evaluation": ["evaluate"], "run": ["resume"]}.items():
        assert all(f"--{name} " in groups[group] for name in names)
    sources = re.findall(r"\((?:paper|BEAR code|BEAR's author|authors' code|CORL|CleanRL|D4RL)", text)
    assert len(sources) >= 17
