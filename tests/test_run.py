"""benchmark/run.py: what a grid is, that nothing runs twice, what is done with failures."""

import fcntl
import json
import os
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
from benchmark import files, methods, run
from benchmark.methods import METHODS, Method

for module in (run, files, sys.modules[__name__]):
    ray.cloudpickle.register_pickle_by_value(module)  # workers cannot import it from here

DEMO = d4rl.HERE / d4rl.DEMO
NAME = "door-demo__bear__0"  # of a grid's only run


@dataclass
class StubArgs:
    env_id: str
    seed: int
    beta: float = 1.0
    dataset_path: Path | None = None
    total_steps: int = 10
    warmup_steps: int = 5


class Processes:
    """In place of a run's: training leaves its updates, with an evaluation at the fifth and the
    last; evaluate.py a record of each policy. One whose turn in `codes` is a number only ends."""

    def __init__(self):
        self.codes = []
        self.started = []

    def __call__(self, command, stdout, stderr, env):
        python, program, *words = map(str, command)
        assert python == sys.executable and stdout is stderr
        self.started.append((Path(program).name, words, env))
        print("the last word", file=stdout, flush=True)
        code = self.codes.pop(0) if self.codes else None
        if code is not None:
            return code
        value = lambda option: words[len(words) - words[::-1].index(option)]  # the last counts
        if program.endswith("evaluate.py"):
            folder = Path(words[0])
            step = run.result_of(folder)["updates"]
            about = {"step": step, "episodes": int(value("--episodes"))}
            file = folder / "evaluation.json"
            records = json.loads(file.read_text()) if file.exists() else []
            policies = words[words.index("--policies") + 1 :]
            file.write_text(json.dumps(records + [about | {"policy": who} for who in policies]))
        else:
            folder, step = Path(value("--run-dir")), int(words[-1])
            folder.mkdir(exist_ok=True)
            history = [{"step": at, "score": [1.0, 4.0]} for at in sorted({min(5, step), step})]
            data = {"path": value("--dataset-path"), "max_reward": 1}
            result = {"history": history, "updates": step, "data": data}
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
    sums = lambda agent, update: {"stub.py": "now", "uwac.py": "now, too"}
    script = SimpleNamespace(Args=StubArgs, Agent=None, update=None, checksums=sums)
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
    assert run.has("bear", "--cuda-graph") and run.has("bear", "--no-cuda_graph")
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


@pytest.mark.parametrize("methods, option, warned", [
    (("bear", "uwac"), [], True),
    (("bear", "bear+sn", "uwac"), [], False),
    (("bear", "uwac"), ["--spectral-norm", "False"], False),
])  # fmt: skip
def test_bear_without_norm_beside_uwac_with_it_is_said(methods, option, warned, capsys):
    """Of a hand: on hopper no method has the norm."""
    args = run.Args(tasks=("hopper-medium", "door-demo"), methods=methods, seeds=1, dry_run=True)
    run.grid(args, option)
    lines = [line for line in capsys.readouterr().out.splitlines() if "spectral norm and" in line]
    assert [line.split(":")[0] for line in lines] == ["door-demo"] * warned


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
if "2.0" in sys.argv:
    sys.exit("error: no good")
if starts == 0:
    os.kill(os.getpid(), 9)
