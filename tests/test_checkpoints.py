"""A run stopped, killed or out of disk goes on to the same bits; a checkpoint executes nothing."""

import json
import os
import signal
from pathlib import Path

import h5py
import kill_and_resume
import pytest
import torch
from conftest import Point, command_line, resumed, scalars, settings, short, words
from filelock import FileLock

import bear
import uwac

pytestmark = pytest.mark.usefixtures("points")
RUN = Path("run")
CHECKPOINT = RUN / "checkpoint.pt"


def undisturbed(script):
    """What such a run leaves."""
    script.main(short(script, run_dir="undisturbed"))
    Point.steps = 0
    return kill_and_resume.left("undisturbed")


def refused(monkeypatch, capsys, line):
    """The one line with which uwac.py refuses a command line."""
    capsys.readouterr()
    assert command_line(uwac, line, monkeypatch) == 1
    (error,) = capsys.readouterr().err.splitlines()
    return error


def test_a_run_stopped_by_ctrl_c_goes_on(script, monkeypatch, capsys):
    """In the second evaluation; the log in TensorBoard is that of one run, too."""
    expected = undisturbed(script)
    Point.at_step = {13: lambda: os.kill(os.getpid(), signal.SIGINT)}
    assert command_line(script, words(script), monkeypatch) == 1
    shown = capsys.readouterr()
    assert "results in run: --resume run goes on from its last evaluation\n" in shown.out
    assert shown.err.splitlines()[-1] == "stopped"
    assert [row["step"] for row in script.load_checkpoint(RUN)[1]["history"]] == [3]
    assert command_line(script, "--resume run", monkeypatch) == 0
    assert kill_and_resume.left(RUN) == expected
    assert scalars(RUN) == scalars("undisturbed")


def test_killed_half_through_a_file(script):
    """And in an update and an evaluation: kill_and_resume.py, small."""
    expected = undisturbed(script)
    args = settings(script)
    for (owner, method, _), count in zip(kill_and_resume.places(script), (2, 3, 2, 1)):
        assert kill_and_resume.go(script, args, (owner, method, count)) == -signal.SIGKILL
    assert kill_and_resume.go(script, args) == 0
    assert kill_and_resume.left(RUN) == expected


def test_a_longer_run_and_a_finished_one(monkeypatch):
    """--total-steps raised: the run that was as long from the start, and its time goes on. The
    same: nothing is done. Lowered: refused."""
    expected = undisturbed(uwac)
    uwac.main(short(uwac, total_steps=3))
    saved = torch.load(CHECKPOINT, weights_only=True)
    saved["history"][0]["seconds"] = 1000.0
    torch.save(saved, CHECKPOINT)
    longer = uwac.main(resumed(uwac, total_steps=6))["history"]
    assert kill_and_resume.left(RUN) == expected
    assert 1000 < longer[1]["seconds"] < 1100
    before = CHECKPOINT.read_bytes()
    assert uwac.main(resumed(uwac))["history"] == longer
    with pytest.raises(ValueError, match="--total-steps 5: run has 6 already"):
        uwac.main(resumed(uwac, total_steps=5))
    assert CHECKPOINT.read_bytes() == before


def test_what_shapes_the_training_stays(monkeypatch, capsys):
    """Whatever the value, also a default; the rest may change, and counts."""
    uwac.main(short(uwac, total_steps=3, seed=3, variance="analytic"))
    for flag in ("--gamma 0.9", "--seed 0", "--variance mc", "--mmd-kernel laplacian"):
        error = refused(monkeypatch, capsys, f"--resume run --total-steps 6 {flag}")
        name = flag.split()[0].removeprefix("--").replace("-", "_")
        assert error.startswith(f"error: --resume run: {name} is ")
    Point.steps = 0
    args = uwac.main(resumed(uwac, total_steps=6, eval_episodes=3))["args"]
    assert (Point.steps, args["eval_episodes"], args["seed"]) == (30, 3, 3)


def test_data_may_move_but_not_change():
    """A file that stands elsewhere is taken from there; another one, or a GPU's run, is refused."""
    uwac.main(short(uwac, total_steps=3))
    Path("moved.hdf5").write_bytes(Path("points.hdf5").read_bytes())
    with h5py.File("points.hdf5", "a") as file:
        file["rewards"][0] += 1
    with pytest.raises(ValueError, match="--resume run: data is .* and stays so"):
        uwac.main(resumed(uwac, total_steps=6))
    args = resumed(uwac, total_steps=6, dataset_path="moved.hdf5")
    assert uwac.main(args)["data"]["path"] == "moved.hdf5"
    torch.save(torch.load(CHECKPOINT, weights_only=True) | {"device": "cuda"}, CHECKPOINT)
    with pytest.raises(ValueError, match="--resume run: device is cuda and stays so"):
        uwac.main(args)


def test_two_processes_do_not_train_one_run(monkeypatch, capsys):
    uwac.main(short(uwac, total_steps=3))
    before = {path: path.read_bytes() for path in RUN.iterdir()}
    with FileLock(RUN / "in-use.lock"):
        error = refused(monkeypatch, capsys, "--resume run --total-steps 6")
    assert error.startswith("error: ") and "run/in-use.lock" in error
    assert {path: path.read_bytes() for path in RUN.iterdir()} == before


@pytest.mark.parametrize("name", ["result.tmp", "checkpoint.tmp"])
def test_a_full_disk(name, monkeypatch, capsys):
    """In the second evaluation: exit code 1, one message, and the first checkpoint is whole."""
    expected = undisturbed(uwac)
    Point.at_step = {13: lambda: (RUN / name).symlink_to("/dev/full")}
    assert command_line(uwac, words(uwac), monkeypatch) == 1
    error = capsys.readouterr().err
    assert error.endswith("error: [Errno 28] No space left on device\n")
    assert len(json.loads((RUN / "result.json").read_text())["history"]) == 1 + (name[0] == "c")
    (RUN / name).unlink()
    uwac.main(resumed(uwac))
    assert kill_and_resume.left(RUN) == expected


class Code:
    """What a pickle would execute."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_a_damaged_or_malicious_checkpoint(monkeypatch, capsys):
    """Missing, cut, of other sizes, with code as the whole file and inside."""
    uwac.main(short(uwac, total_steps=1))
    content = CHECKPOINT.read_bytes()
    saved = torch.load(CHECKPOINT, weights_only=True)
    damaged = [None, b"", content[: len(content) // 2], [1, 2, 3]]
    damaged += [saved | {"dims": (4, 2)}, Code(), saved | {"history": Code()}]
    for what in damaged:
        CHECKPOINT.unlink()
        if isinstance(what, bytes):
            CHECKPOINT.write_bytes(what)
        elif what is not None:
            torch.save(what, CHECKPOINT)
        error = refused(monkeypatch, capsys, "--resume run --total-steps 2")
        assert error.startswith("error: run/checkpoint.pt: no checkpoint of this script"), what
        if isinstance(what, dict) and what["dims"] == (4, 2):
            assert "size mismatch for actor.layers.0.weight" in error  # the whole reason
        CHECKPOINT.touch()
    assert not Path("executed").exists()
    torch.save(Code(), CHECKPOINT)
    torch.load(CHECKPOINT, weights_only=False)  # while it does without that protection
    assert Path("executed").exists()


@pytest.mark.parametrize("of, other", [(bear, uwac), (uwac, bear)])
def test_a_run_of_the_other_script(of, other, monkeypatch, capsys):
    of.main(short(of, total_steps=1))
    capsys.readouterr()
    assert command_line(other, "--resume run", monkeypatch) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: run/checkpoint.pt: no checkpoint of this script")
