"""A run stopped, killed or out of disk goes on to the same bits; a checkpoint executes nothing."""

import itertools
import json
import multiprocessing
import os
import resource
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Code, Point, command_line, resumed, scalars, short, words, write_hdf5
from filelock import FileLock, Timeout
from gymnasium.vector import SyncVectorEnv

import uwac

pytestmark = pytest.mark.usefixtures("points")
RUN = Path("run")
CHECKPOINT = RUN / "checkpoint.pt"
STOPPED = "stopped: --resume RUN goes on from its last evaluation"


def left(run):
    """What a run leaves, but for times, as text, with hashes of tensors."""
    result = json.loads(Path(run, "result.json").read_text())
    checkpoint = torch.load(Path(run, "checkpoint.pt"), weights_only=True)
    for part in (result, checkpoint):
        for row in part["history"]:
            del row["seconds"]
    return json.dumps([result, checkpoint], default=lambda tensor: hash(tensor.numpy().tobytes()))


def fill_the_disk():
    """A file takes half of a checkpoint from now on."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (CHECKPOINT.stat().st_size // 2, hard))


@pytest.mark.parametrize("happens, said", [
    (lambda: os.kill(os.getpid(), signal.SIGINT), STOPPED),
    (fill_the_disk, "error: [Errno 27] File too large"),
    (lambda: np.nan, "error: diverged at update 6: a return is not finite"),
])  # fmt: skip
def test_a_run_that_something_ends_goes_on(script, happens, said, monkeypatch, capsys):
    """In the second evaluation, of one seed of two. What came before stays, all is closed."""
    closed = []
    monkeypatch.setattr(Point, "close", lambda self: closed.append(self))
    Point.at_step = {26: happens}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        assert command_line(script, words(script, num_seeds=2), monkeypatch) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    shown = capsys.readouterr()
    assert "results in run: --resume run goes on from its last evaluation\n" in shown.out
    assert shown.err.splitlines()[-1] == said
    assert len(closed) == 2
    assert [row["step"] for row in script.load_checkpoint(RUN)[1]["history"]] == [3]
    assert len(json.loads((RUN / "result.json").read_text())["history"]) == 1
    assert command_line(script, "--resume run", monkeypatch) == 0
    assert [row["step"] for row in script.load_checkpoint(RUN)[1]["history"]] == [3, 6]


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
    places = [(script.Agent, "minimize", 14), (SyncVectorEnv, "step", 3), (Path, "replace", 1)]
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
    assert (len(Point.played), result["data"]["path"]) == (30, "moved.hdf5")
    assert (result["args"]["total_steps"], result["args"]["dataset_path"]) == (7, "moved.hdf5")


def test_what_may_not_change(points, refused):
    uwac.main(short(uwac, total_steps=3, seed=3, variance="analytic"))
    before = {path: path.read_bytes() for path in RUN.iterdir()}
    write_hdf5("other.hdf5", points | {"rewards": points["rewards"] + np.eye(50)[0]})
    wrong = {"--gamma 0.9": "gamma was 0.99 and cannot change", "--seed 0": "seed was 3 and "}
    wrong |= {"--variance mc": "variance was ", "--mmd-kernel laplacian": "mmd_kernel was gaussian"}
    wrong |= {"--dataset-path other.hdf5": "data was ", "--total-steps 2": "run has 3 already"}
    wrong |= {"--run-dir other": "--run-dir other: a resumed run stays in run"}
    for option, problem in wrong.items():
        assert problem in refused(f"--resume run --total-steps 6 {option}")
    with FileLock(RUN / "in-use.lock"):
        assert "run/in-use.lock" in refused("--resume run --total-steps 6")
    assert {path: path.read_bytes() for path in RUN.iterdir()} == before
    torch.save(torch.load(CHECKPOINT, weights_only=True) | {"device": "cuda"}, CHECKPOINT)
    assert "device was cuda and cannot change" in refused("--resume run --total-steps 6")


def test_a_run_is_locked_before_its_checkpoint_is_read(script, monkeypatch):
    """Else another process could save a later one in between."""
    script.main(short(script, total_steps=1))
    args = resumed(script, total_steps=2)
    monkeypatch.setattr(script, "load_checkpoint", None)
    with FileLock(RUN / "in-use.lock"), pytest.raises(Timeout):
        script.main(args)


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
    assert "(it is a run of bear)" in refused("--resume run --total-steps 2")
    assert not Path("executed").exists()
