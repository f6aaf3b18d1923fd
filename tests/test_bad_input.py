"""What is wrong with a command ends each program with one line, and changes no file."""

import contextlib
import importlib.util
import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import command_line, short, write_hdf5

import bear
import d4rl
import uwac
from benchmark import make_dataset, report, run
from benchmark.measure import diagnose, evaluate, speed, true_q, variance
from benchmark.variants import bc, ensembles, weights

DEMO = Path(d4rl.__file__).with_name("door-demo.hdf5")
CASES = [
    (bc, "--env-id Nothing-v0", "Nothing-v0: no data of it"),
    (diagnose, "", "name the folders of one run or more"),
    (diagnose, "arrays", "arrays: learned from arrays from Python, which is no file here"),
    (diagnose, "altered", "altered: points.hdf5 is not the data that it learned from"),
    (evaluate, "nothing", "nothing: not a run's folder"),
    (evaluate, "unfinished", "unfinished: was not evaluated yet"),
    (evaluate, "damaged", "damaged/evaluation.json: damaged, move it away"),
    (evaluate, "other", "other/evaluation.json: of another program or version, move it away"),
    (evaluate, "run", "Point-v0: needs a step limit"),
    (evaluate, "run --film", "--film needs moviepy: pip install moviepy"),
    (make_dataset, "", "say what to make"),
    (make_dataset, "--policy hopper-medium walker2d-medium", "made for hopper and walker2d"),
    (make_dataset, "--policy nowhere.npz", "neither a run nor a policy; shipped: door-expert"),
    (make_dataset, f"--env hopper --demos {DEMO}", "must be numbers of shape (5000, 11), not"),
    (make_dataset, "--env walker2d --train-steps 9", "checkpoint.pt: not a checkpoint"),
    (make_dataset, "--policy hopper-random --out points.hdf5", "exists: give --force"),
    (make_dataset, "--policy hopper-medium hopper-expert --steps 1", "a step for each policy"),
    (report, "run nothing", "no results in nothing; benchmark/run.py makes some"),
    (report, "run --metrics MB", "--metrics MB: there are actor_loss, alpha, "),
    (run, "--run_dir a", "--run-dir is given to each run"),
    (run, "--seeds 2 --num-seeds 2", "--num-seeds trains seeds 0, 1, ... in one run"),
    (run, "--tasks Point-v0", "Point-v0: no data of it; give"),
    (speed, "--threads 1 --folder=~/damaged", "damaged/speed.json exists: move it away"),
    (true_q, "", "name tasks or files of data, or policies"),
    (true_q, "points.hdf5", "points.hdf5: has no timeouts"),
    (uwac, "--env-id door-demo --resume", "--resume: which run? Add --run-dir"),
    (uwac, "--env-id Nothing-v0", "Nothing-v0"),
    (uwac, "--env-id door-demo --dataset-path missing.hdf5", "missing.hdf5: no such file"),
    (uwac, "--env-id door-demo --run-dir .", ". exists: add --resume to go on there, or"),
    (uwac, "--env-id door-demo --cuda-graph", "--cuda-graph: there is no GPU"),
    (uwac, "--env-id door-demo --run-dir points.hdf5/run", "points.hdf5/run"),
    (variance, "--folder=~/damaged", "damaged/variance.json exists: move it away"),
    (weights, "--env-id door-demo --weighting exp --dropout 0", "--dropout 0: no variance to"),
]
BOXES = [  # of the parser
    (ensembles, "--ensemble-size 1", "ensemble_size Input should be greater than or equal to 2"),
    (evaluate, "run --episodes 0", "episodes Input should be greater than 0"),
    (evaluate, "run --policies", "policies Tuple should have at least 1 item"),
    (run, "--methods uwac --beta -1", "beta Input should be greater than 0"),
    (run, "--cpus 1 word", "Unrecognized options: word"),
    (run, "--totl-steps 40", "Unrecognized options: --totl-steps"),
    (run, "--legs 0", "legs Input should be greater than 0"),
    (uwac, "--dropout 0", "dropout Input should be greater than 0"),
    (speed, "--rounds 0", "rounds Input should be greater than 0"),
    (speed, "--seconds nan", "seconds Input should be greater than 0"),
    (variance, "--rates 0.1 1", "rates.1 Input should be less than 1"),
]
ALSO = {make_dataset: " --folder .", uwac: " --total-steps 1", weights: " --total-steps 1"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with data, runs, and what is wrong with copies of them."""
    folder = tmp_path_factory.mktemp("prepared")
    rng = np.random.default_rng(0)
    arrays = {"observations": rng.normal(size=(50, 3)), "actions": rng.uniform(-1, 1, (50, 2))}
    arrays |= {"rewards": np.ones(50), "terminals": np.zeros(50, bool)}
    with contextlib.chdir(folder):
        write_hdf5("points.hdf5", arrays)
        bear.main(short(bear, total_steps=1))
        bear.main(short(bear, total_steps=1, run_dir="arrays", dataset_path=None), dataset=arrays)
        for copy in ("unfinished", "damaged", "other", "altered"):
            shutil.copytree("run", copy)
        checkpoint = torch.load("run/checkpoint.pt", weights_only=True)
        torch.save(checkpoint | {"history": []}, "unfinished/checkpoint.pt")
        altered = {"path": "points.hdf5", "sha256": "another"}
        torch.save(checkpoint | {"data": altered}, "altered/checkpoint.pt")
        Path("training/walker2d-0").mkdir(parents=True)
        for file in ("evaluation.json", "speed.json", "variance.json"):
            Path("damaged", file).write_text("[{")
        Path("training/walker2d-0/checkpoint.pt").write_text("[{")
        Path("other/evaluation.json").write_text('{"candidates": {}}')  # an earlier version's
    return folder


def stats(folder):
    found = {path: path.lstat() for path in folder.rglob("*")}
    return {path: path.is_file() and (one.st_size, one.st_mtime_ns) for path, one in found.items()}


@pytest.fixture
def unchanged(prepared, monkeypatch):
    """It is the current folder and the home, and must stay as it is."""
    monkeypatch.chdir(prepared)
    monkeypatch.setenv("HOME", str(prepared))
    before = stats(prepared)
    yield
    assert stats(prepared) == before


def name(value):
    return value.__name__.split(".")[-1] if hasattr(value, "__name__") else value


@pytest.mark.parametrize("program, words, message", CASES, ids=name)
@pytest.mark.usefixtures("unchanged")
def test_an_error_is_one_line(program, words, message, refused, monkeypatch):
    found = importlib.util.find_spec
    no_film = lambda module: None if module == "moviepy" else found(module)
    monkeypatch.setattr(importlib.util, "find_spec", no_film)
    if message == "Point-v0: needs a step limit":
        monkeypatch.setattr(gym.registry["Point-v0"], "max_episode_steps", None)
    line = refused(words + ALSO.get(program, ""), program)
    assert line.startswith("error: ") and message in line


@pytest.mark.parametrize("program, words, message", BOXES, ids=name)
@pytest.mark.usefixtures("unchanged")
def test_an_argument_out_of_its_range_is_named(program, words, message, monkeypatch, capsys):
    assert command_line(program, words, monkeypatch) == 2
    said = capsys.readouterr().err.replace("│", "")
    assert message in " ".join(said.split())
