"""benchmark/run.py: what a grid is, that nothing runs twice, what is done with failures."""

import fcntl
import json
import shlex
import signal
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
import uwac
from benchmark import files, methods, run, store
from benchmark.methods import METHODS, Method

for module in (run, files, sys.modules[__name__]):
    ray.cloudpickle.register_pickle_by_value(module)  # workers cannot import it from here

DEMO = d4rl.HERE / d4rl.DEMO
NAME = "door-demo__bear__0"  # of a grid's only run


@dataclass
class StubArgs:
    env_id: str
    seed: int = 0
    beta: float = 1.0
    dataset_path: Path | None = None
    total_steps: int = 10
    warmup_steps: int = 5
    eval_episodes: int = 3


class Processes:
    """In place of a run's: training leaves its updates, and evaluate.py that it played. One whose
    turn in `codes` is a number only ends."""

    def __init__(self):
        self.codes = []
        self.started = []

    def __call__(self, command, stdout, stderr, env):
        python, program, *words = map(str, command)
        assert python == sys.executable and stdout is stderr
        self.started.append((Path(program).name, words, env))
        print("the last word", file=stdout, flush=True)
        if self.codes:
            return self.codes.pop(0)
        if program.endswith("evaluate.py"):
            Path(words[0], "evaluation.json").write_text('["played"]')
            return 0
        folder = Path(words[words.index("--run-dir") + 1])
        folder.mkdir(exist_ok=True)
        *_, path = (words[i + 1] for i, word in enumerate(words) if word == "--dataset-path")
        data = {"path": path}  # the last counts
        result = {"history": [], "updates": int(words[-1]), "data": data}
        (folder / "result.json").write_text(json.dumps(result))
        return 0


@pytest.fixture
def processes(monkeypatch):
    processes = Processes()
    monkeypatch.setattr(run.subprocess, "call", processes)
    return processes


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Arguments of a grid of one run, of a method whose script is a stub."""
    monkeypatch.setitem(METHODS, "bear", Method(str(tmp_path / "stub.py"), "", ""))
    script = SimpleNamespace(Args=StubArgs, Agent="an agent", update=None)
    for module in (run, methods):
        monkeypatch.setattr(module, "script_of", lambda command: script)
    args = run.Args(tasks=("door-demo",), methods=("bear",), seeds=1, folder=tmp_path / "grid")
    for folder in ("work", "logs"):
        (args.folder / folder).mkdir(parents=True)
    return args


def only_run(args, *options):
    ((name, one),) = run.grid(args, [*options]).items()
    return name, one


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
    words = f"{METHODS['uwac-std'].command} --env-id module:ns/Env-v0 --seed 1 --dataset-path b"
    assert runs[last].words == [*words.split(), "--total-steps", "200", "--beta", "0.8"]
    assert (runs[last].args.total_steps, runs[last].args.warmup_steps) == (200, 40_000)
    assert run.has("bear", ["--cuda-graph"]) and run.has("bear", ["--no-cuda_graph"])
    args = run.Args(tasks=("door-demo",), methods=("bear",), seeds=1, dry_run=True)
    name, one = only_run(args, "--num-seeds", "5")
    assert name == "door-demo__bear__0__num-seeds-5" and one.words[-2:] == ["--num-seeds", "5"]


def test_a_name_is_a_short_file_and_no_other_runs():
    """Long or strange options are hashed: a/b and a-b are not the same data."""
    paths = ["a-b", "a/b", "/data/" + "x" * 500, "/data/" + "x" * 501]
    options = [[["--dataset-path", path]] for path in paths]
    names = [run.name_of("own:Task-v0", "bear+sn", 0, of_run) for of_run in [[], *options]]
    names += [run.name_of("own/Task-v0", "bear+sn", 0, []), run.name_of("T" * 300, "bear", 0, [])]
    assert len(set(names)) == 7 and max(map(len, names)) <= 80
    assert not any(set(name) & set("/: ") for name in names)
    of_seed_1 = run.name_of("own:Task-v0", "bear+sn", 1, options[-1])
    assert of_seed_1 == names[4].replace("__0__", "__1__")


def test_what_a_signal_ended_is_tried_again_and_an_error_is_not(stub, processes):
    """uwac.py, too, ends after a signal; the same command begins a run, and goes on with it. What
    ends early without an error has no result, either."""
    for code, kind in ((-9, RuntimeError), (143, RuntimeError), (1, ValueError), (0, ValueError)):
        processes.codes = [code]
        with pytest.raises(kind, match=f"^exit code {code}: the last word"):
            run.train(*only_run(stub), stub)
    assert run.train(*only_run(stub), stub)["updates"] == 10
    run.train(*only_run(stub), stub)  # is finished
    commands = [words for _, words, _ in processes.started]
    assert len(commands) == 5 and all(words == commands[0] for words in commands)
    place = f"--dataset-path {DEMO} --run-dir {stub.folder / 'work' / NAME}".split()
    assert commands[0][4:] == [*place, "--resume", "--total-steps", "10"]


STUB = """
import json, os, sys
from pathlib import Path
folder = Path(sys.argv[sys.argv.index("--run-dir") + 1])
folder.mkdir(exist_ok=True)
starts = len([*folder.iterdir()])
(folder / f"start-{starts}").touch()
if sys.argv[sys.argv.index("--seed") + 1] == "1":
    sys.exit("error: no good")
