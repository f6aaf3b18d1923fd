"""A run that is stopped, killed or runs out of disk goes on to the same bits; a checkpoint executes
nothing."""

import os
import signal
from pathlib import Path

import kill_and_resume
import pytest
import torch
from conftest import Point, command_line, scalars, settings, short, words

import bear
import uwac

pytestmark = [
    pytest.mark.usefixtures("points"),
    pytest.mark.skipif(bear.DEVICE.type != "cpu", reason="a GPU's sums are not always the same"),
]
RUN = Path("run")
UNDISTURBED = Path("undisturbed/run")  # of the same name, which curves.png shows
CHECKPOINT = RUN / "checkpoint.pt"


def undisturbed(script):
    """What such a run leaves."""
    script.main(short(script, run_dir=str(UNDISTURBED)))
    Point.steps = 0
    return kill_and_resume.left(UNDISTURBED)


def refused(monkeypatch, capsys, line):
    """The one line with which uwac.py refuses a command line."""
    capsys.readouterr()
    assert command_line(uwac, line, monkeypatch) == 2
    (error,) = capsys.readouterr().err.splitlines()
    return error


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_and_it_goes_on(script, monkeypatch, capsys, number, code):
    """In the second evaluation; the log in TensorBoard is that of one run, too."""
    expected = undisturbed(script)
    Point.at_step = {8: lambda: os.kill(os.getpid(), number)}
    assert command_line(script, words(script), monkeypatch) == code
    assert capsys.readouterr().err.splitlines()[-1] == (
        "stopped; --resume run goes on from the last checkpoint"
    )
    assert torch.load(CHECKPOINT, weights_only=True)["step"] == 3
    assert command_line(script, "--resume run", monkeypatch) == 0
    assert kill_and_resume.left(RUN) == expected
    curves, of_undisturbed = scalars(RUN), scalars(UNDISTURBED)
    del curves["updates_per_second"], of_undisturbed["updates_per_second"]
    assert curves == of_undisturbed


def test_killed_half_through_a_file(script):
    """And in an update and an evaluation: kill_and_resume.py, small."""
    expected = undisturbed(script)
    args = settings(script, checkpoint_every=2)
    for (owner, method, _), count in zip(kill_and_resume.places(script), (2, 3, 2, 2, 1)):
        assert kill_and_resume.go(script, args, (owner, method, count)) == -signal.SIGKILL
    assert kill_and_resume.go(script, args) == 0
    found = kill_and_resume.left(RUN)
    assert found.replace('"checkpoint_every": 2', '"checkpoint_every": null') == expected


def test_a_longer_run_and_a_finished_one(capsys):
    """--total-steps raised: the run that was as long from the start. Finished: it says so."""
    expected = undisturbed(uwac)
    uwac.main(short(uwac, total_steps=3))
    uwac.main(uwac.Args(resume="run", total_steps=6))
    assert kill_and_resume.left(RUN) == expected
    before = CHECKPOINT.read_bytes()
    capsys.readouterr()
    result = uwac.main(uwac.Args(resume="run"))
    assert "run is finished after 6 updates" in capsys.readouterr().out
    assert [row["step"] for row in result["history"]] == [3, 6]
    assert CHECKPOINT.read_bytes() == before


def test_what_shapes_the_training_stays(monkeypatch, capsys):
    """The rest may change, and counts."""
    uwac.main(short(uwac, total_steps=3, seed=3))
    for name, value in (("gamma", 0.9), ("seed", 4), ("mmd_kernel", "laplacian")):
        flag = f"--{name.replace('_', '-')} {value}"
        error = refused(monkeypatch, capsys, f"--resume run --total-steps 6 {flag}")
        assert error.startswith(f"error: --resume run: {name} is ")
    Point.steps = 0
    uwac.main(uwac.Args(resume="run", total_steps=6, eval_episodes=3, seed=3))
    assert Point.steps == 15
    _, saved = uwac.load_checkpoint(RUN)
    assert (saved["step"], saved["args"]["eval_episodes"], saved["args"]["seed"]) == (6, 3, 3)


def test_checkpoints_between_evaluations(monkeypatch):
    steps = []
    replace = Path.replace

    def counted(self, target):
        replace(self, target)
        steps.append(torch.load(target, weights_only=True)["step"])

    monkeypatch.setattr(Path, "replace", counted)
    uwac.main(short(uwac, checkpoint_every=2))
    assert steps == [0, 2, 3, 4, 6]


def test_a_full_disk(monkeypatch, capsys):
    """In the second evaluation: exit code 1, one line, and the first checkpoint is whole."""
    expected = undisturbed(uwac)
    full = RUN / "checkpoint.tmp"
    Point.at_step = {8: lambda: full.symlink_to("/dev/full")}
    assert command_line(uwac, words(uwac), monkeypatch) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "No space left on device" in line
    full.unlink()
    uwac.main(uwac.Args(resume="run"))
    assert kill_and_resume.left(RUN) == expected


class Code:
    """What a pickle would execute."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_a_damaged_or_malicious_checkpoint(monkeypatch, capsys):
    """Missing, cut, bear.py's, of other sizes, with code as the whole file and inside."""
    uwac.main(short(uwac, total_steps=1))
    content = CHECKPOINT.read_bytes()
    saved = torch.load(CHECKPOINT, weights_only=True)
    bears = saved | {"args": vars(short(bear))}
    damaged = [None, b"", content[: len(content) // 2], [1, 2, 3], bears]
    damaged += [saved | {"dims": (4, 2)}, Code(), saved | {"step": Code()}]
    for what in damaged:
        CHECKPOINT.unlink()
        if isinstance(what, bytes):
            CHECKPOINT.write_bytes(what)
        elif what is not None:
            torch.save(what, CHECKPOINT)
        for line in ("--resume run --total-steps 2", "--evaluate run"):
            error = refused(monkeypatch, capsys, line)
            assert error.startswith("error: run/checkpoint.pt"), what
        CHECKPOINT.touch()
    assert not Path("executed").exists()
    torch.save(Code(), CHECKPOINT)
    torch.load(CHECKPOINT, weights_only=False)  # while it does without that protection
    assert Path("executed").exists()
