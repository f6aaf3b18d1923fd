"""Runs a grid of tasks, methods and seeds, on one machine or on a cluster of Ray's.

    python benchmark/run.py --tasks door-demo --methods bear uwac --seeds 2 --total-steps 200
    python benchmark/run.py --tasks door-human --seeds 1 --num-seeds 5 --gpus 0.5

Options that are not listed below, such as --warmup-steps or --matmul-precision, go to the scripts
as they are. Each run is a process of its own and leaves one small file in --folder: its result.json
with method, command and memory, for benchmark/report.py. The same command makes no run again whose
file is there, and goes on with one that was killed.
"""

import fcntl
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import ray
import tyro

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import bear

METHODS = {
    "bear": "bear.py",
    "uwac": "uwac.py",
    "uwac-analytic": "uwac.py --variance analytic",
    # Without weights Var[Q] is a metric alone, for which the cheap estimate will do.
    "bear+sn": "uwac.py --weighting none --dropout 0 --spectral-norm True --variance analytic",
    "bear+dropout+sn": "uwac.py --weighting none --spectral-norm True --variance analytic",
    # Not in the paper: do the weights keep Q bounded without the norm that Adroit has?
    "uwac-no-sn": "uwac.py --spectral-norm False --variance analytic",
    # What of the authors' code are options here: README.md, "Paper, authors' code, here".
    "uwac-code": "uwac.py --weighting exp --beta 0.5 --weight-clip 1 --num-mmd-samples 4"
    " --spectral-norm True",
    "uwac-std": "uwac.py --weighting std",
    "uwac-ensemble": "benchmark/ensembles.py --members ensemble",
    "uwac-rem": "benchmark/ensembles.py --members rem",
}


@dataclass
class Args:
    tasks: tuple[str, ...] = ("door-human",)  # --env-id of the scripts
    methods: tuple[str, ...] = ("bear", "uwac")  # of METHODS, at the top of this file
    seeds: int = 5  # of each task and method: 0, 1, ... (the paper has 5)
    cpus: int = 1  # threads of a run; as many runs at once as that leaves room for
    gpus: float = 0.0  # share of a GPU for a run
    address: str = "local"  # or of a Ray cluster, whose nodes see the same files
    retries: int = 2  # more attempts at a run that was killed, or whose node was lost
    dry_run: bool = False  # print the commands that are left to run, and run nothing
    folder: Path = Path("runs/grid")  # for the small result files
    work: Path = Path("runs/grid/work")  # for the runs' own folders and logs


