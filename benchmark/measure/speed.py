"""What an update costs: BEAR, UWAC with both of its variances, and the paper's at its word.

    python benchmark/measure/speed.py

The versions of a group take turns, round after round, each in a process of its own, so that what
slows the machine slows all of them; ratios are medians of the rounds' ratios. A version's floor is
the time that its matmuls alone would take at the rate measured in the same round. Data are
random numbers. The machine should have nothing else to do. Shape letters as in uwac.py.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to start from any folder

import contextlib
import functools
import resource
import subprocess
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from multiprocessing import get_context
from statistics import median
from typing import Literal, NamedTuple

import pandas as pd
import torch
import tyro
from torch import Tensor
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

import bear
import uwac
from benchmark.files import add_rows, errors_in_one_line, rows_of, try_to_write

TASKS = {"door-human": (39, 28), "hopper-medium": (11, 3)}  # D, A
VERSIONS = ("BEAR", "UWAC analytic", "UWAC mc", "UWAC mc, plain passes")
GROWTH = {"num_seeds": (1, 5, 20), "batch_size": (256, 1024, 4096), "passes": (10, 100, 1000)}
GROUPS = (*TASKS, *GROWTH)
KEY = ("group", "version", "ms")  # no two rows have the same times


class Case(NamedTuple):
    version: str
    env_id: str = "door-human"
    num_seeds: int = 1
    batch_size: int = 256
    passes: int = 100


@dataclass(frozen=True)
class Args:
    groups: tuple[Literal[*GROUPS], ...] = GROUPS  # tasks, and what an update's time grows with
    rounds: int = 9  # the literal version, at seconds an update, takes part in every third
    seconds: float = 0.5  # that each version updates in a round
    threads: int = 2  # CPU threads of torch
    matmul_precision: Literal["highest", "high", "medium"] = "high"  # as the scripts'
    cuda_graph: bool = False  # an update as one launch (needs tensordict)
    d3rlpy: Path | None = None  # a Python that has d3rlpy, whose BEAR then joins door-human
    dropout: float = 0.1  # rate, in UWAC
    folder: Path = Path("runs/speed")  # of speed.json, to which rows are added


def cases_of(group: str) -> list[Case]:
    if group in TASKS:
        return [Case(version, env_id=group) for version in (*VERSIONS, "UWAC literal")]
    return [Case(version, **{group: n}) for n in GROWTH[group] for version in VERSIONS]


@torch.no_grad()
def literal_uncertainty(critic, obs: Tensor, action: Tensor, args: uwac.Args) -> Tensor:
    """Agent.uncertainty as the paper's text has it: T passes from the input to Q, with per-sample
    masks, at all candidates of a state. Copies of the action whose variance is wanted stand for
    these, which is the same work: obs (S, B, D), action (S, B, A) -> (S, B)."""
    candidates = action.detach().unsqueeze(2).expand(-1, -1, critic.num_candidates, -1)
    q = [critic(obs, candidates, args.dropout)[..., 0] for _ in range(args.passes)]  # (2, S, B)
    return torch.stack(q).var(0).sum(0)


@torch.no_grad()
def plain_uncertainty(critic, obs: Tensor, action: Tensor, args: uwac.Args) -> Tensor:
    """Agent.uncertainty by passes that compute the second layer anew, under the masks that
    uwac.mc_dropout_variance draws from the same seed: obs (S, B, D), action (S, B, A) -> (S, B)."""
    first, second, last = critic.layers
    h1 = first(uwac.concat(obs, action)).relu_()  # (2, S, B, H)
    kept = torch.rand(2, args.passes, *last.weight.shape[:-1], device=h1.device) >= args.dropout
    masks = (kept / (1 - args.dropout)).unsqueeze(-2)  # (2, T, 2, S, 1, H)
    q = []
    for mask1, mask2 in zip(*masks):
        h2 = ((h1 * mask1) @ second.weight).add_(second.bias).relu_()
        q.append((h2 * (mask2 * last.weight.mT)).sum(-1))
    return torch.stack(q).var(0).sum(0)


def make_update(case: Case, args: Args) -> functools.partial:
    """The version's update of a new agent on random data, as a function of nothing."""
    version, passes, sizes = case.version, case.passes, case._asdict()
    script = bear if version == "BEAR" else uwac
    for name in ("version", "passes"):
        del sizes[name]
    if script is uwac:
        sizes |= {"variance": "analytic" if version == "UWAC analytic" else "mc"}
        sizes |= {"passes": passes, "dropout": args.dropout}
    settings = script.Args(**sizes, cuda_graph=args.cuda_graph)
    obs_dim, action_dim = TASKS[case.env_id]
    torch.manual_seed(0)
    agent = script.Agent(settings, obs_dim, action_dim).to(uwac.DEVICE)
    if version == "UWAC literal":
        agent.target_critic.num_candidates = settings.num_candidates
        agent.critic.num_candidates = 1  # the actor's loss has one action a state
        agent.uncertainty = functools.partial(literal_uncertainty, args=settings)
    if version == "UWAC mc, plain passes":
        agent.uncertainty = functools.partial(plain_uncertainty, args=settings)
    shapes = (obs_dim,), (action_dim,), (), (obs_dim,), ()
    data = [2 * torch.rand(10_000, *shape, device=uwac.DEVICE) - 1 for shape in shapes]
    data[-1].zero_()  # done
    step = torch.ones((), device=uwac.DEVICE)
    return functools.partial(script.update, agent, data, step)


