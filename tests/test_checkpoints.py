"""A run stopped, killed or out of disk goes on to the same bits; a checkpoint executes nothing."""

import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import Code, Point, command_line, resumed, scalars, short, words, write_hdf5
from filelock import FileLock

import uwac

pytestmark = pytest.mark.usefixtures("points")
RUN = Path("run")
CHECKPOINT = RUN / "checkpoint.pt"


def left(run):
    """What a run leaves, but for times, as text, with hashes of tensors."""
    result = json.loads(Path(run, "result.json").read_text())
    checkpoint = torch.load(Path(run, "checkpoint.pt"), weights_only=True)
    for part in (result, checkpoint):
        for row in part["history"]:
            del row["seconds"]
    return json.dumps([result, checkpoint], default=lambda tensor: hash(tensor.numpy().tobytes()))


@pytest.mark.parametrize("happens, said", [
    (lambda: os.kill(os.getpid(), signal.SIGINT),
     r"stopped: python .+py --resume run goes on from update 3$"),
    (lambda: np.nan, "error: diverged at update 6: {'vae_loss': "),
])  # fmt: skip
def test_a_run_that_something_ends_goes_on(script, happens, said, monkeypatch, capsys):
    """In the second evaluation, of one seed of two: one line says what, what came before stays."""
    Point.at_step = {26: happens}
    assert command_line(script, words(script, num_seeds=2), monkeypatch) == 1
    assert re.match(said, capsys.readouterr().err.splitlines()[-1])
    assert [row["step"] for row in script.load_checkpoint(RUN)[1]["history"]] == [3]
    assert len(json.loads((RUN / "result.json").read_text())["history"]) == 1
    assert command_line(script, "--resume run", monkeypatch) == 0
    assert [row["step"] for row in script.load_checkpoint(RUN)[1]["history"]] == [3, 6]


