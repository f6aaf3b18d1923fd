"""Runs a grid of tasks, methods and seeds, on one machine or on a cluster of Ray's.

    python benchmark/run.py --tasks door-demo --seeds 1 --total-steps 200 --eval-every 20
    python benchmark/run.py --tasks door-human --seeds 1 --num-seeds 5 --gpus 0.5
    python benchmark/run.py --tasks door-human --methods bear+sn uwac --beta 2.5 --legs 25000
    python benchmark/run.py --study warm-ups

Options that are not listed below, such as --warmup-steps or --matmul-precision, go to the scripts,
each to the methods that have it: --beta 2.5 leaves bear as it is. They are checked before anything
runs. With --legs a run stops after so many updates, again and again, and evaluate.py plays all
policies. With --fork-of a run begins as a copy of another, such as its warm-up, and goes on with
its own method and arguments. --study runs the grids of a study in results/studies.toml; options
beside it change all of them.

Each run is a process of its own and leaves one small file in --folder for report.py: its
result.json with method, command and what evaluate.py found. Its own folder is in --folder/work, its
log in --folder/logs. The same command makes no run again whose file is there, and goes on with one
that was killed. A line a minute says what runs, how far, and when all will be done.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # to start from any folder

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import os
import re
import shlex
import signal
import socket
import subprocess
import time
import tomllib
from argparse import ArgumentTypeError
from datetime import datetime, timedelta
from statistics import mean
from typing import Literal, NamedTuple

try:
    import ray
except ImportError:
    sys.exit("error: run.py needs Ray: pip install ray==2.60.0")
import tyro
from pydantic import NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass

import d4rl
import uwac
from benchmark.files import (
    OneOrMore,
    checksum,
    commit,
    errors_in_one_line,
    read_json,
    try_to_write,
    write_json,
)
from benchmark.methods import METHODS, script_of
from benchmark.policies import POLICIES, fork
from benchmark.store import max_reward, scripts_of

STUDIES = ROOT / "benchmark" / "results" / "studies.toml"
EVERY = 60  # seconds between lines of what runs


@dataclass
class Args:
    tasks: OneOrMore[str] = ("door-human",)  # --env-id of the scripts
    methods: OneOrMore[Literal[*METHODS]] = ("bear", "uwac")  # see benchmark/methods.py
    seeds: PositiveInt = 5  # of each task and method: 0, 1, ... (the paper has 5)
    legs: PositiveInt | None = None  # updates until evaluate.py plays all policies, and so on
    leg_episodes: PositiveInt = 20  # of each policy then
    # run of this --folder, or folder of another, from whose checkpoint these go on; {task} and
    # {seed} stand for their own
    fork_of: str | None = None
    study: str | None = None  # name of a study, whose tasks, methods and seeds these are
    cpus: PositiveInt = 1  # threads of a run; as many runs at once as that leaves room for
    gpus: NonNegativeFloat = 0.0  # share of a GPU for a run
    address: str = "local"  # or of a Ray cluster, whose nodes see the same files
    dry_run: bool = False  # print the commands that are left to run, and run nothing
    folder: Path = Path("runs/grid")  # for the small result files, the runs and their logs


class Run(NamedTuple):
    method: str
    words: list[str]  # the script with its arguments but --run-dir
    args: uwac.Args  # what the script makes of them
    data: Path | None  # the file that it trains on; None in a dry run
    sha256: str | None  # of the file
    grid: Args  # whose --legs and --fork-of are its own

    def ends(self) -> list[int]:
        """Updates after which training stops."""
        total, legs = self.args.total_steps, self.grid.legs
        return [*range(legs, total, legs), total] if legs else [total]


def split(words: list[str]) -> list[list[str]]:
    """Options with their values. Raises ArgumentTypeError on a value without an option."""
    options: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            options.append(word.split("=", 1))
        elif options:
            options[-1].append(word)
        else:
            raise ArgumentTypeError(f"{word}: not an option")
    return options


def has(method: str, option: str) -> bool:
    """Whether the method's script has the option, --no-OPTION too."""
    names = {field.name for field in dataclasses.fields(script_of(METHODS[method].command).Args)}
    name = option.removeprefix("--").replace("-", "_")
    return name in names or name.removeprefix("no_") in names


def options_of(method: str, options: list[list[str]], methods: tuple[str, ...]) -> list[list[str]]:
    """The options that the method has, and those that no method has, for its script to refuse."""
    chosen = []
    for option in options:
        if has(method, option[0]) or not any(has(other, option[0]) for other in methods):
            chosen.append(option)
        else:
            print(f"{method} has no {option[0]}, and runs without it")
    return chosen


