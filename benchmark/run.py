"""Runs a grid of tasks, methods and seeds, on one machine or on a cluster of Ray's.

    python benchmark/run.py --tasks door-demo --methods bear uwac --seeds 2 --total-steps 200
    python benchmark/run.py --tasks door-human pen-human --seeds 5 --dry-run          # what that is, and how long it takes
    python benchmark/run.py --tasks hopper-medium --seeds 5 --seeds-a-run 5 --gpus 0.5 --address auto

Each run leaves TASK__METHOD__SEED.json in `--out`: its result.json with the method's name. A run whose file is there with
the same arguments is not made again, so a grid that was stopped goes on where it was; what was stopped in the midst goes
on from its checkpoint. `benchmark/report.py` makes tables and figures of these files.
"""

import fcntl
import importlib.util
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import ray
import torch
import tyro
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
METHODS = {  # script, and its arguments beside the grid's
    "bear": ("bear.py", {}),
    "uwac": ("uwac.py", {}),
    "uwac-analytic": ("uwac.py", {"variance": "analytic"}),
    # What of the authors' code are flags here: README.md, "Paper, authors' code, here".
    "uwac-code": ("uwac.py", {"weighting": "exp", "beta": 0.5, "weight_clip": 1.0, "num_mmd_samples": 4, "spectral_norm": True}),
    "uwac-std": ("uwac.py", {"weighting": "std"}),
    # Without weights Var[Q] is a metric alone, for which the cheap estimate will do.
    "bear+sn": ("uwac.py", {"weighting": "none", "dropout": 0.0, "spectral_norm": True, "variance": "analytic"}),
    "bear+dropout+sn": ("uwac.py", {"weighting": "none", "spectral_norm": True, "variance": "analytic"}),
    "uwac-unweighted": ("uwac.py", {"weighting": "none", "variance": "analytic"}),  # on Adroit the same as the last one
    "uwac-ensemble": ("uwac.py", {"critic": "ensemble"}),
    "uwac-rem": ("uwac.py", {"critic": "rem"}),
}  # fmt: skip


@dataclass
class Args:
    tasks: tuple[str, ...] = ("door-human",)  # --env-id of the scripts
    methods: tuple[str, ...] = ("bear", "uwac")  # names from METHODS above
    seeds: int = 5  # seeds of each task and method: 0, 1, ... (the paper's number)
    seeds_a_run: int = 1  # of which so many are trained side by side, which pays on a GPU
    total_steps: int = 500_000  # updates
    eval_every: int | None = None  # updates between evaluations (None: the scripts' default)
    eval_episodes: int | None = None  # episodes of an evaluation (None: the scripts' default)
    warmup_steps: int | None = None  # updates on MMD alone (None: the scripts' default)
    cpus: int = 1  # threads of a run; as many runs at once as that leaves room for
    gpus: float = 0.0  # share of a GPU for a run
    address: str | None = None  # of an existing Ray cluster, "auto" for this machine's; its nodes see the same files
    retries: int = 2  # more attempts at a run that failed
    dry_run: bool = False  # print the grid and its hours, run nothing
    out: Path = ROOT / "benchmark" / "results" / "grid"  # for the results
    work: Path = ROOT / "runs" / "grid"  # for checkpoints and all else that a run leaves


@dataclass(frozen=True)
class Job:
    task: str
    method: str
    seed: int
    script: str
    arguments: str  # of the script's Args, as JSON

    @property
    def name(self) -> str:
        return f"{self.task.replace('/', '-')}__{self.method}__{self.seed}"


def grid(args: Args) -> list[Job]:
    """Seeds outermost, so that a grid that is stopped has all methods of a task as often. Raises SystemExit for an
    unknown method or arguments that a script refuses."""
    if unknown := [name for name in args.methods if name not in METHODS]:
        sys.exit(f"error: --methods {' '.join(unknown)}: not among {', '.join(METHODS)}")
    shared = {name: getattr(args, name) for name in ("total_steps", "eval_every", "eval_episodes", "warmup_steps")}
    jobs = []
    for seed in range(0, args.seeds, args.seeds_a_run):
        for task in args.tasks:
            for method in args.methods:
                script, own = METHODS[method]
                given = own | {name: value for name, value in shared.items() if value is not None}
                given |= {"env_id": task, "seed": seed, "num_seeds": min(args.seeds_a_run, args.seeds - seed)}
                module = load(ROOT / script)
                try:
                    module.find_dataset(task, None)
                    module.Args(**given)
                except module.InputError as error:
                    sys.exit(f"error: {task}, {method}: {error}")
                jobs.append(Job(task, method, seed, str(ROOT / script), json.dumps(given)))
    return jobs


