"""A run that is stopped, killed or runs out of disk goes on to the same bits; what cannot be read executes nothing."""

import json
import os
import random
import signal
import sys
from pathlib import Path

import kill_and_resume
import pytest
import torch
from conftest import command_line
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import bear
import uwac

WORDS = "--env-id door-demo --total-steps 6 --eval-every 3 --eval-episodes 1 --eval-candidates 3 --batch-size 8 "
WORDS += "--log-every 2 --warmup-steps 2"
EXTRA = {bear: "", uwac: " --passes 2"}


@pytest.fixture(autouse=True)
def cpu_in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def start(script, words=""):
    """A run in this process, and its folder."""
    before = set(Path("runs").glob("*"))
    try:
        script.main(script.parse_args((WORDS + EXTRA[script] + words).split(), {}))
        code = 0
    except SystemExit as end:
        code = end.code
    (run,) = set(Path("runs").glob("*")) - before
    return code, run


def go_on(script, run, words=""):
    return script.main(script.parse_args(f"--resume {run} {words}".split(), {}))


def left(run):
    result = json.loads((run / "result.json").read_text())
    checkpoint, policy = (torch.load(run / name, weights_only=True) for name in ("checkpoint.pt", "policy.pt"))
    del result["ms_per_update"], checkpoint["progress"][-1]
    files = [(run / name).read_bytes() for name in ("metrics.csv", "curves.png", "args.json")]
    return {"files": files, "result": result, "checkpoint": checkpoint, "policy": policy}


def scalars(run):
    events = EventAccumulator(str(run)).Reload()
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert len(found) >= 8
    return found


def before_update(script, monkeypatch, number, action):
    """Have an action done before the update of this number."""
    update, calls = script.Agent.update, []

    def wrapped(agent):
        calls.append(1)
        if len(calls) == number:
            action(agent)
        update(agent)

    monkeypatch.setattr(script.Agent, "update", wrapped)


@pytest.mark.parametrize("number, code, update", [(signal.SIGTERM, 143, 5), (signal.SIGINT, 130, 6)])
def test_a_signal_saves_and_ends_and_the_run_goes_on(script, monkeypatch, capsys, number, code, update):
    """SIGTERM between two entries of the log and SIGINT at the last update; TensorBoard shows one run, too."""
    _, undisturbed = start(script)
    with monkeypatch.context() as patch:
        before_update(script, patch, update, lambda agent: os.kill(os.getpid(), number))
        assert start(script) == (code, max(Path("runs").iterdir()))
    run = max(Path("runs").iterdir())
    assert f"after {update} updates; --resume {run}" in capsys.readouterr().out.splitlines()[-1]
    assert torch.load(run / "checkpoint.pt", weights_only=True)["progress"][0] == update
    assert not (run / "result.json").exists()
    go_on(script, run)
    assert kill_and_resume.differences(left(undisturbed), left(run)) == []
    assert scalars(undisturbed) == scalars(run)


def test_a_second_signal_ends_at_once(script, monkeypatch):
    def twice(agent):
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    before_update(script, monkeypatch, 2, twice)
    assert start(script)[0] == 143


def test_a_longer_run_and_a_finished_one(script):
    """--total-steps raised gives the run that was as long from the start; a finished run, resumed, stays as it is."""
    (_, long), (_, short) = start(script), start(script, " --total-steps 3")
    go_on(script, short, "--total-steps 6")
    assert kill_and_resume.differences(left(long), left(short)) == []
    go_on(script, short)
    assert kill_and_resume.differences(left(long), left(short)) == []


def test_other_arguments_are_listed(script, monkeypatch, capsys):
    """Also where the new value is the default of an argument that had another one, and total_steps lowered."""
    _, run = start(script, " --seed 3 --total-steps 3")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    words = f"--resume {run} --seed 0 --gamma 0.9 --total-steps 2"
    assert command_line(script, words, monkeypatch) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ") and str(run) in line
    for change in ("seed 3 -> 0", "gamma 0.99 -> 0.9", "total_steps 3 -> 2"):
        assert change in line
    assert "batch_size" not in line
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_run_of_the_other_script_is_refused():
    (_, ours), (_, theirs) = start(bear, " --total-steps 1"), start(uwac, " --total-steps 1")
    with pytest.raises(bear.InputError, match="beta 1.6 -> None"):
        go_on(bear, theirs)
    with pytest.raises(uwac.InputError, match="beta None -> 1.6"):
        go_on(uwac, ours)


def test_a_run_without_a_checkpoint_begins_again(script):
    _, run = start(script)
    expected = left(run)
    for path in run.iterdir():
        if path.name != "args.json":
            path.unlink()
    go_on(script, run)
    assert kill_and_resume.differences(expected, left(run)) == []


def test_checkpoint_every(script, monkeypatch):
    """Another interval than the evaluations' and the end."""
    write, steps = script.write, []

    def counted(path, content):
        if path.name == "checkpoint.pt":
            steps.append(content["progress"][0])
        write(path, content)

    monkeypatch.setattr(script, "write", counted)
    start(script)
    assert steps == [3, 6]
    steps.clear()
    start(script, " --checkpoint-every 4")
    assert steps == [4, 6]