@functools.cache
def file_of(task: str, dataset_path: Path | None) -> tuple[Path, str]:
    """The file to train on, and its SHA-256. Found here, once, so that no worker finds another, and
    no two download the same. Raises ValueError and OSError."""
    path = (dataset_path or d4rl.download(task)).expanduser().absolute()
    return path, checksum(path)


def run_of(method: str, words: list[str], grid: Args) -> Run:
    """Ends as the script would where arguments are wrong."""
    args = tyro.cli(script_of(words[0]).Args, args=words[1:])
    data = (None, None) if grid.dry_run else file_of(args.env_id, args.dataset_path)
    return Run(method, words, args, *data, grid)


def name_of(task: str, method: str, seed: int, options: list[list[str]]) -> str:
    """A file's name with the options in it, so that runs of other protocols stand side by side; a
    hash in their place, the same for all seeds, where that is long or would be a path."""
    protocol = "__".join("-".join(option).removeprefix("--") for option in options)
    name = f"{task}__{method}__{seed}__{protocol}".removesuffix("__")
    if re.fullmatch(r"[\w.+-]{1,80}", name, re.ASCII):
        return name
    about = f"{task}__{protocol}"
    task = re.sub(r"[^\w.+-]", "-", task, flags=re.ASCII)[:40]
    return f"{task}__{method}__{seed}__{hashlib.sha256(about.encode()).hexdigest()[:8]}"


def warn_of_norm(task: str, runs: list[Run]) -> None:
    """Where UWAC alone has spectral norm, two things differ between the methods."""
    norms = [getattr(run.args, "spectral_norm", False) for run in runs]
    kinds = {(run.method.startswith("bear"), norm) for run, norm in zip(runs, norms)}
    if kinds == {(True, False), (False, True)}:
        fair = "add --methods bear+sn, or uwac-no-sn, to see what the weights do"
        print(f"{task}: here UWAC has spectral norm and BEAR has not; {fair}")


def grid(args: Args, words: list[str]) -> dict[str, Run]:
    """Each run by its name. Seeds are outermost: a grid that is stopped has every task and method
    about as often. Raises ArgumentTypeError."""
    options = split(words)
    given = {option.replace("_", "-") for option, *_ in options}
    if args.seeds > 1 and "--num-seeds" in given:
        raise ArgumentTypeError("--num-seeds trains seeds 0, 1, ... in one run: add --seeds 1")
    for name in ("--env-id", "--seed", "--run-dir", "--resume"):
        if name in given:
            instead = "see --tasks, --seeds, --folder"
            raise ArgumentTypeError(f"{name} is given to each run by this program; {instead}")
    chosen = {method: options_of(method, options, args.methods) for method in args.methods}
    runs = {}
    for seed in range(args.seeds):
        for task in args.tasks:
            for method, of_method in chosen.items():
                words = f"{METHODS[method].command} --env-id {task} --seed {seed}".split()
                words += [word for option in of_method for word in option]
                runs[name_of(task, method, seed, of_method)] = run_of(method, words, args)
    for task in args.tasks:
        warn_of_norm(task, [run for run in runs.values() if run.args.env_id == task])
    return runs


def grids_of(study: str) -> list[list[str]]:
    """The words of run.py for each part of a study. Raises ArgumentTypeError."""
    studies = tomllib.loads(STUDIES.read_text())
    if study not in studies:
        raise ArgumentTypeError(f"--study {study}: there are {', '.join(studies)}")
    return [
        [
            *("--tasks", *part["tasks"], "--methods", *part["methods"]),
            *("--seeds", str(part["seeds"]), *shlex.split(part["options"])),
        ]
        for part in studies[study]["grid"]
    ]


def result_of(run_dir: Path) -> dict:
    """A run's result.json so far."""
    file = run_dir / "result.json"
    return read_json(file) if file.exists() else {"history": [], "updates": 0}


def policies_played(step: int, run_dir: Path) -> int:
    file = run_dir / "evaluation.json"
    return sum(one["step"] == step for one in read_json(file)) if file.exists() else 0


