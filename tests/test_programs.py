"""What is wrong with the input of a program is said in one line."""

import shutil
from pathlib import Path

import diagnose
import ensembles
import evaluate
import gymnasium as gym
import make_dataset
import report
import run
import speed
import torch
import variance
from conftest import command_line, short
from lib.files import commit

import bear
import d4rl

DEMO = Path(d4rl.__file__).with_name("door-demo.hdf5")
CASES = [
    (diagnose, "", "name the folders of one run or more"),
    (diagnose, "arrays", "arrays: learned from arrays from Python, which is no file here"),
    (diagnose, "altered", "altered: points.hdf5 is not the data that it learned from"),
    (ensembles, "--resume run", "it is a run of bear"),
    (evaluate, "nothing", "nothing: not a run's folder"),
    (evaluate, "unfinished", "unfinished: was not evaluated yet"),
    (evaluate, "damaged", "damaged/evaluation.json: damaged, move it away"),
    (evaluate, "other", "other/evaluation.json: not of evaluate.py, move it away"),
    (evaluate, "run", "Point-v0: needs a step limit"),
    (make_dataset, "", "say what to make"),
    (make_dataset, "--policy hopper-medium walker2d-medium", "made for hopper and walker2d"),
    (
        make_dataset,
        "--policy nowhere.npz",
        "neither a run nor a policy; shipped: door-expert, halfche",
    ),
    (make_dataset, f"--env hopper --demos {DEMO}", "must be numbers of shape (5000, 11), not"),
    (make_dataset, "--env walker2d --train-steps 9", "checkpoint.pt: not a checkpoint"),
    (make_dataset, "--policy hopper-random --out points.hdf5", "exists: give --force"),
    (make_dataset, "--policy hopper-medium hopper-expert --steps 1", "a step for each policy"),
    (report, "nothing", "no results in nothing"),
    (report, "run --metrics MB", "--metrics MB: there are actor_loss, alpha, "),
    (run, "--cpus 1 word", "word: not an option"),
    (run, "--run_dir a", "--run-dir is given to each run"),
    (run, "--num-seeds 2", "--num-seeds trains seeds 0, 1, ... in one run"),
    (run, "--tasks Point-v0", "Point-v0: no data of it here"),
    (speed, "--threads 1 --folder=~/damaged", "damaged/speed.json: damaged, move it away"),
]
BOXES = [  # of the parser
    (ensembles, "--ensemble-size 1", "ensemble_size Input should be greater than or equal to 2"),
    (evaluate, "run --episodes 0", "episodes Input should be greater than 0"),
    (evaluate, "run --policies", "policies Tuple should have at least 1 item"),
    (run, "--methods uwac --beta -1", "beta Input should be greater than 0"),
    (run, "--totl-steps 40", "Unrecognized options: --totl-steps"),
    (run, "--legs 0", "legs Input should be greater than 0"),
    (variance, "--rates 0.1 1", "rates.1 Input should be less than 1"),
]


def test_bad_input(points, refused, monkeypatch, capsys):
    bear.main(short(bear, total_steps=1))
    bear.main(short(bear, total_steps=1, run_dir="arrays", dataset_path=None), dataset=points)
    for copy in ("unfinished", "damaged", "other", "altered"):
        shutil.copytree("run", copy)
    checkpoint = torch.load("run/checkpoint.pt", weights_only=True)
    torch.save(checkpoint | {"history": []}, "unfinished/checkpoint.pt")
    altered = {"path": "points.hdf5", "sha256": "another"}
    torch.save(checkpoint | {"data": altered}, "altered/checkpoint.pt")
    for file in ("damaged/evaluation.json", "damaged/speed.json", "checkpoint.pt"):
        Path(file).write_text("[{")
    Path("other/evaluation.json").write_text('{"candidates": {}}')  # an earlier version's
    Path("training/walker2d-0").mkdir(parents=True)
    Path("checkpoint.pt").rename("training/walker2d-0/checkpoint.pt")
    monkeypatch.setenv("HOME", str(Path.cwd()))
    monkeypatch.setattr(gym.registry["Point-v0"], "max_episode_steps", None)
    before = {path: path.lstat().st_size for path in Path().rglob("*")}
    for program, words, message in CASES:
        words += " --folder ." if program is make_dataset else ""
        line = refused(words, program)
        assert line.startswith("error: ") and message in line
        assert {path: path.lstat().st_size for path in Path().rglob("*")} == before
    for program, words, message in BOXES:
        assert command_line(program, words, monkeypatch) == 2
        said = capsys.readouterr().err.replace("│", "")
        assert message in " ".join(said.split())
        assert {path: path.lstat().st_size for path in Path().rglob("*")} == before


def test_commit_of_a_folder_whose_name_a_shell_would_run(tmp_path):
    folder = tmp_path / "o'brien; touch RAN; #"
    folder.mkdir()
    assert commit(folder) == "" and not Path("RAN").exists()