if starts == 0:
    os.kill(os.getpid(), 9)
history = [{"step": 5, "score": [1.0, 4.0], "score_sample": [0.5, 0.2]}]
history += [{"step": 10, "score": [2.0, 4.0]}]
result = {"history": history, "updates": 10, "data": {"path": "/a/b", "max_reward": 1}}
(folder / "result.json").write_text(json.dumps(result))
"""


WORDS = ["--tasks", "door-demo", "--methods", "bear", "--folder", "grid", "--seeds"]


def test_ray_starts_again_what_was_killed_and_no_error(stub, tmp_path, monkeypatch, capsys):
    """Also where somebody's benchmark.py lies in the current folder. The exit code says whether a
    run failed."""
    monkeypatch.chdir(tmp_path)
    Path("benchmark.py").write_text("")
    Path("stub.py").write_text(STUB)
    monkeypatch.setattr(uwac, "checksums", lambda agent, update: {})
    monkeypatch.setattr(signal, "signal", Mock())
    try:
        assert command_line(run, shlex.join([*WORDS, "2"]), monkeypatch) == 1
    finally:
        ray.shutdown()
    failed = NAME.replace("0", "1")
    starts = [len([*(stub.folder / "work" / n).glob("start-*")]) for n in (NAME, failed)]
    assert starts == [2, 1]
    said = capsys.readouterr()
    assert f"{failed}: exit code 1: error: no good" in said.err and " 10/10 " in said.err
    steps = "5 of 10 updates (warm-up): score 2.5, score_sample 0.3", "10 of 10 updates: score 3.0"
    lines = [line.strip() for line in said.out.splitlines() if line.strip().startswith(NAME)]
    assert lines[:2] == [f"{NAME}: {words}" for words in steps]
    assert lines[2].startswith(f"{NAME}: finished, ")
    result = json.loads((stub.folder / f"{NAME}.json").read_text())
    assert result.keys() > {"commit", "method", "command"} and result["data"]["path"] == "b"
    assert command_line(run, shlex.join([*WORDS, "1"]), monkeypatch) == 0
    assert capsys.readouterr().out == "1 runs, 1 of them finished before\n"


def test_what_a_run_leaves_in_the_grids_folder(stub):
    _, one = only_run(stub)
    one = one._replace(words=["bear.py", "--dataset-path", "a b"], method="bear+sn")
    one.grid.study = "why"
    (stub.folder / "work" / "name").mkdir()
    (stub.folder / "work" / "name" / "forked_from.json").write_text('{"run": "w"}')
    run.keep("name", {"data": d4rl.describe(DEMO)}, stub, one)
    result = json.loads((stub.folder / "name.json").read_text())
    max_reward = pytest.approx(d4rl.read(DEMO)["rewards"].max())
    data = d4rl.describe(DEMO) | {"path": DEMO.name, "max_reward": max_reward}
    assert result.pop("data") == data
    about = {"method": "bear+sn", "study": "why", "forked_from": {"run": "w"}}
    assert result == about | {"command": "python bear.py --dataset-path 'a b'"}


def test_after_each_leg_the_policies_are_played(stub, processes):
    """Also after one that stopped before they were; not again after one that went on since."""
    stub.legs = 4
    processes.codes = [1]
    with pytest.raises(ValueError, match="^exit code 1"):
        run.train(*only_run(stub), stub)
    assert run.train(*only_run(stub), stub)["policies"] == ["played"]
    found = [words[-1] for program, words, _ in processes.started if program == "stub.py"]
    assert found == ["4", "4", "8", "10"]
    played = [words for program, words, _ in processes.started if program == "evaluate.py"]
    place = str(stub.folder / "work" / NAME)
    assert played == [[place, "--episodes", "3", "--policies", *run.POLICIES]] * 3
    processes.codes = [1]
    with pytest.raises(ValueError, match="^exit code 1: the last word"):
        run.train(*only_run(stub), stub)
    assert processes.started[-1][:2] == ("evaluate.py", played[0]) and len(processes.started) == 8


def test_a_fork_begins_as_a_copy_and_then_goes_on_by_itself(stub, processes, monkeypatch):
    monkeypatch.setattr(run, "fork", Mock())
    stub.fork_of = "{task}-{seed}"
    name, one = only_run(stub, "--beta", "2")
    run.train(name, one, stub)
    source, run_dir = (stub.folder / "work" / place for place in ("door-demo-0", name))
    run.fork.assert_called_once_with(source, run_dir, "an agent", one.args)
    (run_dir / "checkpoint.pt").touch()
    (run_dir / "forked_from.json").write_text(json.dumps({"run": str(source)}))
    run.train(name, one, stub)
    assert run.fork.call_count == 1


@pytest.mark.parametrize("asked, begun, how", [
    ("another", "{}/work/one", "as a copy of .*/work/one"), ("", "{}/work/one", "as a copy of .*"),
    ("another", None, "by itself"),
])  # fmt: skip
def test_a_run_goes_on_from_what_it_began_as_or_not_at_all(stub, processes, asked, begun, how):
    stub.fork_of = asked
    name, one = only_run(stub)
    run_dir = stub.folder / "work" / name
    run_dir.mkdir()
    (run_dir / "checkpoint.pt").touch()
    if begun:
        source = {"run": begun.format(stub.folder)}
        (run_dir / "forked_from.json").write_text(json.dumps(source))
    with pytest.raises(ValueError, match=f"{run_dir}: began {how}, with another --fork-of; move"):
        run.train(name, one, stub)


@pytest.mark.parametrize("locks", [True, False])
def test_two_grids_do_not_write_one_run(locks, stub, processes, monkeypatch):
    """The second waits, and finds it finished. It has the threads and the GPU that it is given."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    if not locks:
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(38, "not implemented")))
        assert run.train(*only_run(stub), stub)["updates"] == 10
    stub.gpus, stub.cpus = 0.5, 3
    name, one = only_run(stub)
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(run.train, [name] * 2, [one] * 2, [stub] * 2)
    assert first == second and len(processes.started) == 1
    _, _, env = processes.started[0]
    given = env["OMP_NUM_THREADS"], env["CUDA_VISIBLE_DEVICES"]
    assert given == (("3", "7") if locks else ("1", ""))