def train(name: str, run: Run, args: Args) -> dict:
    """One run, from its checkpoint if there is one; returns its result. Raises RuntimeError where a
    signal ended it, and ValueError and OSError where trying again is in vain."""
    if checksum(run.data) != run.sha256:
        raise ValueError(f"{run.data}: not the file that run.py found under this name")
    environment = os.environ | {"OMP_NUM_THREADS": str(args.cpus)}
    if args.gpus == 0:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    run_dir = args.folder / "work" / name
    log_file = args.folder / "logs" / f"{name}.log"
    script, *words = run.words
    training = [sys.executable, ROOT / script, *words, "--dataset-path", run.data]
    training += ["--run-dir", run_dir, "--resume", "--total-steps"]
    evaluate = [sys.executable, ROOT / "benchmark/measure/evaluate.py", run_dir]
    evaluate += ["--episodes", str(run.grid.leg_episodes), "--policies", *POLICIES]
    code = 0
    with open(log_file, "a") as log:
        # The run inherits this lock: one that outlives a lost worker is waited for, not doubled.
        with contextlib.suppress(OSError):  # without locks the run's own refuses a second
            fcntl.flock(log, fcntl.LOCK_EX)
        call = functools.partial(subprocess.call, stdout=log, stderr=log, env=environment)
        for step in run.ends():
            if code == 0 and result_of(run_dir)["updates"] < step:
                code = call([*training, str(step)])
            if code == 0 and run.grid.legs and policies_played(step, run_dir) < len(POLICIES):
                code = call(evaluate)
    result = result_of(run_dir)
    if code == 0 and result["updates"] >= run.args.total_steps:
        if run.grid.legs:
            result["policies"] = read_json(run_dir / "evaluation.json")
        return result | {"commit": commit(ROOT)}
    lines = log_file.read_text("utf-8", "replace").split("\n")
    last = next((line for line in reversed(lines) if line), "no word")
    message = f"exit code {code}: {last} ({log_file})"
    by_signal = code < 0 or code > 128
    raise RuntimeError(message) if by_signal else ValueError(message)


def work(root: str, task: bytes) -> dict:
    """`train` on a worker, which finds our modules before all others: Ray puts the current folder
    before its PYTHONPATH."""
    sys.path.insert(0, root)
    function, *given = ray.cloudpickle.loads(task)
    return function(*given)


def show_progress(name: str, run: Run, rows: list[dict]) -> None:
    """A line for each evaluation."""
    for row in rows:
        where = " (warm-up)" if row["step"] <= run.args.warmup_steps else ""
        steps = f"{row['step']:,} of {run.args.total_steps:,} updates{where}"
        scores = [f"{key} {mean(row[key]):.1f}" for key in row if key in ("score", "score_sample")]
        print(f"{name}: {steps}: {', '.join(scores)}", flush=True)


def updates_now(name: str, run: Run, args: Args) -> int:
    """By result.json, and after it by the bar in the log: n of the m up to the next end."""
    done = result_of(args.folder / "work" / name)["updates"]
    log_file = args.folder / "logs" / f"{name}.log"
    bars = re.findall(rb"(\d+)/(\d+) \[", log_file.read_bytes()) if log_file.exists() else []
    end = next((end for end in run.ends() if end > done), done)
    for n, m in bars[-1:]:
        done = max(done, end - int(m) + int(n)) if int(n) < int(m) else done
    return done


def state_of(totals: dict, first: dict, last: dict, now: dict, seconds: float) -> str:
    """What runs, how far it is, and when all will be done: by the updates that each run is to have,
    had `seconds` ago, had at the last line and has now."""
    words = [
        f"{name} has {now[name]:,} of {total:,} updates"
        for name, total in totals.items()
        if last[name] < now[name] < total
    ]
    done = sum(now[name] - first[name] for name in totals)
    left = sum(total - now[name] for name, total in totals.items())
    if done > 0:
        words.append(f"all done in {timedelta(seconds=round(left * seconds / done))} at this rate")
    return f"{datetime.now():%H:%M}: {', '.join(words) or 'no update in the last minute'}"


def keep(name: str, result: dict, args: Args, run: Run) -> None:
    """Leaves the run's small file in --folder."""
    result["data"]["max_reward"] = max_reward(result["data"])
    result["data"]["path"] = Path(result["data"]["path"]).name
    result |= {"method": run.method, "command": shlex.join(["python", *run.words])}
    if run.grid.study:
        result["study"] = run.grid.study
    copied = args.folder / "work" / name / "forked_from.json"
    if copied.exists():
        result["forked_from"] = read_json(copied)
    write_json(args.folder / f"{name}.json", result)


