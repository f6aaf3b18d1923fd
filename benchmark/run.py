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
import resource
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
    # Not in the paper, whose UWAC has spectral norm on Adroit: do the weights keep Q bounded without it?
    "uwac-no-sn": ("uwac.py", {"spectral_norm": False, "variance": "analytic"}),
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
    address: str = "local"  # or of an existing Ray cluster, "auto" for this machine's; its nodes see the same files
    retries: int = 2  # more attempts at a run that failed, or whose node was lost
    dry_run: bool = False  # print the grid and its hours, run nothing
    out: Path = ROOT / "runs" / "results"  # for the results
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
                module = load(str(ROOT / script))
                try:
                    module.find_dataset(task, None)
                    module.Args(**given)
                except module.InputError as error:
                    sys.exit(f"error: {task}, {method}: {error}")
                jobs.append(Job(task, method, seed, str(ROOT / script), json.dumps(given)))
    return jobs


def load(script: str) -> ModuleType:
    """A script as a module: they stand in no package."""
    name = Path(script).stem
    if getattr(sys.modules.get(name), "__file__", None) != script:
        spec = importlib.util.spec_from_file_location(name, script)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def finished(job: Job, out: Path) -> bool:
    """Whether the job's result is there, with the arguments that the job has, defaults included."""
    try:
        found = json.loads((out / f"{job.name}.json").read_text())["args"]
    except (OSError, ValueError, KeyError):
        return False
    return found == json.loads(json.dumps(vars(load(job.script).Args(**json.loads(job.arguments)))))


def train(job: Job, work: Path, threads: int, on_gpu: bool) -> dict:
    """One run, in a folder of its own; returns its result. Goes on from the last checkpoint there, unless its arguments
    were others."""
    if not on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray hides the GPUs of others alone, from those who have one
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
        result = script.main(script.Args(**arguments))
        usage = resource.getrusage(resource.RUSAGE_SELF)  # of this process, which makes one run alone
        result["peak_mb"] = usage.ru_maxrss / 1024
        if on_gpu:
            result["peak_gpu_mb"] = torch.cuda.max_memory_allocated() / 2**20
        return result


def run(jobs: list[Job], args: Args) -> dict[Job, str]:
    """All jobs that are not finished, as Ray tasks; returns what failed for good, and why. Raises SystemExit where no node
    has as many threads and GPUs as a run asks for, because Ray would wait for one."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= args.cpus and node.get("GPU", 0) >= args.gpus for node in nodes):
        sys.exit(f"error: --cpus {args.cpus} --gpus {args.gpus}: more than any node of {args.address} has")
    args.out.mkdir(parents=True, exist_ok=True)
    todo, failed = [job for job in jobs if not finished(job, args.out)], {}
    print(f"{len(jobs)} runs, {len(jobs) - len(todo)} of them finished before")
    # A process for each run, and no attempts of Ray's own: they are counted here.
    remote = ray.remote(max_calls=1, num_cpus=args.cpus, num_gpus=args.gpus, max_retries=0)(train)

    def start(job: Job) -> ray.ObjectRef:
        return remote.remote(job, args.work.resolve(), args.cpus, args.gpus > 0)

    waiting = {start(job): (job, 0) for job in todo}
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
                waiting[start(job)] = (job, attempts + 1)
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


def hours(job: Job, args: Args) -> float:
    """Of the job's updates, by a few of them on random data here; what evaluations take is not in it."""
    script, device = load(job.script), torch.device("cuda" if args.gpus else "cpu")
    settings = script.Args(**json.loads(job.arguments))
    envs = script.make_envs(settings.env_id, 1)
    D, A = envs.single_observation_space.shape + envs.single_action_space.shape
    shapes = {"obs": (1000, D), "action": (1000, A), "reward": (1000,), "next_obs": (1000, D), "done": (1000,)}
    dataset = {name: np.random.default_rng(0).random(shape, np.float32) for name, shape in shapes.items()}
    agent = script.Agent(settings, dataset, device)
    update, count = (agent.graphed_updates().__next__, 100) if args.gpus else (agent.update, 3)
    for _ in range(4 if args.gpus else 1):  # until a graph is recorded
        update()
    float(agent.step)  # waits for a GPU
    start = time.perf_counter()
    for _ in range(count):
        update()
    float(agent.step)
    return (time.perf_counter() - start) / count * settings.total_steps / 3600


def print_plan(jobs: list[Job], args: Args) -> None:
    torch.set_num_threads(args.cpus)
    if args.gpus and not torch.cuda.is_available():
        sys.exit(f"error: --gpus {args.gpus}: torch finds no GPU here, by which to tell the hours")
    cost, left = {}, []
    for job in jobs:
        if finished(job, args.out):
            print(f"{job.name}: finished")
            continue
        key = job.task, job.method, json.loads(job.arguments)["num_seeds"]
        cost[key] = cost[key] if key in cost else hours(job, args)
        left.append(cost[key])
        print(f"{job.name}: {cost[key]:.2f} h")
    at_once = max(
        1, min(os.cpu_count() // args.cpus, int(torch.cuda.device_count() / args.gpus) if args.gpus else 10**6)
    )
    there = f"{max(sum(left) / at_once, max(left, default=0)):.1f} with the {at_once} at once that this machine has room for"
    print(f"{len(jobs)} runs, {sum(left):.1f} hours one after another, {there}; without evaluations")


def main(args: Args) -> int:
    if min(args.seeds, args.seeds_a_run, args.cpus) < 1 or args.gpus < 0 or args.retries < 0:
        sys.exit("error: --seeds, --seeds-a-run and --cpus must be at least 1, --gpus and --retries at least 0")
    jobs = grid(args)
    if args.dry_run:
        print_plan(jobs, args)
        return 0
    variables = {name: os.environ[name] for name in ("D4RL_DATASET_DIR",) if name in os.environ}  # for other nodes, too
    ray.init(address=args.address, log_to_driver=False, runtime_env={"env_vars": variables})
    failed = run(jobs, args)
    ray.shutdown()
    for job, why in failed.items():
        print(f"failed {args.retries + 1} times: {job.name}: {why}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
