"""benchmark/run.py: what a grid is, that nothing runs twice, what is done with failures."""

import fcntl
import hashlib
import json
import socket
import sys
from argparse import ArgumentTypeError
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import ray
from conftest import command_line
from pydantic.dataclasses import dataclass

import d4rl
from benchmark import run
from benchmark.lib import files
from benchmark.lib.methods import Method
from benchmark.variants import ensembles as ensembles_module

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
print("data", words.get("--dataset-path"))
step = 0
if "--resume" in words:
    step = int(checkpoint.read_text())
    write_result(step)
while step < total:
    step += 1
    print("process", os.getpid(), "update", step, flush=True)
    if words.get("--kill-at") == "0":
        sys.exit("error: no good")
    if words.get("--kill-at") == "-1":
        sys.exit()
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
    dataset_path: str | None = None
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
    module = SimpleNamespace(Args=StubArgs, __file__=tmp_path / "stub.py")
    monkeypatch.setitem(sys.modules, "stub", module)
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


def test_several_seeds_in_one_run():
    args = run.Args(tasks=("door-demo",), methods=("bear",), seeds=1, dry_run=True)
    ((name, one),) = run.grid(args, ["--num-seeds", "5"]).items()
    assert name == "door-demo__bear__0__num-seeds-5" and one.words[-2:] == ["--num-seeds", "5"]


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
    one = run.Run("bear+sn", ["bear", "--dataset-path", "a b"], "", None, 10, 5, True)
    run.keep("name", {"data": d4rl.describe(path)}, stub, one)
    result = json.loads((stub.folder / "name.json").read_text())
    max_reward = pytest.approx(d4rl.read(path)["rewards"].max())
    data = d4rl.describe(path) | {"path": path.name, "max_reward": max_reward}
    assert result.pop("data") == data
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


def test_policies_of_which_some_are_missing_are_played_again(stub):
    stub.legs = 10
    ((name, one),) = run.grid(stub, []).items()
    run.train(name, one, stub)
    file = stub.folder / "work" / name / "evaluation.json"
    file.write_text(json.dumps(json.loads(file.read_text())[1:]))
    run.train(name, one, stub)
    assert log_of(stub, name).count("played 10") == 2


def test_an_option_is_a_methods_own_with_no_before_it_too():
    assert run.has("bear", "--cuda-graph") and run.has("bear", "--no-cuda_graph")
    assert run.has("uwac", "--beta") and not run.has("bear", "--beta")


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
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        words = f"--tasks door-demo --address {address} --folder {tmp_path}"
        assert refused(words, run).startswith(f"error: --address {address}: no token")
    monkeypatch.setattr(ray, "init", None)  # where nobody listens it is not even tried
    assert refused(words, run).endswith("Connection refused")


@pytest.mark.parametrize("cpus, gpus, found", [(4, 0, True), (5, 0, False), (4, 1, False)])
def test_a_node_has_all_that_a_run_wants(cpus, gpus, found, stub, monkeypatch):
    """Not one of it on one node, and the rest on another, or on one that is gone."""
    nodes = [(True, {"CPU": 4.0}), (True, {"CPU": 2.0, "GPU": 1.0}), (False, {"CPU": 9, "GPU": 9})]
    nodes = [{"Alive": alive, "Resources": resources} for alive, resources in nodes]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    stub.cpus, stub.gpus = cpus, gpus
    if found:
        assert run.run({}, stub) == {}
        return
    with pytest.raises(ArgumentTypeError, match=f"^--cpus {cpus} --gpus {gpus}: no node of local"):
        run.run({}, stub)


@pytest.mark.parametrize("data", [[], ["--dataset-path", "mine.hdf5"]])
def test_data_are_fetched_once_and_only_where_they_are_d4rls(data, monkeypatch):
    asked = []
    monkeypatch.setattr(d4rl, "download", asked.append)
    args = run.Args(tasks=("door-human", "hopper-medium"), methods=("bear", "uwac"), seeds=2)
    run.grid(args, data)
    assert asked == ([] if data else ["door-human", "hopper-medium"])


