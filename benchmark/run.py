"""Runs a grid of tasks, methods and seeds, on one machine or on a cluster of Ray's.

    python benchmark/run.py --tasks door-demo --seeds 1 --total-steps 200 --eval-every 20
    python benchmark/run.py --tasks door-human --seeds 1 --num-seeds 5 --gpus 0.5
    python benchmark/run.py --tasks door-human --methods bear+sn uwac --beta 2.5 --legs 25000
    python benchmark/run.py --study warm-ups

Options that are not listed below, such as --warmup-steps or --matmul-precision, go to the scripts,
each to the methods that have it: --beta 2.5 leaves bear as it is. They are checked before anything
runs. With --legs a run stops after so many updates, again and again, and evaluate.py plays all
policies, for --eval-episodes episodes. With --fork-of a run begins as a copy of another, such as
its warm-up, and goes on with its own method and arguments. --study runs the grids of a study in
results/studies.toml; options beside it change all of them.

Each run is a process of its own and leaves one small file in --folder for report.py: its
result.json with method, command and what evaluate.py found. Its own folder is in --folder/work, its
log in --folder/logs. The same command makes no run again whose file is there, and goes on with one
that was killed. A line for each evaluation gives the scores; a bar counts the updates of all runs.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # to start from any folder

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shlex
import signal
import socket
import subprocess
from argparse import ArgumentTypeError
from statistics import mean
from typing import Literal, NamedTuple

try:
    import ray
except ImportError:
    sys.exit("error: run.py needs Ray: pip install ray==2.60.0")
import tyro
from pydantic import NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass
from tqdm import tqdm

import d4rl
import uwac
from benchmark import files, store
from benchmark.methods import METHODS, script_of
from benchmark.policies import POLICIES, fork


@dataclass
class Args:
    tasks: files.OneOrMore[str] = ("door-human",)  # --env-id of the scripts
    methods: files.OneOrMore[Literal[*METHODS]] = ("bear", "uwac")  # see benchmark/methods.py
    seeds: PositiveInt = 5  # of each task and method: 0, 1, ... (the paper has 5)
    legs: PositiveInt | None = None  # updates until evaluate.py plays all policies, and so on
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


def split(words: list[str]) -> list[list[str]]:
    """Options with their values."""
    options: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not options:
            options.append(word.split("=", 1))
        else:
            options[-1].append(word)
    return options


def has(method: str, option: list[str]) -> bool:
    """Whether the method's script has it. Ends as the script would where its value is wrong."""
    script = script_of(METHODS[method].command)
    words = ["--env-id", "", *option]
    _, unknown = tyro.cli(script.Args, args=words, return_unknown_args=True)
    return not unknown


def options_of(method: str, options: list[list[str]], methods: tuple[str, ...]) -> list[list[str]]:
    """The options that the method has, and those that no method has, for its script to refuse."""
    chosen = []
    for option in options:
        if has(method, option) or not any(has(other, option) for other in methods):
            chosen.append(option)
        else:
            print(f"{method} has no {option[0]}, and runs without it")
    return chosen


@functools.cache
def file_of(task: str, dataset_path: Path | None) -> tuple[Path, str]:
    """The file to train on, and its SHA-256. Found here, once, so that no worker finds another, and
    no two download the same. Raises ValueError and OSError."""
    path = (dataset_path or d4rl.download(task)).expanduser().absolute()
    return path, files.checksum(path)


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
    return runs


def grids_of(study: str) -> list[list[str]]:
    """The words of run.py for each part of a study. Raises ArgumentTypeError."""
    studies = store.studies()
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
    return files.read_json(file) if file.exists() else {"history": [], "updates": 0}


def source_of(run: Run, args: Args) -> str:
    """The folder of the run that it goes on from; empty where it begins by itself."""
    if not run.grid.fork_of:
        return ""
    source = run.grid.fork_of.format(task=run.args.env_id, seed=run.args.seed)
    return str(args.folder / "work" / Path(source).expanduser())


def begin_fork(run: Run, run_dir: Path, args: Args) -> None:
    """Copies what it goes on from into its folder, unless it has begun. Raises ValueError, also
    where it began as a copy of something else, or of nothing."""
    source, copied = source_of(run, args), run_dir / "forked_from.json"
    if (run_dir / "checkpoint.pt").exists():
        begun = files.read_json(copied)["run"] if copied.exists() else ""
        if begun != source:
            how = f"as a copy of {begun}" if begun else "by itself"
            raise ValueError(f"{run_dir}: began {how}, with another --fork-of; move it away")
    elif source:
        fork(Path(source), run_dir, script_of(run.words[0]).Agent, run.args)


def train(name: str, run: Run, args: Args) -> dict:
    """One run, from its checkpoint if there is one; returns its result. Raises RuntimeError where a
    signal ended it, and ValueError and OSError where trying again is in vain."""
    if files.checksum(run.data) != run.sha256:
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
    evaluate += ["--episodes", str(run.args.eval_episodes), "--policies", *POLICIES]
    total, legs = run.args.total_steps, run.grid.legs
    ends = [*range(legs, total, legs), total] if legs else [total]
    code = 0
    with open(log_file, "a") as log:
        # The run inherits this lock: one that outlives a lost worker is waited for, not doubled.
        with contextlib.suppress(OSError):  # without locks the run's own refuses a second
            fcntl.flock(log, fcntl.LOCK_EX)
        begin_fork(run, run_dir, args)
        call = functools.partial(subprocess.call, stdout=log, stderr=log, env=environment)
        for step in ends:
            updates = result_of(run_dir)["updates"]
            if code == 0 and updates < step:
                code = call([*training, str(step)])
            if code == 0 and legs and updates <= step:  # again, if that is as far as it came
                code = call(evaluate)
    result = result_of(run_dir)
    if code == 0 and result["updates"] >= total:
        if legs:
            result["policies"] = files.read_json(run_dir / "evaluation.json")
        return result | {"commit": files.commit(ROOT)}
    *_, last = log_file.read_text("utf-8", "replace").strip().split("\n")
    message = f"exit code {code}: {last or 'no word'} ({log_file})"
    by_signal = code < 0 or code > 128
    raise RuntimeError(message) if by_signal else ValueError(message)


