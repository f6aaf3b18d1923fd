"""benchmark/run.py: what a grid is, that nothing runs twice, what is done with failures."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import ray
import run
import tyro
from conftest import command_line
from lib import files
from lib.methods import Method

import uwac

for module in (run, files):
    ray.cloudpickle.register_pickle_by_value(module)  # workers cannot import it from here

# In place of uwac.py: ten updates, a checkpoint after each. --fail kill has a signal end it after
# the fifth, and once it goes on it is well; --fail say ends it after the first with an error.
STUB = """
import json, os, signal, sys
from pathlib import Path
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder = Path(words.get("--resume") or words["--run-dir"])
folder.mkdir(exist_ok=True)
checkpoint = folder / "checkpoint.pt"
step = int(checkpoint.read_text()) if "--resume" in words else 0
while step < 10:
    step += 1
    print("process", os.getpid(), "update", step, flush=True)
    if words.get("--fail") == "say":
        sys.exit("error: no good")
    checkpoint.write_text(str(step))
    if words.get("--fail") == "kill" and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
args = {"threads": os.environ["OMP_NUM_THREADS"], "resume": str(folder)}
history = [{"step": step, "score": [1.0, 4.0]} for step in (5, 10)]
result = {"args": args, "history": history, "data": {"path": "/a/b"}, "hardware": "cpu, 1 threads"}
(folder / "result.json").write_text(json.dumps(result))
"""


@dataclass
class StubArgs:
    env_id: str
    seed: int
    fail: str = ""
    total_steps: int = 10
    warmup_steps: int = 5


@pytest.fixture
def stub(tmp_path, monkeypatch):
    (tmp_path / "stub.py").write_text(STUB)
    monkeypatch.setitem(run.METHODS, "stub", Method(str(tmp_path / "stub.py"), "", ""))
    monkeypatch.setitem(run.SCRIPTS, "stub", SimpleNamespace(Args=StubArgs))
    folders = {"folder": tmp_path / "results", "work": tmp_path / "work"}
    for folder in folders.values():
        folder.mkdir()
    return run.Args(tasks=("door-demo",), methods=("stub",), seeds=1, **folders)


@pytest.fixture(scope="module")
def local_ray():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=10**8)
    yield
    ray.shutdown()


def updates(args, name):
    """Process and number of each update, from the run's log."""
    lines = (args.work / f"{name}.log").read_text().splitlines()
    return [line.split()[1::2] for line in lines if line.startswith("process")]


def test_a_grid_is_every_task_method_and_seed_with_the_options_in_the_name(capsys):
    """Names are no paths, whatever a task or a file is called."""
    tasks = "door-demo", "module:ns/Env-v0"
    args = run.Args(tasks=tasks, methods=("bear", "uwac-std"), seeds=2, dry_run=True)
    runs = run.grid(args, ["--dataset-path", "a/b", "--total-steps=200", "--beta", "0.8"])
    first, second, *_, last = runs
    assert first == "door-demo__bear__0__dataset-path-a-b__total-steps-200"  # which has no --beta
    assert "bear has no --beta, and runs without it\n" == capsys.readouterr().out
    assert second == "door-demo__uwac-std__0__dataset-path-a-b__total-steps-200__beta-0.8"
    assert last.startswith("module-ns-Env-v0__uwac-std__1__")
    assert [name.split("__")[2] for name in runs] == list("00001111")  # seeds are outermost
    words = "uwac.py --weighting std --env-id module:ns/Env-v0 --seed 1 --dataset-path a/b"
    assert runs[last] == ([*words.split(), "--total-steps", "200", "--beta", "0.8"], 200, 40_000)


def test_a_killed_run_goes_on_from_its_checkpoint(local_ray, stub, capsys):
    options = ["--fail", "kill"]
    assert run.run(run.grid(stub, options), stub) == {}
    processes, steps = zip(*updates(stub, "door-demo__stub__0__fail-kill"))
    assert [int(step) for step in steps] == [*range(1, 11)]
    assert processes[0] == processes[4] != processes[5] == processes[9]
    (file,) = stub.folder.iterdir()
    result = json.loads(file.read_text())
    assert result["method"] == "stub" and result["data"]["path"] == "b"
    assert result["args"] == {"threads": "1", "resume": None, "run_dir": None}
    assert "commit" in result and result["hardware"] == files.hardware("cpu, 1 threads")
    lines = capsys.readouterr().out.splitlines()  # among Ray's
    first, second, last = [line for line in lines if line.startswith("door-demo__stub")]
    assert first.endswith("fail-kill: 5 of 10 updates (warm-up): score 2.5")
    assert second.endswith("fail-kill: 10 of 10 updates: score 2.5")
    assert last.endswith("fail-kill: finished, 0 to go")
    stub.dry_run = True  # of what is left
    assert run.main(stub, options) == 0
    assert capsys.readouterr().out.endswith("1 runs, 1 of them finished before\n")


def test_an_error_that_was_said_is_not_tried_again(local_ray, stub):
    runs = run.grid(stub, ["--fail", "say"])
    ((name, error),) = run.run(runs, stub).items()
    assert "exit code 1: error: no good" in str(error) and name in str(error)
    assert len(updates(stub, name)) == 1 and not list(stub.folder.iterdir())


def test_options_are_checked_before_anything_runs(monkeypatch, capsys):
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was started"))
    assert command_line(run, "--tasks door-demo --totl-steps 40", monkeypatch) == 2
    assert "Unrecognized options: --totl-steps" in capsys.readouterr().err


@pytest.mark.parametrize("method, changes", [
    ("bear+sn", {"weighting": "none", "dropout": 0.0, "spectral_norm": True}),
    ("bear+dropout+sn", {"weighting": "none", "spectral_norm": True}),
    ("uwac-no-sn", {"spectral_norm": False}),
    ("uwac-std", {"weighting": "std", "variance": "mc"}),
    ("uwac-code", {"weighting": "exp", "beta": 0.5, "weight_clip": 1.0, "num_mmd_samples": 4,
        "mmd_kernel": "gaussian", "spectral_norm": True, "q_noise": True, "variance": "mc"}),
])  # fmt: skip
def test_arguments_of_the_methods(method, changes):
    (one,) = run.grid(run.Args(methods=(method,), seeds=1, dry_run=True), []).values()
    assert tyro.cli(uwac.Args, args=one.words[1:]) == uwac.Args(
        **{"variance": "analytic"} | changes
    )