@functools.cache  # once in a process
def prepared(case: Case, args: Args):
    """The update, ready to be timed, and its matmuls' arithmetic in GFLOP."""
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision(args.matmul_precision)
    torch.empty(8_000_000)  # as the scripts' set_up, for glibc's sake
    update = make_update(case, args)
    update()  # makes the optimizers' state
    with FlopCounterMode(display=False) as counter:
        update()
    if args.cuda_graph:
        from tensordict.nn import CudaGraphModule

        *agent_and_data, step = update.args
        graph = CudaGraphModule(functools.partial(update.func, *agent_and_data))
        update = functools.partial(graph, step)
    for _ in range(4):  # records the graph
        update()
    return update, counter.get_total_flops() / 1e9


def gflop_of(case: Case, args: Args) -> float:
    return prepared(case, args)[1]


def time_updates(case: Case, args: Args) -> tuple[float, float]:
    """Milliseconds of an update, the mean of as many as take args.seconds; and the peak memory so
    far in MB, of tensors on a GPU, else of the process, libraries included."""
    update, _ = prepared(case, args)
    timer = Timer("update()", globals={"update": update}, num_threads=args.threads)
    seconds = timer.blocked_autorange(min_run_time=args.seconds).mean
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    if uwac.DEVICE == "cuda":
        memory = torch.cuda.max_memory_allocated() / 1e6
    return 1000 * seconds, memory


def d3rlpy_timer(args: Args):
    """`time_updates` of d3rlpy's BEAR, in a Python of its own (it pins another gymnasium)."""
    program = Path(__file__).with_name("d3rlpy_bear.py")
    words = [args.threads, args.seconds, *TASKS["door-human"], int(args.cuda_graph)]
    command = [str(word) for word in (args.d3rlpy, program, *words)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)

    def timer() -> list[float]:
        with contextlib.suppress(BrokenPipeError):
            print("once more", file=process.stdin, flush=True)
        numbers = process.stdout.readline().split()
        if not numbers:
            raise ValueError(f"--d3rlpy {args.d3rlpy}: d3rlpy does not run there")
        return [float(number) for number in numbers]

    return timer


def product_rate() -> float:
    """GFLOP/s of a large matmul, the fastest of some."""
    size = 8192 if uwac.DEVICE == "cuda" else 2048
    matrix = torch.randn(size, size, device=uwac.DEVICE)
    timer = Timer("a @ a", globals={"a": matrix}, num_threads=torch.get_num_threads())
    return 2 * size**3 / min(timer.blocked_autorange(min_run_time=0.5).times) / 1e9


def measure(group: str, args: Args, about: dict) -> list[dict]:
    """A row for each case: its sizes, `about`, and of each round ms of an update and its floor."""
    cases = cases_of(group)
    rows, timers = [], []
    processes = [ProcessPoolExecutor(1, get_context("spawn")) for _ in cases]
    started = [process.submit(gflop_of, case, args) for process, case in zip(processes, cases)]
    for case, process, future in zip(cases, processes, started):  # a process ends with its timer
        counted = {"gflop": future.result(), "ms": [], "floor_ms": []}
        rows.append({"group": group, **case._asdict(), **about, **counted})
        timers.append(lambda p=process, case=case: p.submit(time_updates, case, args).result())
    if args.d3rlpy and group == "door-human":
        version = f"d3rlpy's BEAR{', compile_graph' if args.cuda_graph else ''}"
        rows.append(rows[0] | {"version": version, "ms": [], "floor_ms": []})
        timers.append(d3rlpy_timer(args))
    for i in range(args.rounds):
        rate = product_rate()
        for row, timer in zip(rows, timers):
            ms = None
            if i % 3 == 0 or row["version"] != "UWAC literal":
                ms, row["peak_mb"] = timer()
            row["ms"].append(ms)
            row["floor_ms"].append(1000 * row["gflop"] / rate)
    return rows


def ratio(row: dict, times: list[float]) -> str:
    """Median (and range) of a row's times over others, of the rounds in which there are both."""
    values = [ms / other for ms, other in zip(row["ms"], times) if ms and other]
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def table(rows: list[dict]) -> str:
    """Markdown: a line for each row; the last columns compare with the group's first rows."""
    lines = []
    for row in rows:
        first, second, *_ = [other["ms"] for other in rows if other["group"] == row["group"]]
        line = {name: row[name] for name in (*Case._fields, "peak_mb")}
        line |= {"ms": ratio(row, [1] * len(first)), "over its floor": ratio(row, row["floor_ms"])}
        line |= {"over BEAR": ratio(row, first), "over UWAC analytic": ratio(row, second)}
        lines.append(line)
    return pd.DataFrame(lines).to_markdown(index=False, disable_numparse=True)


def main(args: Args) -> None:
    """Raises ValueError for arguments that measure nothing, and a speed.json that is none."""
    if min(len(args.groups), args.rounds, args.threads) < 1 or not args.seconds > 0:
        raise ValueError("a group, a round, a thread at least, and --seconds above 0")
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision(args.matmul_precision)
    about = {"hardware": uwac.hardware(), "threads": args.threads}
    about |= {"torch": str(torch.__version__), "date": str(date.today())}
    for name in ("matmul_precision", "cuda_graph", "dropout"):
        about[name] = getattr(args, name)
    path = args.folder.expanduser() / "speed.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows_of(path, KEY)  # no other file is there
    try_to_write(path.parent)
    rows = []
    for group in args.groups:
        new = measure(group, args, about)
        add_rows(path, new, KEY)
        rows += new
    print(about["hardware"], table(rows), sep="\n\n")


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args))
