"""benchmark/run.py: what a grid is, that nothing runs twice, what is done with failures."""

import json

import pytest

ray = pytest.importorskip("ray", reason="benchmark/requirements.txt is not installed")
import run

ray.cloudpickle.register_pickle_by_value(run)  # its workers cannot import it from here

# In place of uwac.py: ten updates, a checkpoint after each. --fail CODE ends it after the fifth,
# and once it goes on it is well; --fail always-CODE ends it after the first.
STUB = """
import json, os, sys
from pathlib import Path
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder = Path(words.get("--resume") or words["--run-dir"])
folder.mkdir(exist_ok=True)
checkpoint = folder / "checkpoint.pt"
step = int(checkpoint.read_text()) if "--resume" in words else 0
fail = words.get("--fail", "")
while step < 10:
    step += 1
    print("process", os.getpid(), "update", step, flush=True)
    if fail.startswith("always"):
        print("error: no good", file=sys.stderr)
        os._exit(int(fail.removeprefix("always-")))
    checkpoint.write_text(str(step))
    if fail and step == 5:
        os._exit(int(fail))
args = {"total_steps": 10, "threads": os.environ["OMP_NUM_THREADS"], "resume": str(folder)}
history = [{"step": 10, "score": [1.0, 4.0]}]
result = {"args": args, "history": history, "data": {"path": "/a/b"}}
(folder / "result.json").write_text(json.dumps(result))
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    (tmp_path / "stub.py").write_text(STUB)
    monkeypatch.setitem(run.METHODS, "stub", str(tmp_path / "stub.py"))
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


def test_a_grid_is_every_task_method_and_seed_with_the_options_in_the_name():
    tasks = "door-demo", "pen-human"
    args = run.Args(tasks=tasks, methods=("bear", "uwac-std"), seeds=2, dry_run=True)
    runs = run.grid(args, ["--total-steps", "200", "--beta", "0.8"])
    names = list(runs)
    assert names[1] == "door-demo__uwac-std__0__total-steps-200__beta-0.8"
    assert [name.split("__")[2] for name in names] == list("00001111")  # seeds are outermost
    words = "uwac.py --weighting std --env-id pen-human --seed 1 --total-steps 200 --beta 0.8"
    assert runs[names[-1]] == words.split()
    for option in ("--seed=7", "--env_id", "--run-dir", "--resume"):
        with pytest.raises(SystemExit):
            run.grid(args, [option])


def test_a_killed_run_goes_on_from_its_checkpoint(local_ray, stub, capsys):
    options = ["--fail", "137"]
    assert run.run(run.grid(stub, options), stub) == {}
    processes, steps = zip(*updates(stub, "door-demo__stub__0__fail-137"))
    assert [int(step) for step in steps] == [*range(1, 11)]
    assert processes[0] == processes[4] != processes[5] == processes[9]
    (file,) = stub.folder.iterdir()
    result = json.loads(file.read_text())
    assert result["method"] == "stub" and result["data"]["path"] == "b"
    assert result["args"]["threads"] == "1" and 1 < result["peak_mb"] < 1000
    assert result["args"]["resume"] is None
    assert ": score 2.5, 0 runs left" in capsys.readouterr().out
    (stub.work / "result.json").write_text("{")  # killed while it was written
    assert run.finished(stub.work) is None
    stub.dry_run = True  # of what is left
    assert run.main(stub, options) == 0
    assert capsys.readouterr().out.endswith("1 runs, 1 of them finished before\n")


@pytest.mark.parametrize("code, attempts", [(1, 3), (2, 1), (3, 1)])
def test_wrong_arguments_and_divergence_are_not_tried_again(local_ray, stub, code, attempts):
    runs = run.grid(stub, ["--fail", f"always-{code}"])
    ((name, error),) = run.run(runs, stub).items()
    assert f"exit code {code}: error: no good" in str(error) and name in str(error)
    assert len(updates(stub, name)) == attempts and not list(stub.folder.iterdir())
