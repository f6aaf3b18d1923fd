"""benchmark/run.py: what a grid is, that nothing runs twice, what is done with failures."""

import json
import sys
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="benchmark/requirements.txt is not installed")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmark"))
import run

ray.cloudpickle.register_pickle_by_value(run)  # its workers cannot import it from here

# In place of uwac.py: ten updates, a checkpoint after each. --fail CODE ends it after the fifth,
# and once it goes on it is well; --fail always-CODE ends it after every update.
STUB = """
import json, os, sys, time
from pathlib import Path
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder = Path(words.get("--resume") or words["--run-dir"])
folder.mkdir(exist_ok=True)
saved = {"step": 0, "fail": words.get("--fail", "")}
if "--resume" in words:
    saved = json.loads((folder / "checkpoint.pt").read_text())
fail = saved["fail"]
while saved["step"] < 10:
    time.sleep(0.05)
    saved["step"] += 1
    print("process", os.getpid(), "update", saved["step"], flush=True)
    (folder / "checkpoint.pt").write_text(json.dumps(saved))
    if fail and saved["step"] == 5 or fail.startswith("always"):
        print("error: no good", file=sys.stderr)
        os._exit(int(fail.removeprefix("always-")))
args = {"total_steps": 10, "threads": os.environ["OMP_NUM_THREADS"]}
result = {"args": args, "history": [{"step": 10}], "last": {"mean": 1.0}, "data": {"path": "/a/b"}}
(folder / "result.json").write_text(json.dumps(result))
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    (tmp_path / "stub.py").write_text(STUB)
    monkeypatch.setitem(run.METHODS, "stub", str(tmp_path / "stub.py"))
    folders = {"folder": tmp_path / "results", "work": tmp_path / "work"}
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


def start(args, options):
    args.folder.mkdir(exist_ok=True)
    args.work.mkdir(exist_ok=True)
    return run.run(run.grid(args, options), args)


def test_a_grid_is_every_task_method_and_seed_with_the_options_in_the_name():
    args = run.Args(tasks=("door-demo", "pen-human"), methods=("bear", "uwac-std"), seeds=2)
    runs = run.grid(args, ["--total-steps", "200", "--beta", "0.8"])
    names = list(runs)
    assert names[1] == "door-demo__uwac-std__0__total-steps-200__beta-0.8"
    assert [name.split("__")[2] for name in names] == list("00001111")  # seeds are outermost
    words = "uwac.py --weighting std --env-id pen-human --seed 1 --total-steps 200 --beta 0.8"
    assert runs[names[-1]] == words.split()


@pytest.mark.parametrize("words, message", [
    ("--methods bear uwca", "--methods uwca: there are bear, uwac, "),
    ("--tasks Hopper-v4", "--tasks Hopper-v4: there are door-cloned, door-cloned-v0, "),
    ("--seeds 0", "--seeds and --cpus must be at least 1"),
    ("--num-seeds 5", "it needs --seeds 1"),
])  # fmt: skip
def test_wrong_grids_are_refused_in_one_line(words, message, capsys):
    args, options = run.tyro.cli(run.Args, args=words.split(), return_unknown_args=True)
    with pytest.raises(SystemExit) as end:
        run.main(args, options)
    error = capsys.readouterr().err
    assert end.value.code == 2 and message in error and error.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_found_first(stub, tmp_path, capsys):
    stub.folder = tmp_path / "stub.py" / "results"
    assert run.main(stub, []) == 1
    assert "choose another --folder" in capsys.readouterr().err and not stub.work.exists()


def test_every_run_leaves_one_small_file(local_ray, stub, capsys):
    """And a dry run prints the commands of those that are left, and writes nothing."""
    stub.seeds, stub.dry_run = 2, True
    assert run.main(stub, []) == 0 and not stub.folder.exists()
    assert start(stub, []) == {}
    names = ["door-demo__stub__0.json", "door-demo__stub__1.json"]
    assert sorted(file.name for file in stub.folder.iterdir()) == names
    result = json.loads((stub.folder / names[1]).read_text())
    assert result["method"] == "stub" and result["data"]["path"] == "b"
    assert result["args"]["threads"] == "1" and 1 < result["peak_mb"] < 1000
    (stub.folder / names[0]).unlink()
    assert run.main(stub, []) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[2] == result["command"] and out[2].endswith("stub.py --env-id door-demo --seed 1")
    assert out[-2:] == ["2 runs, 1 of them finished before", out[1]]


def test_a_killed_run_goes_on_from_its_checkpoint(local_ray, stub):
    assert start(stub, ["--fail", "137"]) == {}
    processes, steps = zip(*updates(stub, "door-demo__stub__0__fail-137"))
    assert [int(step) for step in steps] == [*range(1, 11)]
    assert processes[0] == processes[4] != processes[5] == processes[9]


def test_two_grids_at_once_make_each_run_once(local_ray, stub):
    ((name, words),) = run.grid(stub, []).items()
    stub.work.mkdir()
    task = ray.remote(max_calls=1)(run.train)
    first, second = ray.get([task.remote(name, words, stub) for _ in range(2)])
    assert first["history"] == second["history"] and len(updates(stub, name)) == 10


@pytest.mark.parametrize("code, attempts", [(1, 3), (2, 1), (3, 1)])
def test_wrong_arguments_and_divergence_are_not_tried_again(local_ray, stub, code, attempts):
    ((name, error),) = start(stub, ["--fail", f"always-{code}"]).items()
    assert f"exit code {code}: error: no good" in str(error) and name in str(error)
    assert len(updates(stub, name)) == attempts and not list(stub.folder.iterdir())