def load(script: Path | str) -> ModuleType:
    """A script as a module: they stand in no package."""
    name = Path(script).stem
    spec = importlib.util.spec_from_file_location(name, script)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def finished(job: Job, out: Path) -> bool:
    """Whether the job's result is there, with the arguments that the job has, defaults included."""
    try:
        found = json.loads((out / f"{job.name}.json").read_text())["args"]
    except (OSError, ValueError, KeyError):
        return False
    return found == json.loads(json.dumps(vars(load(job.script).Args(**json.loads(job.arguments)))))


def train(job: Job, work: Path, threads: int) -> dict:
    """One run, in a folder of its own; returns its result. Goes on from the last checkpoint there, unless its arguments
    were others."""
    (work / job.name).mkdir(parents=True, exist_ok=True)
    os.chdir(work / job.name)
    with open("lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a lost node's process may live on for a while: wait until it has ended
        torch.set_num_threads(threads)
        script, arguments = load(job.script), json.loads(job.arguments)
        wanted = json.loads(json.dumps(vars(script.Args(**arguments))))
        for old in Path("runs").glob("*/args.json"):
            if json.loads(old.read_text()) == wanted:
                if (old.parent / "result.json").exists():  # the node was lost after the last update
                    return json.loads((old.parent / "result.json").read_text())
                arguments["resume"] = str(old.parent)
        return script.main(script.Args(**arguments))


def run(jobs: list[Job], args: Args) -> dict[Job, str]:
    """All jobs that are not finished, as Ray tasks; returns what failed for good, and why. A task whose node is lost is
    made again elsewhere by Ray, one that raises an error by this function, both as often as `retries` says."""
    args.out.mkdir(parents=True, exist_ok=True)
    todo, failed = [job for job in jobs if not finished(job, args.out)], {}
    print(f"{len(jobs)} runs, {len(jobs) - len(todo)} of them finished before")
    task = ray.remote(max_calls=1, num_cpus=args.cpus, num_gpus=args.gpus, max_retries=args.retries)(
        train
    )  # a process each
    waiting = {task.remote(job, args.work.resolve(), args.cpus): (job, 0) for job in todo}
    bar = tqdm(total=len(todo), unit="runs", disable=None)
    while waiting:
        (done,), _ = ray.wait([*waiting])
        job, attempts = waiting.pop(done)
        try:
            result = ray.get(done)
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", error)  # what the run raised, or that its node was lost once too often
            why = f"{type(cause).__name__}: {cause}"
            if attempts < args.retries:
                print(f"{job.name}: {why}; once more", file=sys.stderr)
                waiting[task.remote(job, args.work.resolve(), args.cpus)] = (job, attempts + 1)
            else:
                failed[job] = why
            continue
        result |= {"method": job.method, "dataset": Path(result["dataset"]).name}  # a name is enough, and goes anywhere
        path = args.out / f"{job.name}.json"
        path.with_suffix(".tmp").write_text(json.dumps(result, indent=1))
        path.with_suffix(".tmp").replace(path)
        bar.update()
        bar.write(f"{job.name}: score {result['last']['mean']:.1f}")
    return failed


def hours(job: Job) -> float:
    """Of the job's updates, by a few of them on random data here; what evaluations take is not in it."""
    script = load(job.script)
    args = script.Args(**json.loads(job.arguments))
    envs = script.make_envs(args.env_id, 1)
    D, A = envs.single_observation_space.shape + envs.single_action_space.shape
    shapes = {"obs": (1000, D), "action": (1000, A), "reward": (1000,), "next_obs": (1000, D), "done": (1000,)}
    dataset = {name: np.random.default_rng(0).random(shape, np.float32) for name, shape in shapes.items()}
    agent = script.Agent(args, dataset, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    agent.update()
    start = time.perf_counter()
    for _ in range(3):
        agent.update()
    float(agent.step)  # waits for a GPU
    return (time.perf_counter() - start) / 3 * args.total_steps / 3600


def main(args: Args) -> int:
    jobs = grid(args)
    if args.dry_run:
        torch.set_num_threads(args.cpus)
        cost = {}
        for job in jobs:
            key = (job.task, job.method)
            cost[key] = cost.get(key) or hours(job)
            state = "finished" if finished(job, args.out) else f"{cost[key]:.2f} h"
            print(f"{job.name}: {state}")
        left = sum(cost[job.task, job.method] for job in jobs if not finished(job, args.out))
        print(f"{len(jobs)} runs, {left:.1f} hours one after another, {args.cpus} threads each, without evaluations")
        return 0
    ray.init(address=args.address, include_dashboard=False if args.address is None else None, log_to_driver=False)
    failed = run(jobs, args)
    ray.shutdown()
    for job, why in failed.items():
        print(f"failed {args.retries + 1} times: {job.name}: {why}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