@pytest.mark.parametrize("given", [False, True])
def test_a_run_trains_on_the_file_that_the_grid_found_or_not_at_all(
    given, stub, processes, tmp_path, monkeypatch
):
    """Wherever its worker is, and whatever it would find itself; not on one that has changed."""
    monkeypatch.chdir(tmp_path)
    Path("a.hdf5").write_bytes(b"data")
    options = ["--dataset-path", "a.hdf5"] if given else []
    name, one = only_run(stub, *options)
    monkeypatch.chdir("/")
    monkeypatch.setattr(d4rl, "download", None)
    path = tmp_path / "a.hdf5" if given else DEMO
    assert run.train(name, one, stub)["data"]["path"] == str(path)
    assert one.words[5:] == options  # as they were typed
    with pytest.raises(ValueError, match="not the file that run.py found"):
        run.train(name, one._replace(sha256="another"), stub)


def test_data_are_fetched_once_for_all_runs_of_a_task(monkeypatch):
    asked = []
    monkeypatch.setattr(d4rl, "download", lambda task: asked.append(task) or DEMO)
    run.file_of.cache_clear()
    args = run.Args(tasks=("door-human", "hopper-medium"), methods=("bear", "uwac"), seeds=2)
    run.grid(args, [])
    run.grid(args, ["--dataset-path", str(DEMO)])
    run.file_of.cache_clear()
    assert asked == ["door-human", "hopper-medium"]


def test_a_run_that_another_script_made_is_said(stub, monkeypatch, capsys):
    now = {"stub.py": "now", "uwac.py": "now, too"}
    monkeypatch.setattr(uwac, "checksums", lambda agent, update: now)
    _, one = only_run(stub)
    assert not run.is_finished("a", one, stub)
    same = {"sha256": one.sha256}
    for name, scripts, of_data, more in (
        ("a", {"uwac.py": "another"}, same, {}),
        ("b", now, same, {}),
        ("c", {"mine.py": "x"}, same, {}),
        ("d", now, {"sha256": "another"}, {}),
        ("e", now, same, {"policies": [{"step": 5}]}),
        ("f", now, same, {"forked_from": {"run": "another"}}),
    ):
        result = {"scripts": [scripts], "data": of_data} | more
        (stub.folder / f"{name}.json").write_text(json.dumps(result))
        assert run.is_finished(name, one, stub)
    by_script, by_data, by_legs, by_fork = capsys.readouterr().out.splitlines()
    assert by_script.startswith("a: finished with another uwac.py; without ")
    assert by_data.startswith("d: finished with another data file; without ")
    assert by_legs.startswith("e: finished with another --legs; without ")
    assert by_fork.startswith("f: finished with another --fork-of; without ")
    stub.legs, stub.fork_of = 5, "another"
    _, one = only_run(stub)
    result = {"scripts": [now], "data": same, "policies": [{"step": 10}, {"step": 5}]}
    result["forked_from"] = {"run": str(stub.folder / "work" / "another")}
    (stub.folder / "g.json").write_text(json.dumps(result))
    assert run.is_finished("g", one, stub) and not capsys.readouterr().out


