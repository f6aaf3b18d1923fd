"""benchmark/run.py: what a grid is, that nothing runs twice, what is done with failures."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import ray
from pydantic.dataclasses import dataclass

import d4rl
from benchmark import run
from benchmark.lib import files
from benchmark.lib.methods import Method

for module in (run, files):
    ray.cloudpickle.register_pickle_by_value(module)  # workers cannot import it from here

# In place of uwac.py: ten updates, a checkpoint after each, result.json after it at the fifth and
# the last. A signal ends it after the checkpoint of --kill-at, before result.json is written.
STUB = """
import json, os, signal, sys
from pathlib import Path
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder = Path(words.get("--resume") or words["--run-dir"])
folder.mkdir(exist_ok=True)
checkpoint = folder / "checkpoint.pt"
total = int(words.get("--total-steps", 10))

def write_result(step):
    history = [{"step": at, "score": [1.0, 4.0]} for at in sorted({min(5, step), step})]
    result = {"history": history, "data": {"path": "/a/b"}, "hardware": "cpu, 1 threads"}
    (folder / "result.json").write_text(json.dumps(result))

print("threads", os.environ["OMP_NUM_THREADS"], "gpus", os.environ["CUDA_VISIBLE_DEVICES"])
step = 0
if "--resume" in words:
    step = int(checkpoint.read_text())
    write_result(step)
while step < total:
    step += 1
    print("process", os.getpid(), "update", step, flush=True)
    if words.get("--kill-at") == "0":
        sys.exit("error: no good")
    checkpoint.write_text(str(step))
    if words.get("--kill-at") == str(step):
        os.kill(os.getpid(), signal.SIGKILL)
    if step in (5, total):
        write_result(step)
"""
# In place of evaluate.py: a record of each policy.
EVALUATE = """
import json, sys
from pathlib import Path
folder, *words = sys.argv[1:]
file = Path(folder, "evaluation.json")
records = json.loads(file.read_text()) if file.exists() else []
step = int(Path(folder, "checkpoint.pt").read_text())
records += [{"step": step, "policy": word} for word in words[words.index("--policies") + 1 :]]
file.write_text(json.dumps(records))
print("played", step)
"""


@dataclass
class StubArgs:
    env_id: str
    seed: int
    kill_at: int = 11
    total_steps: int = 10
    warmup_steps: int = 5
    resolved = lambda self: self


@pytest.fixture
def stub(tmp_path, monkeypatch):
    measure = tmp_path / "benchmark" / "measure"
    measure.mkdir(parents=True)
    (measure / "evaluate.py").write_text(EVALUATE)
    (tmp_path / "stub.py").write_text(STUB)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setitem(run.METHODS, "stub", Method("stub", "", ""))
    monkeypatch.setitem(sys.modules, "stub", SimpleNamespace(Args=StubArgs))
    args = run.Args(tasks=("door-demo",), seeds=1, folder=tmp_path / "grid")
    args.methods = ("stub",)
    for folder in ("work", "logs"):
        (args.folder / folder).mkdir(parents=True)
    return args


def log_of(args, name):
    return (args.folder / "logs" / f"{name}.log").read_text().splitlines()


def updates(args, name):
    """Process and number of each update, from the run's log."""
    return [line.split()[1::2] for line in log_of(args, name) if line.startswith("process")]


def test_a_grid_is_every_task_method_and_seed_with_the_options_in_the_name(capsys):
    tasks = "door-demo", "module:ns/Env-v0"
    args = run.Args(tasks=tasks, methods=("bear", "uwac-std"), seeds=2, dry_run=True)
    runs = run.grid(args, ["--dataset-path", "b", "--total-steps=200", "--beta", "0.8"])
    first, second, *_, last = runs
    assert first == "door-demo__bear__0__dataset-path-b__total-steps-200"  # which has no --beta
    assert capsys.readouterr().out.startswith("bear has no --beta, and runs without it\n")
    assert second == "door-demo__uwac-std__0__dataset-path-b__total-steps-200__beta-0.8"
    assert last.startswith("module-ns-Env-v0__uwac-std__1__")
    assert [name.split("__")[2] for name in runs] == list("00001111")  # seeds are outermost
    words = "uwac --weighting std --env-id module:ns/Env-v0 --seed 1 --dataset-path b"
    assert runs[last].words == [*words.split(), "--total-steps", "200", "--beta", "0.8"]
    assert (runs[last].total_steps, runs[last].warmup_steps) == (200, 40_000)


def test_a_name_is_a_short_file_and_no_other_runs():
    """Long or strange options are hashed: a/b and a-b are not the same data."""
    paths = ["a-b", "a/b", "/data/" + "x" * 500, "/data/" + "x" * 501]
    options = [[["--dataset-path", path]] for path in paths]
    names = [run.name_of("own:Task-v0", "bear+sn", 0, of_run) for of_run in [[], *options]]
    names += [run.name_of("own/Task-v0", "bear+sn", 0, []), run.name_of("T" * 300, "bear", 0, [])]
    assert len(set(names)) == 7 and max(map(len, names)) <= 80
    assert not any(set(name) & set("/: ") for name in names)