def work(root: str, task: bytes) -> dict:
    """`train` on a worker, which finds our modules before all others: Ray puts the current folder
    before its PYTHONPATH."""
    sys.path.insert(0, root)
    function, *given = ray.cloudpickle.loads(task)
    return function(*given)


def keep(name: str, result: dict, args: Args, run: Run) -> None:
    """Leaves the run's small file in --folder."""
    result["data"]["max_reward"] = store.max_reward(result["data"])
    result["data"]["path"] = Path(result["data"]["path"]).name
    result |= {"method": run.method, "command": shlex.join(["python", *run.words])}
    if run.grid.study:
        result["study"] = run.grid.study
    copied = args.folder / "work" / name / "forked_from.json"
    if copied.exists():
        result["forked_from"] = files.read_json(copied)
    files.write_json(args.folder / f"{name}.json", result)


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
    seen = {name: result_of(args.folder / "work" / name) for name in runs}
    total = sum(one.args.total_steps for one in runs.values())
    before = sum(result["updates"] for result in seen.values())
    failed = {}
    with tqdm(total=total, initial=before, unit=" updates", smoothing=0) as bar:
        while waiting:
            done, _ = ray.wait([*waiting], timeout=10)
            for name in waiting.values():
                result = result_of(args.folder / "work" / name)
                for row in result["history"][len(seen[name]["history"]) :]:
                    bar.write(f"{name}: {scores_of(row, runs[name])}")
                bar.update(result["updates"] - seen[name]["updates"])
                seen[name] = result
            for reference in done:
                name = waiting.pop(reference)
                try:
                    keep(name, ray.get(reference), args, runs[name])
                except ray.exceptions.RayError as error:
                    failed[name] = getattr(error, "cause", None) or error
                    bar.total -= runs[name].args.total_steps - seen[name]["updates"]
                    bar.write(f"{name}: {failed[name]}", file=sys.stderr)
                else:
                    bar.write(f"{name}: finished, {len(waiting)} to go")
    return failed


def scores_of(row: dict, run: Run) -> str:
    """An evaluation in words."""
    where = " (warm-up)" if row["step"] <= run.args.warmup_steps else ""
    scores = [f"{key} {mean(row[key]):.1f}" for key in ("score", "score_sample") if key in row]
    return f"{row['step']:,} of {run.args.total_steps:,} updates{where}: {', '.join(scores)}"


def is_finished(name: str, run: Run, args: Args) -> bool:
    """Whether its file is there; says so where that is of another script, of other data, or was
    made in another way."""
    file = args.folder / f"{name}.json"
    if not file.exists():
        return False
    finished = files.read_json(file)
    before = store.scripts_of(finished) | {"data file": finished["data"].get("sha256")}
    played = [one["step"] for one in finished.get("policies", [])]
    source = finished.get("forked_from", {}).get("run", "")
    before |= {"--legs": min(played, default=0), "--fork-of": source}
    script = script_of(run.words[0])
    now = uwac.checksums(script.Agent, script.update) | {"data file": run.sha256}
    first = min(run.grid.legs, run.args.total_steps) if run.grid.legs else 0
    now |= {"--legs": first, "--fork-of": source_of(run, args)}
    for what, sha256 in before.items():
        if None not in (sha256, now.get(what)) and sha256 != now[what]:
            print(f"{name}: finished with another {what}; without {file} it would run again")
    return True


def connect(args: Args) -> None:
    """To Ray, or to a new one on this machine. Raises ValueError."""
    host, _, port = args.address.rpartition(":")
    try:
        if port.isdecimal():  # where nothing listens Ray would try for a quarter of an hour
            socket.create_connection((host, int(port)), timeout=10).close()
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}  # it would warn of tokens
        modules = {"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}}  # the user's
        ray.init(address=args.address, runtime_env=modules, **quiet)
    except (OSError, ray.exceptions.RayError) as error:  # such as a token that is missing
        raise ValueError(f"--address {args.address}: {error}") from error
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))  # Ray would print its stack


def main(words: list[str]) -> int:
    """The number of runs that failed. Raises ArgumentTypeError, ValueError and OSError."""
    parse = functools.partial(tyro.cli, Args, description=__doc__, return_unknown_args=True)
    args, options = parse(args=words)
    parts = [(args, options)]
    if args.study:
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
        files.try_to_write(folder)
    connect(args)
    print(f"logs are in {logs}", flush=True)
    failed = {}
    try:
        for forked in (False, True):  # what is copied must be there
            now = {name: one for name, one in left.items() if bool(one.grid.fork_of) == forked}
            failed |= run(now, args) if now else {}
    except KeyboardInterrupt:
        seen = f"benchmark/report.py {args.folder / 'work'} shows what there is"
        sys.exit(f"stopped: the same command goes on from the last evaluations; {seen}")
    print(f"{len(failed)} runs failed, results are in {args.folder}")
    return len(failed)


if __name__ == "__main__":
    with files.errors_in_one_line():
        sys.exit(main(sys.argv[1:]) > 0)