def full_disk(agent):
    (run,) = Path("runs").iterdir()
    (run / "checkpoint.pt.tmp").symlink_to("/dev/full")


def vanished_folder(agent):
    (run,) = Path("runs").iterdir()
    run.rename("gone")


def no_folder_any_more(agent):
    """A folder that cannot be written to: root may write to read-only ones, so a file of the name stands in the way."""
    (run,) = Path("runs").iterdir()
    (run / "policy.pt.tmp").mkdir()


@pytest.mark.parametrize(
    "action, says",
    [
        (full_disk, "checkpoint.pt: No space left on device"),
        (vanished_folder, "No such file"),
        (no_folder_any_more, "policy.pt: Is a directory"),
    ],
)
def test_what_cannot_be_written(script, monkeypatch, capsys, action, says):
    """Between two evaluations: exit code 1, one line that names the file, and the last checkpoint whole."""
    with monkeypatch.context() as patch:
        main = script.main
        before_update(script, patch, 4, action)
        patch.setattr(sys, "argv", [script.__file__, *(WORDS + EXTRA[script]).split()])
        with pytest.raises(OSError, match=says) as error:
            main(script.parse_args(sys.argv[1:], {}))
        assert "runs/" in str(error.value) and "\n" not in str(error.value)
    (run,) = [*Path("runs").iterdir(), *Path(".").glob("gone")]
    assert torch.load(run / "checkpoint.pt", weights_only=True)["progress"][0] == 3
    for path in run.glob("*.tmp"):
        path.rmdir() if path.is_dir() else path.unlink()
    go_on(script, run)
    (_, undisturbed) = start(script)
    assert kill_and_resume.differences(left(undisturbed), left(run)) == []
    assert scalars(undisturbed) == scalars(run)  # what was logged after the checkpoint is not there twice


def test_exit_code_where_nothing_can_be_written(script, monkeypatch, capsys):
    Path("runs").write_text("a file where the folder should be")
    assert command_line(script, WORDS, monkeypatch) == 1
    assert "runs" in capsys.readouterr().err.splitlines()[-1]


def test_a_malicious_checkpoint_runs_nothing(script, tmp_path, monkeypatch, capsys):
    """An unpickled Code object would make a folder: as the file whole, and inside of a real checkpoint."""

    class Code:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    _, run = start(script, " --total-steps 3")
    checkpoint = torch.load(run / "checkpoint.pt", weights_only=True)
    for content in (Code(), checkpoint | {"progress": Code()}):
        torch.save(content, run / "checkpoint.pt")
        assert command_line(script, f"--resume {run} --total-steps 6", monkeypatch) == 2
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1 and "--resume" in lines[0]
        assert not (tmp_path / "executed").exists()
    torch.load(run / "checkpoint.pt", weights_only=False)  # while it does without that protection
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize("content", [b"", b"PK half a checkpoint", None])
def test_a_checkpoint_that_is_none(script, content):
    """Empty, cut off, of another shape of network: one line."""
    _, run = start(script, " --total-steps 1")
    if content is None:
        checkpoint = torch.load(run / "checkpoint.pt", weights_only=True)
        checkpoint["agent"]["log_alpha"] = torch.zeros(3)
        torch.save(checkpoint, run / "checkpoint.pt")
    else:
        (run / "checkpoint.pt").write_bytes(content)
    with pytest.raises(script.InputError, match="--resume") as error:
        go_on(script, run)
    assert "\n" not in str(error.value)


def test_no_run_to_go_on_with(script, monkeypatch, capsys):
    Path("empty").mkdir()
    for name in ("missing", "empty"):
        assert command_line(script, f"--resume {name}", monkeypatch) == 2
        assert name in capsys.readouterr().err.splitlines()[-1]
    assert not Path("runs").exists() and not Path("missing").exists() and not list(Path("empty").iterdir())


def test_killed_three_times(script, tmp_path):
    """By SIGKILL in the midst of an evaluation, then of writing a checkpoint, then of the plot; a small version of
    kill_and_resume.py."""
    script, words = Path(script.__file__).name, WORDS + EXTRA[script]
    (undisturbed := tmp_path / "undisturbed").mkdir()
    (disturbed := tmp_path / "disturbed").mkdir()
    kill_and_resume.kill(script, undisturbed, words, None, None)
    count = random.Random(0).randint(1, 400)  # steps of 200 an evaluation
    for place, n in (("evaluation", count), ("checkpoint", 3), ("plot", 1)):
        kill_and_resume.kill(script, disturbed, words, place, n)
    kill_and_resume.kill(script, disturbed, words, None, None)
    expected, found = kill_and_resume.contents(undisturbed), kill_and_resume.contents(disturbed)
    assert kill_and_resume.differences(expected, found) == []
