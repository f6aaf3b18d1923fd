import dataclasses
import os
import runpy
import signal
import sys
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parent.parent
if not any("test_gpu" in word for word in sys.argv):  # all others' numbers are a CPU's
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import bear
import uwac

torch.set_num_threads(1)  # the tensors are small, and threads only wait for each other


@pytest.fixture(autouse=True)
def each_test_by_itself():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture(params=[bear, uwac], ids=["bear", "uwac"])
def script(request):
    """For both; other tests run uwac.py alone, where most of bear.py stands letter for letter."""
    return request.param


def command_line(script, words, monkeypatch):
    """The script as __main__ in this process, which saves the imports; returns its exit code."""
    monkeypatch.setattr(sys, "argv", [script.__file__, *words.split()])
    try:
        runpy.run_path(script.__file__, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):  # as Python does where nobody catches it
            print(end.code, file=sys.stderr)
            return 1
        return end.code
    return 0


@pytest.fixture
def refused(monkeypatch, capsys):
    """A function of a command line: the one line with which uwac.py, or bear.py, refuses it."""

    def error(words, script=uwac):
        capsys.readouterr()
        assert command_line(script, words, monkeypatch) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return error


def rows_in(text, *headings):
    """Of the Markdown table that has these columns, each cell's text by its column."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    (start,) = [i for i, cells in enumerate(lines) if {*headings} <= {*cells}]
    end = [*lines, [""]].index([""], start)
    return [dict(zip(lines[start], cells, strict=True)) for cells in lines[start + 2 : end]]


def zeroed(*networks):
    for network in networks:
        for parameter in network.parameters():
            parameter.data.zero_()


def scalars(run):
    """TensorBoard's values by their step, none of them twice, for each name."""
    log = EventAccumulator(str(run)).Reload()
    curves = {}
    for tag in log.Tags()["scalars"]:
        curves[tag] = {event.step: event.value for event in log.Scalars(tag)}
        assert len(curves[tag]) == len(log.Scalars(tag))
    return curves


class Point(gym.Env):
    """A small environment of one's own: nothing happens in 5 steps."""

    observation_space = gym.spaces.Box(-9, 9, (3,), np.float32)
    action_space = gym.spaces.Box(-2, 2, (2,), np.float32)
    at_step = {}  # a function that a test has called at the n-th step of all; its reward is added
    played = []  # actions of all steps

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.obs = self.np_random.normal(size=3).astype(np.float32)
        return self.obs.copy(), {}

    def step(self, action):
        Point.played.append(action)
        more = Point.at_step.get(len(Point.played), lambda: None)() or 0
        reward = self.obs @ self.obs + action @ action + more
        return self.obs.copy(), float(reward), False, False, {}


gym.register("Point-v0", Point, max_episode_steps=5)

# A run of seconds on it: evaluations, of 5 steps each, at updates 3 and 6.
SHORT = {"env_id": "Point-v0", "dataset_path": "points.hdf5", "total_steps": 6, "eval_every": 3}
SHORT |= {"eval_episodes": 1, "eval_candidates": 3, "batch_size": 8, "log_every": 2}
SHORT |= {"num_candidates": 2, "num_mmd_samples": 2, "warmup_steps": 2, "run_dir": "run"}


def settings(script, **changes):
    passes = {"passes": 2} if script is uwac else {}
    return SHORT | passes | changes


def short(script, **changes):
    return script.Args(**settings(script, **changes))


def resumed(script, run="run", **changes):
    """The arguments of a run, to go on with it."""
    agent, _ = script.load_checkpoint(run)
    return dataclasses.replace(agent.args, resume=True, **changes)


def words(script, **changes):
    return " ".join(f"--{name} {value}" for name, value in settings(script, **changes).items())


class Code:
    """What a pickle would execute."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


def write_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


@pytest.fixture
def points(tmp_path, monkeypatch):
    """Arrays of a random policy in Point-v0, and an empty folder with a file of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Point, "played", [])
    monkeypatch.setattr(Point, "at_step", {})
    rng = np.random.default_rng(0)
    arrays = {"observations": rng.normal(size=(50, 3)), "actions": rng.uniform(-1, 1, (50, 2))}
    arrays |= {"rewards": rng.normal(size=50), "terminals": np.zeros(50, bool)}
    write_hdf5("points.hdf5", arrays)
    return arrays