@pytest.mark.parametrize("cpus, gpus, found", [(4, 0, True), (5, 0, False), (4, 1, False)])
def test_a_node_has_all_that_a_run_wants(cpus, gpus, found, stub, monkeypatch):
    """Not one of it on one node, and the rest on another, or on one that is gone."""
    nodes = [(True, {"CPU": 4.0}), (True, {"CPU": 2.0, "GPU": 1.0}), (False, {"CPU": 9, "GPU": 9})]
    nodes = [{"Alive": alive, "Resources": resources} for alive, resources in nodes]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "remote", Mock())
    stub.cpus, stub.gpus = cpus, gpus
    if found:
        assert run.run({}, stub) == {}
        given = ray.remote.call_args.kwargs
        assert (given["num_cpus"], given["num_gpus"]) == (cpus, gpus)
        return
    with pytest.raises(ArgumentTypeError, match=f"^--cpus {cpus} --gpus {gpus}: no node of local"):
        run.run({}, stub)


def test_the_cluster_that_is_named_is_joined_or_one_line_says_why_not(stub, monkeypatch):
    """Its workers have the user's modules."""
    monkeypatch.setattr(ray, "init", Mock())
    monkeypatch.setattr(signal, "signal", Mock())
    monkeypatch.setenv("PYTHONPATH", "/their/modules")
    with socket.create_server(("127.0.0.1", 0)) as server:
        stub.address = f"127.0.0.1:{server.getsockname()[1]}"
        run.connect(stub)
        given = ray.init.call_args.kwargs
        environment = {"env_vars": {"PYTHONPATH": "/their/modules"}}
        assert (given["address"], given["runtime_env"]) == (stub.address, environment)
        ray.init.side_effect = ray.exceptions.AuthenticationError("no token")
        with pytest.raises(ValueError, match=f"^--address {stub.address}: no token"):
            run.connect(stub)
    monkeypatch.setattr(ray, "init", None)  # where nobody listens it is not even tried
    with pytest.raises(ValueError, match=f"^--address {stub.address}: .*Connection refused"):
        run.connect(stub)


@pytest.fixture
def grids(stub, monkeypatch):
    """What the program would run, and in which folder."""
    grids = SimpleNamespace(given=[], folder=None)

    def run_all(runs, args):
        grids.given.append(runs)
        grids.folder = args.folder
        return {}

    monkeypatch.setattr(run, "run", run_all)
    monkeypatch.setattr(run, "connect", lambda args: None)
    monkeypatch.chdir(stub.folder.parent)
    return grids


def test_a_relative_folder_is_where_the_grid_began(grids, stub, capsys):
    """Whatever a worker's is."""
    assert run.main([*WORDS, "2"]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert (first, second) == (
        "2 runs, 0 of them finished before",
        f"logs are in {stub.folder / 'logs'}",
    )
    assert last == f"0 runs failed, results are in {stub.folder}"
    assert grids.folder == stub.folder and len(grids.given[0]) == 2


def test_ctrl_c_says_how_to_go_on(grids, monkeypatch):
    monkeypatch.setattr(run, "run", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(SystemExit, match="^stopped: the same command goes on from the last eval"):
        run.main([*WORDS, "1"])


def test_a_study_is_its_grids_and_forks_run_last(grids, monkeypatch):
    """Options beside it change all of them."""
    part = {"tasks": ["door-demo"], "methods": ["bear"]}
    forks = part | {"seeds": 1, "options": "--beta 2 --fork-of {task}-{seed}"}
    why = {"grid": [forks, part | {"seeds": 2, "options": ""}]}
    monkeypatch.setattr(store, "studies", lambda: {"other": {}, "why": why})
    assert run.main(["--study", "why", "--folder", "grid", "--total-steps", "11"]) == 0
    first, last = grids.given
    assert [*first] == [f"door-demo__bear__{seed}__total-steps-11" for seed in (0, 1)]
    ((name, one),) = last.items()
    assert name == f"{NAME}__beta-2__total-steps-11"
    assert (one.grid.fork_of, one.grid.study) == ("{task}-{seed}", "why")
    with pytest.raises(ArgumentTypeError, match="^--study what: there are other, why$"):
        run.grids_of("what")