history = [{"step": 5, "score": [1.0, 4.0]}, {"step": 10, "score": [2.0, 4.0]}]
result = {"history": history, "updates": 10, "data": {"path": "/a/b", "max_reward": 1}}
(folder / "result.json").write_text(json.dumps(result))
"""


def test_ray_starts_again_what_was_killed_and_no_error(stub, tmp_path, monkeypatch, capsys):
    """Also where somebody's benchmark.py lies in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("benchmark.py").write_text("")
    Path("stub.py").write_text(STUB)
    settings = {"include_dashboard": False, "log_to_driver": False}
    runs = run.grid(stub, []) | run.grid(stub, ["--beta", "2.0"])
    with ray.init("local", num_cpus=2, object_store_memory=10**8, **settings):
        ((failed, error),) = run.run(runs, stub).items()
    assert [len([*(stub.folder / "work" / name).glob("start-*")]) for name in runs] == [2, 1]
    assert "exit code 1: error: no good" in str(error) and failed == f"{NAME}__beta-2.0"
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(NAME)]
    steps = "5 of 10 updates (warm-up): score 2.5", "10 of 10 updates: score 3.0"
    assert lines[:2] == [f"{NAME}: {words}" for words in steps]
    assert lines[2].startswith(f"{NAME}: finished, ")
    result = json.loads((stub.folder / f"{NAME}.json").read_text())
    assert result.keys() > {"commit", "method", "command"} and result["data"]["path"] == "b"
    stub.dry_run = True  # of what is left
    assert run.main(stub, []) == 0
    assert capsys.readouterr().out.endswith("1 runs, 1 of them finished before\n")


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


def test_after_each_leg_the_policies_are_played_once_or_what_is_missing_again(stub, processes):
    stub.legs, stub.leg_episodes = 4, 3
    for _ in range(2):
        result = run.train(*only_run(stub), stub)
    steps = [words[-1] for program, words, _ in processes.started if program == "stub.py"]
    assert steps == ["4", "8", "10"] and len(processes.started) == 6
    found = [(one["step"], one["policy"], one["episodes"]) for one in result["policies"]]
    assert found == [(step, policy, 3) for step in (4, 8, 10) for policy in run.POLICIES]
    file = stub.folder / "work" / NAME / "evaluation.json"
    file.write_text(json.dumps(json.loads(file.read_text())[:-1]))
    processes.codes = [1]
    with pytest.raises(ValueError, match="^exit code 1: the last word"):
        run.train(*only_run(stub), stub)
    assert processes.started[-1][0] == "evaluate.py"


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


def test_how_far_a_run_is(stub):
    """By result.json at 20 updates, and by the bars of two parts, of which the second has 20 more
    of the 50 that lead to the end of a leg, or of the run."""
    _, one = only_run(stub, "--total-steps", "100")
    work, log = stub.folder / "work" / "a", stub.folder / "logs" / "a.log"
    assert run.updates_now("a", one, stub) == 0
    bars = [" 30%|# | 30/100 [00:09<00:21, 3.3it/s]\n40/100: mmd 0.1\n"]
    bars += ["\r  0%| | 0/50 [00:00<?, ?it/s]\r 40%|# | 20/50 [00:09<00:21, 2.2it/s]"]
    bars += ["\r 40%|# | 10/30 [00:09<00:21, 2.2it/s]"]
    bars += ["\r 100%|# | 30/30 [00:09<00:21, 2.2it/s]"]  # and no evaluation yet
    found = []
    for i, bar in enumerate(bars):
        with open(log, "a") as file:
            file.write(bar)
        found.append(run.updates_now("a", one, stub))
        work.mkdir(exist_ok=True)
        (work / "result.json").write_text('{"history": [], "updates": 50}')
        stub.legs = 80 if i else None
    assert found == [30, 70, 60, 50]


def test_a_line_of_what_runs():
    """30 updates in 60 s, and 160 to go."""
    totals = dict.fromkeys("abc", 1_000)
    first = {"a": 990, "b": 900, "c": 920}
    last = {"a": 990, "b": 910, "c": 920}
    now = {"a": 1_000, "b": 920, "c": 920}
    line = run.state_of(totals, first, last, now, 60.0)
    assert line[5:] == ": b has 920 of 1,000 updates, all done in 0:05:20 at this rate"
    line = run.state_of(totals, now, now, now, 60.0)
    assert line[5:] == ": no update in the last minute"