def test_workers_find_the_data_from_their_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = run.Run(
        "bear", ["bear", "--dataset_path", "a.hdf5", "--seed", "0"], "", None, 10, 5, True
    )
    words = run.anywhere(one).words
    assert words == ["bear", "--dataset_path", str(tmp_path / "a.hdf5"), "--seed", "0"]
    assert one.words[2] == "a.hdf5"


def test_without_locks_of_files_a_run_trains(stub, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(38, "Function not implemented")))
    ((name, one),) = run.grid(stub, []).items()
    assert [row["step"] for row in run.train(name, one, stub)["history"]] == [5, 10]


@pytest.mark.parametrize("stops", ["training", "evaluation"])
def test_what_ends_too_early_or_in_an_evaluation_is_no_result(stops, stub, tmp_path):
    """A training that ends without an error, and one whose policies cannot be played."""
    options = ["--kill-at", "-1"] if stops == "training" else []
    if stops == "evaluation":
        stub.legs = 10
        program = tmp_path / "benchmark" / "measure" / "evaluate.py"
        program.write_text("raise SystemExit('error: no step limit')")
    ((name, one),) = run.grid(stub, options).items()
    code = "0: process" if stops == "training" else "1: error: no step limit"
    with pytest.raises(ValueError, match=f"^exit code {code}"):
        run.train(name, one, stub)


def test_how_far_a_run_is(stub):
    """By evaluations after 20 updates, and the bars of two parts, of which the second has 20 more
    of the 50 that lead to the end of a leg, or of the run."""
    one = run.Run("stub", ["stub"], "", None, 100, 5, False)
    work, log = stub.folder / "work" / "a", stub.folder / "logs" / "a.log"
    assert run.updates_now("a", one, stub) == 0
    log.write_text(" 30%|# | 30/100 [00:09<00:21, 3.3it/s]\n40/100: mmd 0.1\n")
    assert run.updates_now("a", one, stub) == 30
    work.mkdir()
    (work / "result.json").write_text(json.dumps({"history": [{"step": 10}, {"step": 50}]}))
    with open(log, "a") as file:
        file.write("\r  0%| | 0/50 [00:00<?, ?it/s]\r 40%|# | 20/50 [00:09<00:21, 2.2it/s]")
    assert run.updates_now("a", one, stub) == 70
    stub.legs = 80
    with open(log, "a") as file:
        file.write("\r 40%|# | 10/30 [00:09<00:21, 2.2it/s]")
    assert run.updates_now("a", one, stub) == 60
    with open(log, "a") as file:
        file.write("\r 100%|# | 30/30 [00:09<00:21, 2.2it/s]")  # and no evaluation yet
    assert run.updates_now("a", one, stub) == 50


def test_a_line_of_what_runs():
    """30 updates in 60 s, and 160 to go."""
    runs = {name: run.Run("stub", ["stub"], "", None, 1_000, 5, False) for name in "abc"}
    first = {"a": 990, "b": 900, "c": 920}
    last = {"a": 990, "b": 910, "c": 920}
    now = {"a": 1_000, "b": 920, "c": 920}
    line = run.state_of(runs, first, last, now, 60.0)
    assert line[5:] == ": b has 920 of 1,000 updates, all done in 0:05:20 at this rate"
    line = run.state_of(runs, now, now, now, 60.0)
    assert line[5:] == ": no update in the last minute"


def test_a_run_that_another_script_made_is_said(stub, capsys):
    data = stub.folder / "data.hdf5"
    data.write_bytes(b"data")
    one = run.Run("bear", ["bear"], "Point-v0", data, 10, 5, False)
    ensembles = run.Run("uwac-rem", ["benchmark.variants.ensembles"], "", None, 10, 5, False)
    assert not run.is_finished("a", one, stub)
    now = run.scripts_now(ensembles)
    assert now["ensembles.py"] == files.checksum(Path(ensembles_module.__file__))
    same = {"sha256": hashlib.sha256(b"data").hexdigest()}
    for name, scripts, of_data in (
        ("a", {"bear.py": "another"}, same),
        ("b", now, {"sha256": "any, as there are none now"}),
        ("c", {"mine.py": "x"}, same),
        ("d", {}, {"sha256": "another"}),
    ):
        result = {"scripts": [scripts], "data": of_data}
        (stub.folder / f"{name}.json").write_text(json.dumps(result))
        assert run.is_finished(name, ensembles if name == "b" else one, stub)
    (stub.folder / "e.json").write_text(json.dumps({"data": same}))  # of an earlier version
    assert run.is_finished("e", one, stub)
    by_script, by_data = capsys.readouterr().out.splitlines()
    assert by_script.startswith("a: finished with another bear.py; without ")
    assert by_data.startswith("d: finished with another data file; without ")


