"""A run that is stopped, killed or runs out of disk goes on to the same bits; a checkpoint executes
nothing."""

import os
import signal
from pathlib import Path

import kill_and_resume
import pytest
import torch
from conftest import SHORT, Point, command_line, short, words
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import bear
import uwac

pytestmark = [
    pytest.mark.usefixtures("points"),
    pytest.mark.skipif(bear.DEVICE.type != "cpu", reason="a GPU's sums are not always the same"),
]
RUN = Path("run")


def undisturbed(script):
    script.main(short(script, run_dir="undisturbed/run"))
    Point.steps = 0
    return Path("undisturbed/run")


def assert_same(one, two):
    assert kill_and_resume.differences(*map(kill_and_resume.left, (one, two))) == []


def scalars(run):
    """TensorBoard's curves, but for times."""
    events = EventAccumulator(str(run)).Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        if tag != "updates_per_second":
            found[tag] = [(event.step, event.value) for event in events.Scalars(tag)]
    return found


def send(number):
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_and_it_goes_on(script, monkeypatch, capsys, number, code):
    """In the second evaluation; the log in TensorBoard is that of one run, too."""
    expected = undisturbed(script)
    Point.at_step = {8: send(number)}
    assert command_line(script, words(script, run_dir=RUN), monkeypatch) == code
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"stopped; --resume {RUN} goes on from the last checkpoint"
    )
    assert torch.load(RUN / "checkpoint.pt", weights_only=True)["step"] == 3
    assert command_line(script, f"--resume {RUN}", monkeypatch) == 0
    assert_same(expected, RUN)
    assert scalars(expected) == scalars(RUN)


def test_killed_half_through_a_file(script, monkeypatch):
    """And in an evaluation: kill_and_resume.py, small."""
    args = SHORT | {"checkpoint_every": 2}
    monkeypatch.setattr(kill_and_resume, "ARGS", args)
    folders = [Path(name, "run") for name in ("undisturbed", "killed")]
    assert kill_and_resume.go(script, folders[0]) == 0
    for (owner, method, _), count in zip(kill_and_resume.PLACES, (2, 2, 1, 3)):
        assert kill_and_resume.go(script, folders[1], (owner, method, count)) == -signal.SIGKILL
    assert kill_and_resume.go(script, folders[1]) == 0
    assert_same(*folders)


def test_a_longer_run_and_a_finished_one(script, capsys):
    """--total-steps raised: the run that was as long from the start. Finished: it says so."""
    expected = undisturbed(script)
    script.main(short(script, run_dir=str(RUN), total_steps=3))
    script.main(script.Args(resume=str(RUN), total_steps=6))
    assert_same(expected, RUN)
    before = (RUN / "checkpoint.pt").read_bytes()
    capsys.readouterr()
    result = script.main(script.Args(resume=str(RUN)))
    assert f"{RUN} is finished after 6 updates" in capsys.readouterr().out
    assert [row["step"] for row in result["history"]] == [3, 6]
    assert (RUN / "checkpoint.pt").read_bytes() == before


def test_what_shapes_the_training_stays(script, monkeypatch, capsys):
    """The rest may change, and counts."""
    script.main(short(script, run_dir=str(RUN), total_steps=3, seed=3))
    for change in ("--gamma 0.9", "--batch-size 9", "--seed 4", "--mmd-kernel laplacian"):
        assert command_line(script, f"--resume {RUN} --total-steps 6 {change}", monkeypatch) == 2
        (line,) = capsys.readouterr().err.splitlines()
        name = change.split()[0].strip("-").replace("-", "_")
        assert line.startswith(f"error: --resume {RUN}: {name} is ")
    Point.steps = 0
    script.main(script.Args(resume=str(RUN), total_steps=6, eval_episodes=3, log_every=1, seed=3))
    assert Point.steps == 15
    _, saved = script.load_checkpoint(RUN)
    assert (saved["step"], saved["args"]["eval_episodes"], saved["args"]["seed"]) == (6, 3, 3)