def test_a_run_that_another_script_made_is_said(stub, capsys):
    _, one = only_run(stub)
    assert not run.is_finished("a", one, stub)
    same, now = {"sha256": one.sha256}, run.scripts_now(one)
    for name, scripts, of_data in (
        ("a", {"uwac.py": "another"}, same),
        ("b", now, same),
        ("c", {"mine.py": "x"}, same),
        ("d", now, {"sha256": "another"}),
    ):
        result = {"scripts": [scripts], "data": of_data}
        (stub.folder / f"{name}.json").write_text(json.dumps(result))
        assert run.is_finished(name, one, stub)
    by_script, by_data = capsys.readouterr().out.splitlines()
    assert by_script.startswith("a: finished with another uwac.py; without ")
    assert by_data.startswith("d: finished with another data file; without ")


class Ray:
    """In its place, what runs each task at once, and has the first ready; it asserts what it gets
    where a test says what that is."""

    exceptions = ray.exceptions
    cloudpickle = SimpleNamespace(dumps=lambda task: task, loads=lambda task: task)
    wanted = {}

    def init(self, address, runtime_env, **_):
        assert address == self.wanted.get("address", "local")
        assert runtime_env == {"env_vars": {"PYTHONPATH": "/their/modules"}}

    def nodes(self):
        nodes = self.wanted.get("nodes", [(True, {"CPU": 9.0})])
        return [{"Alive": alive, "Resources": resources} for alive, resources in nodes]

    def remote(self, num_cpus, num_gpus, max_retries, retry_exceptions):
        assert (num_cpus, num_gpus) == self.wanted.get("resources", (1, 0))
        return lambda work: SimpleNamespace(remote=lambda *given: lambda: work(*given))

    def wait(self, references, timeout):
        return references[:1], references[1:]

    def get(self, reference):
        try:
            return reference()
        except (RuntimeError, ValueError) as error:
            failed = ray.exceptions.RayError(str(error))
            failed.cause = error
            raise failed from error