def test_a_full_disk_leaves_the_earlier_files(monkeypatch):
    """From the second evaluation on, a file takes half of a checkpoint."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill():
        half = CHECKPOINT.stat().st_size // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (half, limits[1]))

    Point.at_step = {13: fill}
    try:
        with pytest.raises((OSError, RuntimeError)):
            uwac.main(short(uwac))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [row["step"] for row in uwac.main(resumed(uwac))["history"]] == [3, 6]


def test_what_a_programmer_broke_is_a_traceback(script, monkeypatch):
    """One's own update, with an error of the kind that in the set-up would be the user's."""
    broken = Mock(side_effect=ValueError("mine"), __module__=__name__)
    monkeypatch.setattr(sys, "argv", ["uwac.py", *words(script).split()])
    with pytest.raises(ValueError, match="^mine$"):
        script.command_line(update=broken)


def test_files_of_all_that_an_agent_inherits_count(tmp_path, monkeypatch):
    Path("middle.py").write_text("import uwac\nclass Agent(uwac.Agent):\n    pass\n")
    Path("last.py").write_text("import middle\nclass Agent(middle.Agent):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    agent_type = importlib.import_module("last").Agent
    assert set(uwac.checksums(agent_type, uwac.update)) == {"last.py", "middle.py", "uwac.py"}


@pytest.mark.parametrize("changed", ["agent", "update"])
def test_another_script_is_said_and_recorded(changed, tmp_path, monkeypatch, capsys):
    """Of the agent's or of the update's file, edited between two parts of a run."""
    mine = Path("mine.py")
    code = "import uwac\nclass Agent(uwac.Agent):\n    pass\n"
    code += "def update(*given):\n    return uwac.update(*given)\n"
    mine.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    mine = importlib.import_module("mine")
    settings = {"agent_type": mine.Agent} if changed == "agent" else {"update": mine.update}
    first = uwac.main(short(uwac, total_steps=1), **settings)["scripts"]
    sums = [{path.name: hashlib.sha256(path.read_bytes()).hexdigest()
             for path in (Path("mine.py"), Path(uwac.__file__))}]  # fmt: skip
    assert first == sums
    assert uwac.main(resumed(uwac, total_steps=2), **settings)["scripts"] == sums
    assert "the script has changed" not in capsys.readouterr().out
    Path("mine.py").write_text(code + "# edited\n")
    second = uwac.main(resumed(uwac, total_steps=3), **settings)["scripts"]
    assert "warning: the script has changed" in capsys.readouterr().out
    assert second[0] == sums[0] and len(second) == 2
    assert second[1]["uwac.py"] == sums[0]["uwac.py"] and second[1]["mine.py"] != sums[0]["mine.py"]
    saved = torch.load(CHECKPOINT, weights_only=True)
    del saved["scripts"]  # of an earlier version
    torch.save(saved, CHECKPOINT)
    assert uwac.main(resumed(uwac, total_steps=4), **settings)["scripts"] == second[1:]
    assert "the script has changed" not in capsys.readouterr().out


def go(script, place=None):
    """Start the run, or go on with it, killed at the count-th call of (owner, method, count)."""
    owner, method, count = place or (Path, "replace", None)
    whole, calls = getattr(owner, method), itertools.count(1)

    def counted(*args, **settings):
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*args, **settings)

    def child():
        sys.stdout = sys.stderr = open(os.devnull, "w")
        setattr(owner, method, counted)
        script.main(resumed(script) if CHECKPOINT.exists() else short(script))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    return process.exitcode


def test_a_run_killed_again_and_again_goes_on(script):
    """In an update, an evaluation, before checkpoint.pt has its name, between the two files."""
    script.main(short(script, run_dir="undisturbed"))
    places = [(script.Agent, "minimize", 14), (Point, "step", 3), (Path, "replace", 1)]
    for place in places:
        assert go(script, place) == -signal.SIGKILL
        assert [row["step"] for row in script.load_checkpoint(RUN)[1]["history"]] == [3]
    assert go(script, (Path, "replace", 4)) == -signal.SIGKILL
    assert len(json.loads((RUN / "result.json").read_text())["history"]) == 1
    assert go(script) == 0
    assert left(RUN) == left("undisturbed")
    assert scalars(RUN) == scalars("undisturbed")


def test_what_may_change():
    """More updates, and its time goes on. As many: nothing is done."""
    uwac.main(short(uwac, total_steps=3))
    saved = torch.load(CHECKPOINT, weights_only=True)
    saved["history"][0]["seconds"] = 1000.0
    torch.save(saved, CHECKPOINT)
    longer = uwac.main(resumed(uwac, total_steps=6))["history"]
    assert 1000 < longer[1]["seconds"] < 1100
    assert uwac.main(resumed(uwac))["history"] == longer
    Path("points.hdf5").rename("moved.hdf5")
    Point.played.clear()
    changes = {"total_steps": 7, "eval_episodes": 3, "dataset_path": "moved.hdf5"}
    result = uwac.main(resumed(uwac, **changes))
    moved = str(Path("moved.hdf5").absolute())
    assert (len(Point.played), result["data"]["path"]) == (30, moved)
    assert (result["args"]["total_steps"], result["args"]["dataset_path"]) == (7, moved)


def test_a_folder_at_home(points, monkeypatch):
    """As in --run-dir=~/run, which a shell leaves to the program."""
    monkeypatch.setenv("HOME", str(Path("home").absolute()))
    uwac.main(short(uwac, run_dir="~/run", total_steps=3))
    assert sorted(path.name for path in Path().iterdir()) == ["home", "points.hdf5"]
    assert Path("home/run/result.json").exists()


def test_what_may_not_change(points, refused):
    uwac.main(short(uwac, total_steps=3, seed=3, variance="analytic"))
    before = {path: path.read_bytes() for path in RUN.iterdir()}
    write_hdf5("other.hdf5", points | {"rewards": points["rewards"] + np.eye(50)[0]})
    wrong = {"--gamma 0.9": "gamma was 0.99 and cannot change", "--seed 0": "seed was 3 and "}
    wrong |= {"--variance mc": "variance was ", "--mmd-kernel laplacian": "mmd_kernel was gaussian"}
    wrong |= {"--dataset-path other.hdf5": "data was ", "--env-id door-demo": "env_id was Point-v0"}
    wrong |= {"--run-dir other": "--run-dir other: a resumed run stays in run"}
    for option, problem in wrong.items():
        assert problem in refused(f"--resume run --total-steps 6 {option}")
    with FileLock(RUN / "in-use.lock"):
        assert "run/in-use.lock" in refused("--resume run --total-steps 6")
    assert {path: path.read_bytes() for path in RUN.iterdir()} == before
    torch.save(torch.load(CHECKPOINT, weights_only=True) | {"device": "cuda"}, CHECKPOINT)
    assert "device was cuda and cannot change" in refused("--resume run --total-steps 6")


def test_a_damaged_or_malicious_checkpoint(refused):
    """Missing, cut, of other arguments and sizes, with code as the whole file and inside."""
    uwac.main(short(uwac, total_steps=1))
    content = CHECKPOINT.read_bytes()
    saved = torch.load(CHECKPOINT, weights_only=True)
    damaged = [None, b"", content[: len(content) // 2], [1, 2, 3]]
    less = {name: value for name, value in saved["args"].items() if name != "cuda_graph"}
    damaged += [saved | {"args": args} for args in (less, saved["args"] | {"q_noise": False})]
    damaged += [Code(), saved | {"history": Code()}, saved | {"dims": (4, 2)}]
    for what in damaged:
        CHECKPOINT.unlink(missing_ok=True)
        if isinstance(what, bytes):
            CHECKPOINT.write_bytes(what)
        elif what is not None:
            torch.save(what, CHECKPOINT)
        error = refused("--resume run --total-steps 2")
        assert error.startswith("error: run/checkpoint.pt: no run of uwac to load ("), what
    assert "size mismatch for actor.layers.0.weight" in error  # the whole reason
    torch.save(saved | {"algorithm": "bear"}, CHECKPOINT)
    assert "(it is a run of bear: use bear.py)" in refused("--resume run --total-steps 2")
    assert not Path("executed").exists()