def run(runs: dict[str, Run], args: Args) -> dict[str, Exception]:
    """All runs, as Ray tasks; returns what made the others fail."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(n.get("CPU", 0) >= args.cpus and n.get("GPU", 0) >= args.gpus for n in nodes):
        wanted = f"--cpus {args.cpus} --gpus {args.gpus}"
        raise ArgumentTypeError(f"{wanted}: no node of {args.address} has as many")
    remote = ray.remote(
        num_cpus=args.cpus,
        num_gpus=args.gpus,
        max_retries=2,  # of a run that a signal killed, or whose node was lost
        retry_exceptions=[RuntimeError],
    )(work)
    tasks = {name: ray.cloudpickle.dumps((train, name, one, args)) for name, one in runs.items()}
    waiting = {remote.remote(str(ROOT), task): name for name, task in tasks.items()}
    shown = {name: len(result_of(args.folder / "work" / name)["history"]) for name in runs}
    first = last = {name: updates_now(name, one, args) for name, one in runs.items()}
    began = said = time.monotonic()
    failed = {}
    while waiting:
        done, _ = ray.wait([*waiting], timeout=10)
        for name in waiting.values():
            rows = result_of(args.folder / "work" / name)["history"]
            show_progress(name, runs[name], rows[shown[name] :])
            shown[name] = max(shown[name], len(rows))
        for reference in done:
            name = waiting.pop(reference)
            try:
                keep(name, ray.get(reference), args, runs[name])
            except ray.exceptions.RayError as error:
                failed[name] = getattr(error, "cause", None) or error
                print(f"{name}: {failed[name]}", file=sys.stderr)
            else:
                print(f"{name}: finished, {len(waiting)} to go", flush=True)
        if time.monotonic() >= said + EVERY:
            said = time.monotonic()
            totals = {name: runs[name].args.total_steps for name in runs if name not in failed}
            now = {name: updates_now(name, runs[name], args) for name in totals}
            print(state_of(totals, first, last, now, said - began), flush=True)
            last = now
    return failed


def reach(address: str) -> None:
    """Raises OSError in seconds where nothing listens: Ray would try for a quarter of an hour."""
    host, _, port = address.rpartition(":")
    if port.isdecimal():  # neither local nor auto
        socket.create_connection((host, int(port)), timeout=10).close()


def scripts_now(run: Run) -> dict[str, str]:
    """SHA-256 of the files that would train it, by their names."""
    script = script_of(run.words[0])
    return getattr(script, "checksums", uwac.checksums)(script.Agent, script.update)


def is_finished(name: str, run: Run, args: Args) -> bool:
    """Whether its file is there; says so where that is of another script, or of other data."""
    file = args.folder / f"{name}.json"
    if not file.exists():
        return False
    finished = read_json(file)
    before = scripts_of(finished) | {"data file": finished["data"].get("sha256")}
    now = scripts_now(run) | {"data file": run.sha256}
    for what, sha256 in before.items():
        if None not in (sha256, now.get(what)) and sha256 != now[what]:
            print(f"{name}: finished with another {what}; without {file} it would run again")
    return True


def fork_all(runs: dict[str, Run], args: Args) -> None:
    """Copies what runs go on from into their folders, unless they have begun. Raises ValueError."""
    for name, one in runs.items():
        run_dir = args.folder / "work" / name
        if one.grid.fork_of and not (run_dir / "checkpoint.pt").exists():
            source = one.grid.fork_of.format(task=one.args.env_id, seed=one.args.seed)
            source = args.folder / "work" / Path(source).expanduser()
            fork(source, run_dir, script_of(one.words[0]).Agent, one.args)


def main(args: Args, options: list[str], words: list[str] = ()) -> int:
    """The number of runs that failed; `words` are the command's, where it makes a study's grids.
    Raises ArgumentTypeError, ValueError and OSError."""
    parts = [(args, options)]
    if args.study:
        parse = functools.partial(tyro.cli, Args, return_unknown_args=True)
        parts = [parse(args=[*part, *words]) for part in grids_of(args.study)]
    runs = {name: one for part in parts for name, one in grid(*part).items()}
    args.folder = args.folder.expanduser().resolve()  # a worker's current folder may be another
    left = {name: one for name, one in runs.items() if not is_finished(name, one, args)}
    print(f"{len(runs)} runs, {len(runs) - len(left)} of them finished before")
    if args.dry_run or not left:
        for one in left.values():
            print(shlex.join(["python", *one.words]))
        return 0
    logs = args.folder / "logs"
    for folder in (args.folder, args.folder / "work", logs):
        folder.mkdir(parents=True, exist_ok=True)
        try_to_write(folder)
    try:
        reach(args.address)
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}  # it would warn of tokens
        modules = {"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}}  # the user's
        ray.init(address=args.address, runtime_env=modules, **quiet)
    except (OSError, ray.exceptions.RayError) as error:  # such as a token that is missing
        raise ValueError(f"--address {args.address}: {error}") from error
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))  # Ray would print its stack
    print(f"logs are in {logs}", flush=True)
    failed = {}
    try:
        for forked in (False, True):  # what is copied must be there
            now = {name: one for name, one in left.items() if bool(one.grid.fork_of) == forked}
            fork_all(now, args)
            failed |= run(now, args)
    except KeyboardInterrupt:
        seen = f"benchmark/report.py {args.folder / 'work'} shows what there is"
        sys.exit(f"stopped: the same command goes on from the last evaluations; {seen}")
    print(f"{len(failed)} runs failed, results are in {args.folder}")
    return len(failed)


if __name__ == "__main__":
    with errors_in_one_line():
        given = tyro.cli(Args, description=__doc__, return_unknown_args=True)
        sys.exit(main(*given, sys.argv[1:]) > 0)
