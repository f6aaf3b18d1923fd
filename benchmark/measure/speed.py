"""What an update costs: BEAR, UWAC with both of its variances, and the paper's at its word.

    python benchmark/measure/speed.py
    python benchmark/measure/speed.py --env-id hopper-medium --batch-size 256 1024 4096

Versions of the same sizes take turns, round after round, each in a process of its own, so that what
slows the machine slows all of them; ratios are medians of the rounds' ratios. Data are random
numbers. The machine should have nothing else to do. Shape letters as in uwac.py.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to start from any folder

import functools
import resource
import subprocess
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import date
from itertools import product
from multiprocessing import get_context
from statistics import median
from typing import Literal, NamedTuple

import pandas as pd
import torch
import tyro
from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.utils.benchmark import Timer

import bear
import uwac
from benchmark.files import OneOrMore, errors_in_one_line, new_path, write_json

TASKS = {"door-human": (39, 28), "hopper-medium": (11, 3)}  # D, A
VERSIONS = ("BEAR", "UWAC analytic", "UWAC mc", "UWAC literal")
D3RLPY = "d3rlpy's BEAR"


class Case(NamedTuple):
    version: str
    env_id: str = "door-human"
    num_seeds: int = 1
    batch_size: int = 256
    passes: int = 100


@dataclass(frozen=True)
class Args:
    env_id: Literal[*TASKS] = "door-human"  # whose observations and actions have these sizes
    num_seeds: OneOrMore[PositiveInt] = (1,)  # S; what an update's time grows with: each of these
    batch_size: OneOrMore[PositiveInt] = (256,)  # B; with each of these
    passes: OneOrMore[PositiveInt] = (100,)  # T of mc; and with each of these
    versions: OneOrMore[Literal[*VERSIONS]] = VERSIONS  # an update of the literal one takes seconds
    d3rlpy: Path | None = None  # a Python that has d3rlpy, whose BEAR then takes part
    rounds: PositiveInt = 9
    seconds: PositiveFloat = 0.5  # that each version updates in a round
    threads: PositiveInt = 2  # CPU threads of torch
    matmul_precision: Literal["highest", "high", "medium"] = "high"  # as the scripts'
    cuda_graph: bool = False  # an update as one launch (needs tensordict)
    folder: Path = Path("runs/speed")  # of speed.json


@torch.no_grad()
def literal_uncertainty(critic, obs: Tensor, action: Tensor, args: uwac.Args) -> Tensor:
    """Agent.uncertainty as the paper's text has it: T passes from the input to Q, with per-sample
    masks, at all candidates of a state. Copies of the action whose variance is wanted stand for
    these, which is the same work: obs (S, B, D), action (S, B, A) -> (S, B)."""
    candidates = action.detach().unsqueeze(2).expand(-1, -1, critic.num_candidates, -1)
    q = [critic(obs, candidates, args.dropout)[..., 0] for _ in range(args.passes)]  # (2, S, B)
    return torch.stack(q).var(0).sum(0)


def make_update(case: Case, args: Args) -> functools.partial:
    """The version's update of a new agent on random data, as a function of nothing."""
    version, env_id, num_seeds, batch_size, passes = case
    script = bear if version == "BEAR" else uwac
    settings = {"env_id": env_id, "num_seeds": num_seeds, "batch_size": batch_size}
    if script is uwac:
        variance = "analytic" if version == "UWAC analytic" else "mc"
        settings |= {"variance": variance, "passes": passes}
    settings = script.Args(**settings, cuda_graph=args.cuda_graph)
    obs_dim, action_dim = TASKS[env_id]
    torch.manual_seed(0)
    agent = script.Agent(settings, obs_dim, action_dim).to(uwac.DEVICE)
    if version == "UWAC literal":
        agent.target_critic.num_candidates = settings.num_candidates
        agent.critic.num_candidates = 1  # the actor's loss has one action a state
        agent.uncertainty = functools.partial(literal_uncertainty, args=settings)
    shapes = (obs_dim,), (action_dim,), (), (obs_dim,), ()
    data = [2 * torch.rand(10_000, *shape, device=uwac.DEVICE) - 1 for shape in shapes]
    data[-1].zero_()  # done
    step = torch.ones((), device=uwac.DEVICE)
    return functools.partial(script.update, agent, data, step)


