"""A run stopped, killed or out of disk goes on to the same bits; a checkpoint executes nothing."""

import functools
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
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import Code, Point, command_line, resumed, scalars, short, words, write_hdf5
from filelock import FileLock

import d4rl
import uwac

pytestmark = pytest.mark.usefixtures("points")
RUN = Path("run")
CHECKPOINT = RUN / "checkpoint.pt"
gym.register("Twin-v0", Point, max_episode_steps=5)


def left(run):
    """What a run leaves, but for times, as text, with hashes of tensors."""
    result = json.loads(Path(run, "result.json").read_text())
    checkpoint = torch.load(Path(run, "checkpoint.pt"), weights_only=True)
    for part in (result, checkpoint):
        for row in (part, *part["history"]):
            del row["seconds"]
    return json.dumps([result, checkpoint], default=lambda tensor: hash(tensor.numpy().tobytes()))


def test_a_run_that_something_ends_keeps_what_came_before(script, monkeypatch, capsys):
    """In the second evaluation, of one seed of two: one line says what."""
    Point.at_step = {26: lambda: np.nan}
    line = words(script, num_seeds=2)
    assert command_line(script, line, monkeypatch) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.match("error: .*Point.*: a reward is not finite: nan", said)
    assert [row["step"] for row in script.load_checkpoint(RUN)[1]["history"]] == [3]
    assert len(json.loads((RUN / "result.json").read_text())["history"]) == 1
    assert command_line(script, f"{line} --resume", monkeypatch) == 0
    assert [row["step"] for row in script.load_checkpoint(RUN)[1]["history"]] == [3, 6]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when, updates", [("update", 4), ("evaluation", 3)])
def test_a_stopped_run_says_the_command_that_goes_on(
    script, number, when, updates, monkeypatch, capsys
):
    """An update or an evaluation is finished first. The command goes on to the same bits."""
    stop = lambda: os.kill(os.getpid(), number)
    in_update = {}

    def update(agent, data, step):
        in_update.pop(step.item(), lambda: None)()
        return script.update(agent, data, step)

    script.main(short(script, run_dir="undisturbed"), update=update)
    if when == "update":
        in_update[4] = stop
    else:
        Point.at_step = {len(Point.played) + 8: stop}
    line = ["script.py", *words(script).split()]
    monkeypatch.setattr(sys, "argv", line)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-O", *line])
    with pytest.raises(SystemExit) as end:
        script.command_line(update=update)
    assert end.value.code == 128 + number
    command = f"python -O {' '.join(line)} --resume"
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"stopped; from update {updates} goes on: {command}"
    monkeypatch.setattr(sys, "argv", [*line, "--resume"])
    script.command_line(update=update)
    assert f"run: goes on from update {updates}\n" in capsys.readouterr().out
    assert left(RUN) == left("undisturbed")
    assert scalars(RUN) == scalars("undisturbed")


def test_a_run_that_diverged_before_it_was_stopped_leaves_its_last_checkpoint(script, monkeypatch):
    """Though nothing of that update is logged."""

    def update(agent, data, step):
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            return {"critic_loss": torch.tensor([float("nan")])}
        return script.update(agent, data, step)

    monkeypatch.setattr(sys, "argv", ["script.py", *words(script).split(), "--log-every", "100"])
    with pytest.raises(SystemExit, match="diverged at update 4"):
        script.command_line(update=update)
    assert script.load_checkpoint(RUN)[1]["updates"] == 3


def test_a_stopped_run_without_a_folder_of_its_own_says_where_it_is(monkeypatch, capsys):
    Point.at_step = {8: lambda: os.kill(os.getpid(), signal.SIGTERM)}
    line = ["uwac.py", *words(uwac).replace(" --run_dir run", "").split()]
    monkeypatch.setattr(sys, "argv", line)
    monkeypatch.setattr(sys, "orig_argv", ["python", *line])
    with pytest.raises(SystemExit):
        uwac.command_line()
    (run,) = Path("runs").iterdir()
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(f"goes on: python {' '.join(line)} --run-dir {run} --resume")