@pytest.mark.parametrize("methods, option, warned", [
    (("bear", "uwac"), [], True),
    (("bear", "bear+sn", "uwac"), [], False),
    (("bear", "uwac", "uwac-no-sn"), [], False),
    (("bear", "uwac"), ["--spectral-norm", "False"], False),
])  # fmt: skip
def test_bear_without_norm_beside_uwac_with_it_is_said(methods, option, warned, capsys):
    """Of a hand: on hopper no method has the norm."""
    args = run.Args(tasks=("hopper-medium", "door-demo"), methods=methods, seeds=1, dry_run=True)
    run.grid(args, option)
    lines = [line for line in capsys.readouterr().out.splitlines() if "spectral norm and" in line]
    assert [line.split(":")[0] for line in lines] == ["door-demo"] * warned


def test_a_killed_run_goes_on_and_an_error_is_not_tried_again(stub, capsys):
    killed, options = "door-demo__stub__0__kill-at-5", ["--kill-at", "5"]
    settings = {"include_dashboard": False, "log_to_driver": False}
    with ray.init("local", num_cpus=2, object_store_memory=10**8, **settings):
        assert run.run(run.grid(stub, options), stub) == {}
        ((failed, error),) = run.run(run.grid(stub, ["--kill-at", "0"]), stub).items()
    processes, steps = zip(*updates(stub, killed))
    assert [int(step) for step in steps] == [*range(1, 11)]
    assert processes[0] == processes[4] != processes[5] == processes[9]
    result = json.loads((stub.folder / f"{killed}.json").read_text())
    assert "commit" in result and result["hardware"] == files.hardware("cpu, 1 threads")
    lines = capsys.readouterr().out.splitlines()  # among Ray's
    assert [line for line in lines if line.startswith(killed)] == [
        f"{killed}: 5 of 10 updates (warm-up): score 2.5",
        f"{killed}: 10 of 10 updates: score 2.5",
        f"{killed}: finished, 0 to go",
    ]
    assert "exit code 1: error: no good" in str(error) and failed in str(error)
    assert len(updates(stub, failed)) == 1
    assert [file.stem for file in stub.folder.glob("*.json")] == [killed]
    stub.dry_run = True  # of what is left
    assert run.main(stub, options) == 0
    assert capsys.readouterr().out.endswith("1 runs, 1 of them finished before\n")


def test_what_a_run_leaves_in_the_grids_folder(stub):
    path = d4rl.download("door-demo")
    one = run.Run("bear+sn", ["bear", "--dataset-path", "a b"], 10, 5, True)
    run.keep("name", {"data": {"path": str(path)}}, stub, one)
    result = json.loads((stub.folder / "name.json").read_text())
    max_reward = pytest.approx(d4rl.read(path)["rewards"].max())
    assert result.pop("data") == {"path": path.name, "max_reward": max_reward}
    assert result == {"method": "bear+sn", "command": "python -m bear --dataset-path 'a b'"}


def test_a_run_killed_between_checkpoint_and_result_is_mended(stub, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")  # which it is not given
    ((name, one),) = run.grid(stub, ["--kill-at", "10"]).items()
    with pytest.raises(RuntimeError, match="exit code -9"):
        run.train(name, one, stub)
    assert [row["step"] for row in run.history_of(stub.folder / "work" / name)] == [5]
    assert [row["step"] for row in run.train(name, one, stub)["history"]] == [5, 10]
    assert len(updates(stub, name)) == 10 and log_of(stub, name)[0] == "threads 1 gpus "


def test_after_each_leg_the_policies_are_played_once(stub):
    stub.legs = 4
    ((name, one),) = run.grid(stub, []).items()
    for _ in range(2):
        result = run.train(name, one, stub)
    played = [line.split()[1] for line in log_of(stub, name) if line.startswith("played")]
    assert played == ["4", "8", "10"] and len(updates(stub, name)) == 10
    found = [(one["step"], one["policy"]) for one in result["policies"]]
    assert found == [(step, policy) for step in (4, 8, 10) for policy in run.POLICIES]


def test_two_grids_do_not_write_one_run(stub, monkeypatch):
    """The second waits, and finds it finished. It has the threads and the GPU that it is given."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    stub.gpus, stub.cpus = 0.5, 3
    ((name, one),) = run.grid(stub, []).items()
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(run.train, [name] * 2, [one] * 2, [stub] * 2)
    assert first == second
    assert [step for _, step in updates(stub, name)] == [str(step) for step in range(1, 11)]
    assert log_of(stub, name)[0] == "threads 3 gpus 7"


def test_a_cluster_that_is_not_joined_is_one_line(tmp_path, monkeypatch, refused):
    error = ray.exceptions.AuthenticationError("no token")
    monkeypatch.setattr(ray, "init", Mock(side_effect=error))
    words = f"--tasks door-demo --address there:6379 --folder {tmp_path}"
    assert refused(words, run).startswith("error: --address there:6379: no token")