class Remote:
    """In place of Ray: a task runs at once."""

    def __call__(self, function):
        self.function = function
        return self

    def remote(self, *given):
        try:
            result = self.function(*given)
        except (RuntimeError, ValueError) as error:
            result = ray.exceptions.RayError(str(error))
            result.cause = error
        return lambda: result


def get(reference):
    result = reference()
    if isinstance(result, Exception):
        raise result
    return result


@pytest.fixture
def no_ray(monkeypatch):
    """In its place, what runs each task at once, and has the first ready."""
    for name, fake in {
        "init": Mock(),
        "nodes": lambda: [{"Alive": True, "Resources": {"CPU": 9.0}}],
        "remote": lambda **settings: Remote(),
        "wait": lambda references, timeout: (references[:1], references[1:]),
        "get": get,
    }.items():
        monkeypatch.setattr(ray, name, fake)


def test_every_minute_a_line_on_all_but_what_failed(stub, no_ray, monkeypatch):
    lines = []
    monkeypatch.setattr(run, "state_of", lambda *given: lines.append(given) or "")
    runs = run.grid(stub, []) | run.grid(stub, ["--kill-at", "0"])
    good, bad = runs
    run.run(runs, stub)
    assert lines == []  # in less than a minute
    monkeypatch.setattr(run, "EVERY", 0)
    assert [*run.run(runs, stub)] == [bad]
    (_, _, _, before, _), (counted, _, last, now, _) = lines
    assert before == last == {good: 10, bad: 0}
    assert [*counted] == [good] and now[good] == 10


@pytest.fixture
def at_once(stub, no_ray, tmp_path, monkeypatch):
    """A program's run of the stub, without Ray; its exit code."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = f"--tasks door-demo --methods stub --seeds 2 --folder {stub.folder}"
    return lambda more="": command_line(run, f"{words} {more}", monkeypatch)


def test_the_exit_code_says_whether_a_run_failed(at_once, stub, capsys):
    assert at_once() == 0
    said = capsys.readouterr()
    lines = ["2 runs, 0 of them finished before", f"logs are in {stub.folder / 'logs'}"]
    assert said.out.splitlines()[:2] == lines
    assert said.out.splitlines()[-1] == f"0 runs failed, results are in {stub.folder}"
    assert len(list(stub.folder.glob("door-demo__stub__[01].json"))) == 2
    assert at_once("--kill-at 0") == 1
    said = capsys.readouterr()
    assert said.err.count("exit code 1: error: no good") == 2
    assert said.out.splitlines()[-1] == f"2 runs failed, results are in {stub.folder}"


def test_a_result_has_its_command_as_it_was_typed(at_once, stub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert at_once("--dataset-path=a.hdf5 --seeds 1") == 0
    (file,) = stub.folder.glob("*.json")
    assert f"data {tmp_path / 'a.hdf5'}" in log_of(stub, file.stem)
    command = "python -m stub --env-id door-demo --seed 0 --dataset-path a.hdf5"
    assert json.loads(file.read_text())["command"] == command


def test_ctrl_c_says_how_to_go_on(at_once, stub, monkeypatch, capsys):
    monkeypatch.setattr(ray, "wait", Mock(side_effect=KeyboardInterrupt))
    assert at_once() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stopped: the same command goes on from the last evaluations; ")
    assert line.endswith(f"report.py {stub.folder / 'work'} shows what there is")