def test_a_run_of_the_other_script_is_refused():
    bear.main(short(bear, run_dir="b", total_steps=1))
    uwac.main(short(uwac, run_dir="u", total_steps=1))
    for script, run in ((bear, "u"), (uwac, "b")):
        for use in ({"resume": run, "total_steps": 2}, {"evaluate": run}):
            with pytest.raises(script.InputError, match=f"{run}/checkpoint.pt"):
                script.main(script.Args(**use))


def test_checkpoint_every(script, monkeypatch):
    """At another interval than the evaluations'; a run goes on from between them."""
    expected, steps = undisturbed(script), []
    replace = Path.replace

    def counted(self, target):
        replace(self, target)
        steps.append(torch.load(target, weights_only=True)["step"])

    monkeypatch.setattr(Path, "replace", counted)
    Point.at_step = {6: send(signal.SIGINT)}
    with pytest.raises(KeyboardInterrupt):
        script.main(short(script, run_dir=str(RUN), checkpoint_every=2))
    assert steps == [0, 2, 3, 4]
    script.main(script.Args(resume=str(RUN), checkpoint_every=5))
    assert steps[4:] == [5, 6]
    assert [row["step"] for row in script.load_checkpoint(RUN)[1]["history"]] == [3, 6]
    agents = [script.load_checkpoint(run)[0].state_dict() for run in (expected, RUN)]
    assert kill_and_resume.differences(*map(dict, agents)) == []


def full_disk():
    (RUN / "checkpoint.tmp").symlink_to("/dev/full")


def folder_in_the_way():  # root may write to a read-only folder
    (RUN / "checkpoint.tmp").mkdir()


def vanished():
    RUN.rename("gone")


@pytest.mark.parametrize(
    "accident, says",
    [
        (full_disk, "No space left on device"),
        (folder_in_the_way, "Is a directory: 'run/checkpoint.tmp'"),
        (vanished, "No such file or directory: 'run/result.json'"),
    ],
)
def test_what_cannot_be_written(script, monkeypatch, capsys, accident, says):
    """In the second evaluation: exit code 1, one line, and the first checkpoint is whole."""
    expected = undisturbed(script)
    Point.at_step = {8: accident}
    assert command_line(script, words(script, run_dir=RUN), monkeypatch) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and says in line
    if accident is vanished:
        Path("gone").rename(RUN)
    else:
        (RUN / "checkpoint.tmp").rename("aside")
    script.main(script.Args(resume=str(RUN)))
    assert_same(expected, RUN)


def test_a_malicious_checkpoint_runs_nothing(script, monkeypatch, capsys):
    """As the file whole, and inside of a real checkpoint."""

    class Code:
        def __reduce__(self):
            return os.mkdir, ("executed",)

    script.main(short(script, run_dir=str(RUN), total_steps=1))
    saved = torch.load(RUN / "checkpoint.pt", weights_only=True)
    for content in (Code(), saved | {"step": Code()}):
        torch.save(content, RUN / "checkpoint.pt")
        for flag in ("--resume", "--evaluate"):
            assert command_line(script, f"{flag} {RUN}", monkeypatch) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith("error: run/checkpoint.pt")
    assert not Path("executed").exists()
    torch.load(RUN / "checkpoint.pt", weights_only=False)  # while it does without that protection
    assert Path("executed").exists()


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "key", "shape", "list"])
def test_a_damaged_checkpoint(script, monkeypatch, capsys, damage):
    script.main(short(script, run_dir=str(RUN), total_steps=1))
    path = RUN / "checkpoint.pt"
    content, saved = path.read_bytes(), torch.load(path, weights_only=True)
    if damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "key":
        del saved["agent"]["vae.decoder.layers.0.bias"]
        torch.save(saved, path)
    elif damage == "shape":
        saved["agent"]["log_alpha"] = torch.zeros(3)
        torch.save(saved, path)
    elif damage == "list":
        torch.save([1, 2, 3], path)
    assert command_line(script, f"--resume {RUN} --total-steps 2", monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: run/checkpoint.pt")