def test_ctrl_c_while_data_are_prepared_is_one_line(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(d4rl, "qlearning_dataset", interrupted)
    monkeypatch.setattr(sys, "argv", ["uwac.py", *words(uwac).split()])
    with pytest.raises(SystemExit, match="^stopped$"):
        uwac.command_line()
    assert not RUN.exists()


def test_a_full_disk_leaves_the_earlier_files(monkeypatch):
    """From the second evaluation on, a file takes half of a checkpoint."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill():
        half = CHECKPOINT.stat().st_size // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (half, limits[1]))

    Point.at_step = {13: fill}
    try:
        with pytest.raises(OSError, match="File too large"):
            uwac.main(short(uwac))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [row["step"] for row in uwac.main(resumed(uwac))["history"]] == [3, 6]


@pytest.mark.parametrize("error", [ValueError, FileNotFoundError])
def test_what_a_programmer_broke_is_a_traceback(error, script, monkeypatch):
    """One's own update, with an error of the kind that in the set-up would be the user's."""
    broken = Mock(side_effect=error("mine"), __module__=__name__)
    monkeypatch.setattr(sys, "argv", ["uwac.py", *words(script).split()])
    with pytest.raises(error, match="^mine$"):
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
    assert "warning: another" not in capsys.readouterr().out
    Path("mine.py").write_text(code + "# edited\n")
    second = uwac.main(resumed(uwac, total_steps=3), **settings)["scripts"]
    assert "warning: another scripts than before" in capsys.readouterr().out
    assert second[0] == sums[0] and len(second) == 2
    assert second[1]["uwac.py"] == sums[0]["uwac.py"] and second[1]["mine.py"] != sums[0]["mine.py"]


@pytest.mark.parametrize("owner, attribute, name, value", [
    (torch, "__version__", "torch", "9.9"), (uwac, "hardware", "hardware", lambda: "Z80")
])  # fmt: skip
def test_another_torch_or_processor_is_said_and_recorded(
    owner, attribute, name, value, monkeypatch, capsys
):
    first = uwac.main(short(uwac, total_steps=1))[name]
    monkeypatch.setattr(owner, attribute, value)
    both = [*first, value() if callable(value) else value]
    assert uwac.main(resumed(uwac, total_steps=2))[name] == both
    assert f"warning: another {name} than before" in capsys.readouterr().out
    assert uwac.main(resumed(uwac, total_steps=3))[name] == both
    assert "warning: another" not in capsys.readouterr().out


class Callable:
    def __call__(self, *given):
        return uwac.update(*given)


def test_updates_of_one_file_are_told_apart():
    """By their names, and by what a partial function is given: they are not seeds of one method."""
    other = lambda *given: uwac.update(*given)
    partials = [functools.partial(uwac.update, scale=np.float32(scale)) for scale in (1, 2)]
    partials += [functools.partial(uwac.update, scale) for scale in (1, 2)]
    sums = [uwac.checksums(uwac.Agent, update) for update in (uwac.update, other, *partials)]
    assert len({str(one) for one in sums}) == 6 and "update" not in sums[0]
    with_object = functools.partial(uwac.update, hook=object())  # other in each process
    assert uwac.checksums(uwac.Agent, with_object) == sums[0]


def test_the_file_of_an_update_is_found_whatever_holds_it(monkeypatch, tmp_path):
    """A partial function and an object; what was typed into Python has no file. Two files of a name
    are two."""
    here = Path(__file__).name
    own = lambda *given: uwac.update(*given)
    for update in (own, functools.partial(own), Callable()):
        assert set(uwac.checksums(uwac.Agent, update)) - {"update"} == {"uwac.py", here}
    monkeypatch.setitem(sys.modules, "typed", SimpleNamespace(__file__="<stdin>"))
    own.__module__ = "typed"
    assert uwac.checksums(uwac.Agent, own)["<stdin>"] is None
    (tmp_path / "uwac.py").touch()
    monkeypatch.setitem(sys.modules, "typed", SimpleNamespace(__file__=tmp_path / "uwac.py"))
    empty = hashlib.sha256().hexdigest()
    assert uwac.checksums(uwac.Agent, own)[f"{tmp_path.name}/uwac.py"] == empty


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
    saved["seconds"] = 1000.0
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
    line = words(uwac, seed=3, variance="analytic") + " --resume"
    wrong = {"--gamma 0.9": "gamma was 0.99 and cannot change", "--seed 0": "seed was 3 and "}
    wrong |= {"--variance mc": "variance was ", "--mmd-kernel laplacian": "mmd_kernel was gaussian"}
    wrong |= {
        "--dataset-path other.hdf5": "data was .*; they are in .*points.hdf5",
        "--env-id Twin-v0": "env_id was Point-v0",
    }
    for option, problem in wrong.items():
        assert re.search(f"error: run: {problem}", refused(f"{line} {option}"))
    with FileLock(RUN / "in-use.lock"):
        assert "run/in-use.lock" in refused(line)
    assert "run exists: add --resume to go on there" in refused(line.removesuffix(" --resume"))
    assert "--resume: which run? Add --run-dir" in refused("--env-id Point-v0 --resume")
    assert {path: path.read_bytes() for path in RUN.iterdir()} == before
    torch.save(torch.load(CHECKPOINT, weights_only=True) | {"device": "cuda"}, CHECKPOINT)
    assert "device was cuda and cannot change" in refused(line)


def test_a_run_that_another_process_trained_meanwhile_is_not_overwritten(script):
    """It ended between this one's reading of the checkpoint and its lock."""
    script.main(short(script, total_steps=1))
    args = resumed(script, total_steps=2)
    stale = script.set_up(args, None, script.Agent, script.update, ExitStack())
    script.main(resumed(script, total_steps=3))
    with pytest.raises(OSError, match="^run: another process trained it meanwhile"):
        script.train(*stale)
    assert script.load_checkpoint(RUN)[1]["updates"] == 3


def test_a_run_that_has_lost_its_checkpoint_does_not_begin_anew(script):
    script.main(short(script, total_steps=1))
    CHECKPOINT.unlink()
    with pytest.raises(ValueError, match="^run: has result.json, but no checkpoint.pt to go on"):
        script.main(short(script, resume=True))


def test_one_command_begins_a_run_and_goes_on_with_it(script, monkeypatch, capsys):
    """As a cluster's job does. From another folder, a run goes on where it is."""
    line = words(script, total_steps=2) + " --resume"
    for said in ("no run in run: begins\n", "run: goes on from update 2\n"):
        assert command_line(script, line, monkeypatch) == 0
        assert said in capsys.readouterr().out
    args = resumed(script, Path("run").absolute(), total_steps=3)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    script.main(args)
    assert not [*Path().iterdir()]
    assert script.load_checkpoint("../run")[1]["updates"] == 3


def test_a_damaged_or_malicious_checkpoint(refused):
    """Missing, cut, of other arguments and sizes, with code as the whole file and inside."""
    uwac.main(short(uwac, total_steps=1))
    content = CHECKPOINT.read_bytes()
    saved = torch.load(CHECKPOINT, weights_only=True)
    line = words(uwac, total_steps=2) + " --resume"
    args = saved["args"]
    less = {name: value for name, value in args.items() if name != "cuda_graph"}
    damaged = dict.fromkeys([b"", content[: len(content) // 2]], "missing, damaged, or not a run's")
    cases = [*damaged.items(), *((what, "missing, damaged, ") for what in ([1, 2], Code()))]
    cases += [(saved | {"history": Code()}, "missing, damaged, or not a run's")]
    cases += [(saved | {"args": args}, "a run of another version of uwac")
              for args in (less, args | {"q_noise": False})]  # fmt: skip
    cases += [(saved | {"algorithm": "bear"}, "a run of bear, not of uwac")]
    for what, problem in cases:
        if isinstance(what, bytes):
            CHECKPOINT.write_bytes(what)
        else:
            torch.save(what, CHECKPOINT)
        error = refused(line)
        assert error.startswith(f"error: run/checkpoint.pt: {problem}") and len(error) < 100
    CHECKPOINT.unlink()
    with pytest.raises(ValueError, match="missing, damaged"):
        uwac.load_checkpoint(RUN)
    assert not Path("executed").exists()


def test_a_bug_in_ones_own_agent_is_a_traceback_on_resume(monkeypatch):
    class Mine(uwac.Agent):
        pass

    uwac.main(short(uwac, total_steps=1), agent_type=Mine)
    monkeypatch.setattr(Mine, "__init__", lambda self, *_: self.oops)
    with pytest.raises(AttributeError, match="oops"):
        uwac.load_checkpoint(RUN, Mine)