def refuse(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def grid(args: Args, options: list[str]) -> dict[str, list[str]]:
    """Each run's name and the script with its arguments but --run-dir. Seeds are outermost: a grid
    that is stopped has every task and method about as often. Ends the program on unknown names."""
    if min(len(args.tasks), len(args.methods), args.seeds, args.cpus) < 1:
        refuse("--tasks, --methods, --seeds and --cpus: at least one of each")
    if min(args.gpus, args.retries) < 0:
        refuse("--gpus and --retries must be at least 0")
    given = {word.partition("=")[0].replace("_", "-") for word in options}
    if args.seeds > 1 and "--num-seeds" in given:
        refuse("--num-seeds trains seeds 0, 1, ... in one run: it needs --seeds 1")
    for name in ("--env-id", "--seed", "--run-dir", "--resume"):
        if name in given:
            refuse(f"{name} is given to each run by this program; see --tasks, --seeds, --work")
    for method in args.methods:
        if method not in METHODS:
            refuse(f"--methods {method}: there are {', '.join(METHODS)}")
    tasks = set(bear.task_files())
    tasks |= {name.removesuffix("-v0") for name in tasks}  # a name without version is the paper's
    for task in args.tasks:
        if "--dataset-path" in given:
            break
        if task not in tasks:
            refuse(f"--tasks {task}: there are {', '.join(sorted(tasks))}")
        if not args.dry_run:
            bear.find_dataset(task)  # before two runs would download the same file
    # The options are in the name, so that runs of different protocols stand side by side.
    protocol = " ".join(options).replace(" --", "__").removeprefix("--")
    protocol = protocol.replace(" ", "-").replace("/", "-")
    runs = {}
    for seed in range(args.seeds):
        for task in args.tasks:
            for method in args.methods:
                words = f"{METHODS[method]} --env-id {task} --seed {seed}".split()
                runs[f"{task}__{method}__{seed}__{protocol}".rstrip("_")] = words + options
    return runs


def finished(run_dir: Path) -> dict | None:
    """The run's result after its last update; before that, or if its file is cut off, None."""
    try:
        result = json.loads((run_dir / "result.json").read_text())
    except (OSError, ValueError):
        return None
    last = result["history"][-1]["step"]
    return result if last == result["args"]["total_steps"] else None


def train(name: str, words: list[str], args: Args) -> dict:
    """One run, from its checkpoint if there is one; returns its result. Raises ValueError where
    trying again is in vain, and RuntimeError."""
    environment = os.environ | {"OMP_NUM_THREADS": str(args.cpus)}
    if args.gpus == 0:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    run_dir = args.work / name
    log_file = args.work / f"{name}.log"
    with open(log_file, "a") as log:
        # The run inherits this lock: one that outlives a lost worker is waited for, not doubled.
        fcntl.flock(log, fcntl.LOCK_EX)
        if result := finished(run_dir):
            return result
        command = [sys.executable, str(ROOT / words[0])]
        if (run_dir / "checkpoint.pt").exists():
            command += ["--resume", str(run_dir)]
        else:
            shutil.rmtree(run_dir, ignore_errors=True)
            command += [*words[1:], "--run-dir", str(run_dir)]
        ended = subprocess.run(command, check=False, stdout=log, stderr=log, env=environment)
        code = ended.returncode
    result = finished(run_dir)
    if code == 0 and result:
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # one run a worker
        return result | {"peak_mb": peak / 1024}
    lines = [line.strip("│─╭╮╰╯ ") for line in log_file.read_text(errors="replace").splitlines()]
    said = [line for line in lines if line and "full helptext" not in line]  # tyro's last words
    message = f"exit code {code}: {said[-1] if said else 'no word'} ({log_file})"
    # 2: wrong arguments or data. 3: diverged, as it would again.
    raise ValueError(message) if code in (2, 3) else RuntimeError(message)


def run(runs: dict[str, list[str]], args: Args) -> dict[str, Exception]:
    """All runs, as Ray tasks; returns what made the others fail."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(n.get("CPU", 0) >= args.cpus and n.get("GPU", 0) >= args.gpus for n in nodes):
        refuse(f"--cpus {args.cpus} --gpus {args.gpus}: no node of {args.address} has as many")
    remote = ray.remote(
        num_cpus=args.cpus,
        num_gpus=args.gpus,
        max_calls=1,  # a worker for each run, whose memory is then the run's
        max_retries=args.retries,
        retry_exceptions=[RuntimeError],
    )(train)
    waiting = {remote.remote(name, words, args): name for name, words in runs.items()}
    failed = {}
    while waiting:
        (done,), _ = ray.wait([*waiting])
        name = waiting.pop(done)
        try:
            result = ray.get(done)
        except ray.exceptions.RayError as error:
            failed[name] = getattr(error, "cause", None) or error
            print(f"{name}: {failed[name]}", file=sys.stderr)
            continue
        result["method"] = name.split("__")[1]
        result["command"] = shlex.join(["python", *runs[name]])
        result["args"] |= {"run_dir": None, "resume": None}  # folders mean nothing elsewhere
        result["data"]["path"] = Path(result["data"]["path"]).name
        part = args.folder / f"{name}.tmp"
        part.write_text(json.dumps(result, indent=1))
        part.replace(args.folder / f"{name}.json")  # there in whole or not at all
        score = mean(result["history"][-1]["score"])
        print(f"{name}: score {score:.1f}, {len(waiting)} runs left", flush=True)
    return failed


def main(args: Args, options: list[str]) -> int:
    """The exit code: 0, 1 if a run failed or nothing can be written, 2 for wrong arguments."""
    runs = grid(args, options)
    left = {name: runs[name] for name in runs if not (args.folder / f"{name}.json").exists()}
    print(f"{len(runs)} runs, {len(runs) - len(left)} of them finished before")
    if args.dry_run:
        for words in left.values():
            print(shlex.join(["python", *words]))
        return 0
    args.work = args.work.resolve()  # a worker's current folder may be another
    try:
        for folder in (args.folder, args.work):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        print(f"error: {error}; choose another --folder or --work", file=sys.stderr)
        return 1
    try:
        ray.init(address=args.address, log_to_driver=False)
    except ConnectionError:
        refuse(f"--address {args.address}: no Ray cluster there; `ray start --head` makes one")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))  # Ray would print its stack
    failed = run(left, args)
    print(f"{len(failed)} runs failed, results are in {args.folder}")
    wrong = any("exit code 2:" in str(error) for error in failed.values())
    return 2 if wrong else 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(*tyro.cli(Args, return_unknown_args=True)))
    except bear.InputError as error:
        refuse(str(error))
    except OSError as error:  # a result that cannot be written, or a name that is too long
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        sys.exit(130)