@functools.cache  # once in a process
def prepared(case: Case, args: Args) -> functools.partial:
    """The update, ready to be timed."""
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision(args.matmul_precision)
    torch.empty(8_000_000)  # as the scripts' set_up, for glibc's sake
    update = make_update(case, args)
    update()  # makes the optimizers' state
    if args.cuda_graph:
        from tensordict.nn import CudaGraphModule

        *agent_and_data, step = update.args
        graph = CudaGraphModule(functools.partial(update.func, *agent_and_data))
        update = functools.partial(graph, step)
    for _ in range(4):  # records the graph
        update()
    return update


def time_updates(case: Case, args: Args) -> tuple[float, float]:
    """Milliseconds of an update, the mean of as many as take args.seconds; and the peak memory so
    far in MB, of tensors on a GPU, else of the process, libraries included."""
    if case.version == D3RLPY:
        return time_d3rlpy(case, args)
    globals = {"update": prepared(case, args)}
    timer = Timer("update()", globals=globals, num_threads=args.threads)
    seconds = timer.blocked_autorange(min_run_time=args.seconds).mean
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    if uwac.DEVICE == "cuda":
        memory = torch.cuda.max_memory_allocated() / 1e6
    return 1000 * seconds, memory


def time_d3rlpy(case: Case, args: Args) -> tuple[float, float]:
    """The same of d3rlpy's BEAR, in a Python of its own (it pins another gymnasium). Raises
    ValueError."""
    program = Path(__file__).with_name("d3rlpy_bear.py")
    sizes = [args.threads, args.seconds, case.batch_size, *TASKS[case.env_id]]
    words = [args.d3rlpy, program, *sizes, int(args.cuda_graph)]
    found = subprocess.run([*map(str, words)], check=False, capture_output=True, text=True)
    if found.returncode:
        problem = f"d3rlpy does not run there ({found.stderr[-200:]})"
        raise ValueError(f"--d3rlpy {args.d3rlpy}: {problem}")
    ms, memory = map(float, found.stdout.split())
    return ms, memory


def measure(sizes: dict, args: Args, about: dict) -> list[dict]:
    """A row for each version: its sizes, `about`, and of each round ms of an update."""
    versions = args.versions
    if args.d3rlpy and sizes["num_seeds"] == 1:  # it has no seeds side by side
        versions += (D3RLPY,)
    cases = [Case(version, **sizes) for version in versions]
    rows = [{"group": case.env_id, **case._asdict(), **about, "ms": []} for case in cases]
    with ExitStack() as stack:
        processes = [ProcessPoolExecutor(1, get_context("spawn")) for _ in cases]
        for process in processes:
            stack.enter_context(process)
        for _ in range(args.rounds):
            for row, case, process in zip(rows, cases, processes):
                ms, row["peak_mb"] = process.submit(time_updates, case, args).result()
                row["ms"].append(ms)
    return rows


def table(rows: list[dict]) -> str:
    """Markdown, in a line for each row median (and range) of its times, and over the first's."""
    first = rows[0]
    lines = []
    for row in rows:
        line = {name: row[name] for name in (*Case._fields, "peak_mb")}
        ratios = [ms / other for ms, other in zip(row["ms"], first["ms"])]
        for name, values in (("ms", row["ms"]), (f"over {first['version']}", ratios)):
            line[name] = f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
        lines.append(line)
    return pd.DataFrame(lines).to_markdown(index=False, disable_numparse=True)


def main(args: Args) -> None:
    """Raises ValueError and OSError."""
    path = new_path(args.folder / "speed.json")
    about = {"hardware": uwac.hardware(), "threads": args.threads}
    about |= {"torch": str(torch.__version__), "date": str(date.today())}
    about |= {"matmul_precision": args.matmul_precision, "cuda_graph": args.cuda_graph}
    print(about["hardware"])
    rows = []
    for S, B, T in product(args.num_seeds, args.batch_size, args.passes):
        sizes = {"env_id": args.env_id, "num_seeds": S, "batch_size": B, "passes": T}
        new = measure(sizes, args, about)
        print(table(new), end="\n\n", flush=True)
        rows += new
        write_json(path, rows)


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