@pytest.fixture
def at_once(stub, monkeypatch):
    """The program's run of two seeds of the stub, without Ray; its exit code."""
    monkeypatch.setitem(sys.modules, "ray", Ray())
    monkeypatch.setattr(run, "ray", sys.modules["ray"])
    monkeypatch.setattr(Ray, "wanted", {})
    monkeypatch.setattr(run, "ROOT", Path(run.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", "/their/modules")
    words = f"--tasks door-demo --methods bear --seeds 2 --folder {stub.folder}"
    return lambda more="": command_line(run, f"{words} {more}", monkeypatch)


@pytest.mark.parametrize("cpus, gpus, found", [(4, 0, True), (5, 0, False), (4, 1, False)])
def test_a_node_has_all_that_a_run_wants(cpus, gpus, found, stub, at_once, processes):
    """Not one of it on one node, and the rest on another, or on one that is gone."""
    nodes = [(True, {"CPU": 4.0}), (True, {"CPU": 2.0, "GPU": 1.0}), (False, {"CPU": 9, "GPU": 9})]
    Ray.wanted = {"nodes": nodes, "resources": (cpus, gpus)}
    stub.cpus, stub.gpus = cpus, gpus
    if found:
        assert run.run(run.grid(stub, []), stub) == {}
        return
    with pytest.raises(ArgumentTypeError, match=f"^--cpus {cpus} --gpus {gpus}: no node of local"):
        run.run({}, stub)


def test_the_cluster_that_is_named_is_joined_or_one_line_says_why_not(
    at_once, stub, processes, monkeypatch, refused
):
    words = f"--tasks door-demo --methods bear --seeds 1 --folder {stub.folder} --address"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        Ray.wanted = {"address": address}
        assert at_once(f"--address {address} --seeds 1") == 0
        error = ray.exceptions.AuthenticationError("no token")
        monkeypatch.setattr(Ray, "init", Mock(side_effect=error))
        line = refused(f"{words} {address} --total-steps 11", run)
        assert line.startswith(f"error: --address {address}: no token")
    monkeypatch.setattr(Ray, "init", None)  # where nobody listens it is not even tried
    line = refused(f"{words} {address} --total-steps 11", run)
    assert line.endswith("Connection refused")


def test_every_minute_a_line_on_all_but_what_failed(stub, at_once, processes, monkeypatch):
    lines = []
    monkeypatch.setattr(run, "state_of", lambda *given: lines.append(given) or "")
    runs = run.grid(stub, []) | run.grid(stub, ["--beta", "2"])
    good, bad = runs
    processes.codes = [None, 1, 1]
    run.run(runs, stub)
    assert lines == []  # in less than a minute
    monkeypatch.setattr(run, "EVERY", 0)
    assert [*run.run(runs, stub)] == [bad]
    (_, _, _, before, _), (totals, _, last, now, _) = lines
    assert before == last == {good: 10, bad: 0} and totals == now == {good: 10}


def test_the_exit_code_says_whether_a_run_failed(at_once, stub, processes, capsys):
    assert at_once() == 0
    said = capsys.readouterr()
    lines = ["2 runs, 0 of them finished before", f"logs are in {stub.folder / 'logs'}"]
    assert said.out.splitlines()[:2] == lines
    assert said.out.splitlines()[-1] == f"0 runs failed, results are in {stub.folder}"
    assert len(list(stub.folder.glob("door-demo__bear__[01].json"))) == 2
    processes.codes = [1, None]
    assert at_once("--beta 2") == 1
    assert capsys.readouterr().err.count("exit code 1: the last word") == 1


def test_ctrl_c_says_how_to_go_on(at_once, stub, monkeypatch, capsys):
    monkeypatch.setattr(Ray, "wait", Mock(side_effect=KeyboardInterrupt))
    assert at_once() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stopped: the same command goes on from the last evaluations; ")


def test_a_relative_folder_is_where_the_grid_began(at_once, stub, processes, monkeypatch):
    """Though workers have current folders of their own."""
    monkeypatch.chdir(stub.folder.parent)
    remote = Ray.remote
    moved = lambda self, **settings: os.chdir("/") or remote(self, **settings)
    monkeypatch.setattr(Ray, "remote", moved)
    assert at_once("--folder grid --seeds 1") == 0
    assert len(list(stub.folder.glob("*.json"))) == 1


STUDIES = """
[other]
[[why.grid]]
tasks = ["door-demo"]
methods = ["bear"]
seeds = 1
options = "--beta 2 --fork-of {task}-{seed}"
[[why.grid]]
tasks = ["door-demo"]
methods = ["bear"]
seeds = 2
options = ""
"""


def test_a_study_is_its_grids_and_forks_run_last(at_once, stub, processes, monkeypatch, tmp_path):
    """Options beside it change all of them."""
    (tmp_path / "studies.toml").write_text(STUDIES)
    monkeypatch.setattr(run, "STUDIES", tmp_path / "studies.toml")
    forks = []

    def fork(source, run_dir, agent_type, args):
        forks.append((source, run_dir.name, args.beta, len(processes.started)))

    monkeypatch.setattr(run, "fork", fork)
    words = ["--study", "why", "--folder", str(stub.folder), "--total-steps", "11"]
    given = run.tyro.cli(run.Args, args=words, return_unknown_args=True)
    assert run.main(*given, words) == 0
    commands = [words for _, words, _ in processes.started]
    seeds = [words[words.index("--seed") + 1] for words in commands]
    assert seeds == ["0", "1", "0"] and all(words[-1] == "11" for words in commands)
    assert forks == [
        (stub.folder / "work" / "door-demo-0", f"{NAME}__beta-2__total-steps-11", 2, 2)
    ]
    result = json.loads((stub.folder / f"{NAME}__total-steps-11.json").read_text())
    assert (result["study"], result["updates"]) == ("why", 11)
    with pytest.raises(ArgumentTypeError, match="^--study what: there are other, why$"):
        run.grids_of("what")
