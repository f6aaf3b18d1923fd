"""What an update costs: BEAR, UWAC with both of its variances, and the paper's variance taken to the letter.

    python benchmark/speed.py

How that grows with seeds, batch and passes, what evaluation takes beside it, and, with --d3rlpy, another project's BEAR.
Each version stands beside its floor, the time that the matrix products which its update cannot do without would take at
the rate measured in the same round (on a GPU: that or the time to move its tensors, whichever is longer). Data are
random numbers, and the machine should have nothing else to do. The cases of a group take turns, round after round, so
that what slows the machine slows all of them, and ratios are medians of the rounds' ratios. Each case has a process of
its own, as a run has. Shape letters as in uwac.py.
"""

import json
import platform
import resource
import subprocess
import sys
import time
import venv
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from torch import Tensor
from torch.nn.functional import dropout
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[1]))
import bear
import uwac

SIZES = {"door-human": (39, 28), "hopper-medium": (11, 3)}  # D, A
NUM_CRITICS, HIDDEN, VAE_HIDDEN = 2, 256, 750
CUDA = torch.cuda.is_available()


@dataclass
class Args:
    threads: int = 2  # CPU threads of torch
    repetitions: int = 9  # rounds; the literal versions, at seconds an update, take part in every third
    groups: tuple[str, ...] = (
        "door-human",
        "hopper-medium",
        "seeds",
        "batch",
        "passes",
        "evaluation",
    )  # what to measure
    d3rlpy: Path | None = (
        None  # virtual environment for d3rlpy, made here if it is not there; its BEAR joins door-human
    )
    profile: str | None = None  # a version, such as BEAR: print what its update spends time on, measure nothing else
    out: Path = Path("benchmark/results/speed.json")  # all times, FLOPs, hardware and versions; a figure beside it


@dataclass(frozen=True)
class Case:
    """One measured thing. Versions: BEAR, UWAC analytic, UWAC mc; UWAC literal, all T passes as one batch as in the
    authors' code, and the same pass by pass, kinder to memory and caches; on a GPU, those with `eager` use no graph."""

    version: str
    task: str = "door-human"
    num_seeds: int = 1
    batch_size: int = 256
    passes: int = 100


TARGETS = {  # ratio of a group's cases -> target on a CPU, on a GPU
    (Case("UWAC analytic"), Case("BEAR")): ("<= 1.10", "<= 1.1"),
    (Case("UWAC mc"), Case("BEAR")): ("<= 3.5", "<= 1.5"),
    (Case("UWAC literal"), Case("UWAC analytic")): (">= 60", ""),
    (Case("UWAC literal, pass by pass"), Case("UWAC analytic")): ("", ""),
    (Case("d3rlpy's BEAR"), Case("BEAR")): (">= 1.5", ""),
    (Case("BEAR eager"), Case("BEAR")): ("", ">= 4"),
    (Case("BEAR", num_seeds=5), Case("BEAR")): ("", "<= 1.5"),
    (Case("BEAR", num_seeds=20), Case("BEAR")): ("", "<= 4"),
}


def cases_of(group: str, args: Args) -> list[Case]:
    three = ("BEAR", "UWAC analytic", "UWAC mc")
    if group == "seeds":
        return [Case(version, num_seeds=n) for n in (1, 5, 20) for version in three]
    if group == "batch":
        return [Case(version, batch_size=n) for n in (256, 1024, 4096) for version in three]
    if group == "passes":
        return [Case(version) for version in three[:2]] + [Case(three[2], passes=n) for n in (10, 30, 100, 300, 1000)]
    versions = [*three, *(("BEAR eager", "UWAC mc eager") if CUDA else ())]
    versions += ["UWAC literal", "UWAC literal, pass by pass"]
    return [Case(v, group) for v in versions] + [Case("d3rlpy's BEAR")] * bool(args.d3rlpy and group == "door-human")


class LiteralAgent(uwac.Agent):
    """UWAC with the variance as the text has it: every pass runs both critics from the input, on all N candidates."""

    passes_at_once = 1

    def q_values(self, critic: uwac.Critic, obs: Tensor, action: Tensor, *rest: float) -> Tensor:
        if action.dim() == 4:  # (S, B, N, A): the candidates, of which `update` then passes the best to `q_variance`
            self.candidates = action
        return super().q_values(critic, obs, action, *rest)

    @torch.no_grad()
    def q_variance(self, critic: uwac.Critic, obs: Tensor, action: Tensor) -> Tensor:
        """As uwac.Agent's. In the actor's loss there are no other candidates than `action`."""
        actions = self.candidates if critic is self.target_critic else action.unsqueeze(2)  # (S, B, N, A)
        pairs = torch.cat([obs.unsqueeze(2).expand(-1, -1, actions.shape[2], -1), actions], dim=-1).flatten(1, 2)
        pairs = pairs.repeat_interleave(NUM_CRITICS, 0)  # (S * C, B * N, D + A)
        passes = torch.arange(self.args.passes).split(self.passes_at_once)
        variance = torch.cat([self.stochastic_q(critic, pairs, len(part)) for part in passes], dim=1).var(1)
        variance = variance.unflatten(0, (-1, NUM_CRITICS)).sum(1).unflatten(1, actions.shape[1:3])  # (S, B, N)
        taken = (actions == action.unsqueeze(2)).all(-1).int().argmax(-1, keepdim=True)
        return variance.take_along_dim(taken, 2).squeeze(2)

    def stochastic_q(self, critic: uwac.Critic, pairs: Tensor, passes: int) -> Tensor:
        """(S * C, B * N, D + A) -> (S * C, passes, B * N)."""
        first, second, last = critic.layers
        h = dropout(torch.relu(torch.bmm(pairs.repeat(1, passes, 1), first.weight) + first.bias), self.args.dropout)
        h = dropout(torch.relu(torch.bmm(h, second.weight) + second.bias), self.args.dropout)
        return (torch.bmm(h, last.weight) + last.bias).view(len(pairs), passes, -1)


def make_agent(case: Case) -> bear.Agent | uwac.Agent:
    obs_dim, action_dim = SIZES[case.task]
    shapes = {"obs": (obs_dim,), "action": (action_dim,), "reward": (), "next_obs": (obs_dim,), "done": ()}
    rng = np.random.default_rng(0)
    dataset = {name: rng.uniform(-1, 1, (10_000, *shape)).astype(np.float32) for name, shape in shapes.items()}
    dataset["done"][:] = 0
    settings = {"env_id": case.task, "num_seeds": case.num_seeds, "batch_size": case.batch_size}
    device = torch.device("cuda" if CUDA else "cpu")
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # as the scripts' main
    torch.manual_seed(0)
    if "BEAR" in case.version:
        return bear.Agent(bear.Args(**settings), dataset, device)
    settings |= {"variance": "analytic" if "analytic" in case.version else "mc", "passes": case.passes}
    agent = (LiteralAgent if "literal" in case.version else uwac.Agent)(uwac.Args(**settings), dataset, device)
    if case.version == "UWAC literal":  # as many as fit into 256,000 rows, which take 2.5 GB
        agent.passes_at_once = max(1, 256_000 // (case.num_seeds * case.batch_size * agent.args.num_candidates))
    return agent


def start_worker(case: Case, threads: int) -> None:
    global agent, update  # the ones of this process
    torch.set_num_threads(threads)
    agent = make_agent(case)
    with FlopCounterMode(display=False) as counter:  # the first update also allocates memory
        agent.update()
    done, floor = counter.get_total_flops(), sum(count_flops(case).values())
    if done < 0.99 * floor:  # the counter does not see the passes' products with the last layer's one column
        raise RuntimeError(f"{case}: {done} FLOPs, under its floor of {floor}: speed.py no longer fits the scripts")
    graphed = CUDA and "eager" not in case.version and "literal" not in case.version
    update = agent.graphed_updates().__next__ if graphed else agent.update
    for _ in range(5 if CUDA else 1):
        update()


def time_updates(seconds: float) -> float:
    """Milliseconds of one of this process's updates: the mean of as many as take so many seconds."""
    count, start = 0, time.perf_counter()
    while not count or time.perf_counter() - start < seconds:
        for _ in range(100 if CUDA else 1):
            update()
            count += 1
        torch.accelerator.synchronize() if CUDA else None
    return 1000 * (time.perf_counter() - start) / count


def peak_memory() -> float:
    """MB, of the tensors on a GPU or of the process, libraries included."""
    return torch.cuda.max_memory_allocated() / 1e6 if CUDA else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


class D3rlpyWorker:
    """d3rlpy's BEAR in a virtual environment of its own, because it pins another gymnasium."""

    def __init__(self, folder: Path, threads: int):
        python = folder / "bin" / "python"
        if not python.exists():
            venv.create(folder, with_pip=True)
            torch_version = torch.__version__.split("+")[0]
            subprocess.run(
                [python, "-m", "pip", "install", "-q", f"torch=={torch_version}", "d3rlpy==2.8.1"], check=True
            )
        command = [python, Path(__file__).with_name("d3rlpy_bear.py"), str(threads), *map(str, SIZES["door-human"])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask("0")

    def ask(self, seconds: str) -> float:
        self.process.stdin.write(seconds + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def sizes_of(case: Case) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """Every pass of a network through an update: name, how many products of its size each weight takes (1 forward; 1 the
    gradient of the weight, of its input), rows, and layer sizes."""
    (D, A), settings = SIZES[case.task], uwac.Args(env_id=case.task)
    L, H, V, B, C = 2 * A, HIDDEN, VAE_HIDDEN, case.batch_size, NUM_CRITICS
    N, M = settings.num_candidates, settings.num_mmd_samples
    return [
        ("VAE encoder", 2, B, (D + A, V, V, 2 * L)),
        ("VAE encoder", 1, B, (V, V, 2 * L)),  # the gradient of a layer's input, from the first that needs it
        ("VAE decoder", 2, B, (D + L, V, V, A)),
        ("VAE decoder", 1, B, (L, V, V, A)),
        ("target actor", 1, B, (D, H, H, 2 * A)),
        ("target critics", C, B, (D, H)),  # the state's half once a state
        ("target critics", C, B * N, (A, H, H, 1)),
        ("critics", 2 * C, B, (D + A, H, H, 1)),
        ("critics", C, B, (H, H, 1)),
        ("actor", 2, B, (D, H, H, 2 * A)),
        ("actor", 1, B, (H, H, 2 * A)),
        ("VAE samples", 1, B, (D, V)),
        ("VAE samples", 1, B * M, (L, V, V, A)),
        ("Q of the policy", C, B, (D + A, H, H, 1)),
        ("Q of the policy", C, B, (A, H, H, 1)),
        # In the target and for the policy; unless literal, both begin at hidden layers that are known from above.
        *{
            "BEAR": (),
            "analytic": (("variance", 2 * C * 2, B, (H, H)),),
            "mc": (("variance", 2 * C * case.passes, B, (H, H, 1)),),
            "literal": (("variance", C * case.passes, B * N + B, (D + A, H, H, 1)),),
        }[next(word for word in ("BEAR", "analytic", "mc", "literal") if word in case.version)],
    ]


def count_flops(case: Case) -> dict[str, int]:
    """Matrix products of one update, part by part: the least that the algorithm needs, none of them twice. Left out is
    what is small beside them: the kernels of MMD, and the products with vectors of spectral norm."""
    flops = {}
    for name, times, rows, sizes in sizes_of(case):
        flops[name] = flops.get(name, 0) + case.num_seeds * times * 2 * rows * sum(a * b for a, b in pairwise(sizes))
    return flops


def count_bytes(case: Case) -> int:
    """The least to move in an update: each layer's output written and read once, in each product that it takes part in,
    and Adam's and the targets' passes over the weights (7 and 3 numbers a weight)."""
    rows = sum(times * rows * sum(sizes[1:]) * 2 for _, times, rows, sizes in sizes_of(case))
    agent_weights = {name: sum(a * b for a, b in pairwise(sizes)) for name, _, _, sizes in reversed(sizes_of(case))}
    adam = sum(agent_weights[name] for name in ("VAE encoder", "VAE decoder", "actor"))
    critics = NUM_CRITICS * agent_weights["critics"]
    return case.num_seeds * 4 * (rows + 7 * (adam + critics) + 3 * (agent_weights["actor"] + critics))


def product_rate() -> float:
    """GFLOP/s of a large matrix product: the best of several, the decoder's widest and a square one."""
    rates, device, square = [], "cuda" if CUDA else "cpu", 8192 if CUDA else 2048
    for rows, inner, columns in [(2560, 750, 750), (square, square, square)] * 5:
        a, b = torch.randn(rows, inner, device=device), torch.randn(inner, columns, device=device)
        rates.append(2 * rows * inner * columns / seconds_of(lambda a=a, b=b: a @ b) / 1e9)
    return max(rates)


def copy_rate() -> float:
    """GB/s read and written by a copy of 1 GB on a GPU."""
    a = torch.empty(2**28, device="cuda")
    return max(2 * 4 * a.numel() / seconds_of(lambda: a.clone()) / 1e9 for _ in range(5))


def seconds_of(call) -> float:
    call()
    torch.accelerator.synchronize() if CUDA else None
    start = time.perf_counter()
    call()
    torch.accelerator.synchronize() if CUDA else None
    return time.perf_counter() - start


def measure(group: str, args: Args) -> list[dict]:
    """For each case of a group: the case, ms of an update and of its floor, one of each round, peak memory."""
    spawn, cases = get_context("spawn"), cases_of(group, args)
    workers = {
        case: D3rlpyWorker(args.d3rlpy, args.threads)
        if "d3rlpy" in case.version
        else ProcessPoolExecutor(1, spawn, start_worker, (case, args.threads))
        for case in cases
    }

    def ask(case: Case, seconds: float) -> float:
        if isinstance(workers[case], D3rlpyWorker):
            return workers[case].ask(str(seconds))
        return workers[case].submit(time_updates, seconds).result()

    rows = {case: {**asdict(case), "group": group, "ms": [], "floor_ms": []} for case in cases}
    for case in cases:
        ask(case, 0)  # none is still starting when the clock runs
    for i in range(args.repetitions):
        rate, bandwidth = product_rate(), copy_rate() if CUDA else np.inf
        for case, row in rows.items():
            slow = "literal" in case.version and i % 3
            row["ms"].append(None if slow else ask(case, 0.5))
            row["floor_ms"].append(max(sum(count_flops(case).values()) / rate, count_bytes(case) / bandwidth) / 1e6)
    for case, row in rows.items():
        row["gflop"] = sum(count_flops(case).values()) / 1e9
        if isinstance(workers[case], D3rlpyWorker):
            workers[case].process.kill()
        else:
            row["peak_mb"] = workers[case].submit(peak_memory).result()
            workers[case].shutdown()
        row["product_gflops"] = rate
    return [*rows.values()]


def measure_evaluation(args: Args) -> list[dict]:
    """Seconds of a default evaluation, 10 episodes and 100 candidates, and of `ood_auroc`, beside what comes
    between two of them, the default 5,000 updates."""
    rows = []
    for task in SIZES:
        agent = make_agent(Case("UWAC mc", task))
        envs = uwac.make_envs(task, 10)
        times = []
        for i in range(args.repetitions):
            start = time.perf_counter()
            uwac.evaluate(*agent.policy(), envs, 100, [0, i])
            times.append(time.perf_counter() - start)
        rows.append({"group": "evaluation", "task": task, "what": "episodes", "s": times})
        envs.close()
        times = [seconds_of(lambda agent=agent: agent.ood_auroc(0)) for _ in range(args.repetitions)]
        rows.append({"group": "evaluation", "task": task, "what": "ood_auroc, mc", "s": times})
        start = time.perf_counter()
        for _ in range(20):
            agent.update()
        seconds = 5000 * (time.perf_counter() - start) / 20
        rows.append({"group": "evaluation", "task": task, "what": "5,000 updates, mc", "s": [seconds]})
    return rows


def spread(values: list[float], digits: int) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def ratio(rows: list[dict], case: Case, other: Case) -> list[float] | None:
    """Ratios of two cases' times in the rounds in which both took part, of the first group that holds both."""
    for group in ("door-human", "seeds"):
        of = {Case(*(row[name] for name in asdict(case))): row["ms"] for row in rows if row["group"] == group}
        if case in of and other in of:
            return [a / b for a, b in zip(of[case], of[other]) if a and b]
    return None


def table(rows: list[dict]) -> str:
    """Markdown: every case, then the ratios that have targets, then evaluation."""
    lines = ["| version | task | seeds | batch | T | ms per update | updates/s | GFLOP | over its floor | peak MB |"]
    lines.append("|" + "---|" * 10)
    for row in (row for row in rows if "ms" in row):
        pairs = [(ms, floor) for ms, floor in zip(row["ms"], row["floor_ms"]) if ms]
        sizes = (row["version"], row["task"], row["num_seeds"], row["batch_size"])
        cells = [*sizes, row["passes"] if "mc" in row["version"] or "literal" in row["version"] else ""]
        cells += [spread([ms for ms, _ in pairs], 2 if CUDA else 1), f"{1000 / median(ms for ms, _ in pairs):.1f}"]
        ours = "d3rlpy" not in row["version"]
        cells += [f"{row['gflop']:.2f}", spread([ms / floor for ms, floor in pairs], 2)] if ours else ["", ""]
        lines.append("| " + " | ".join(map(str, [*cells, f"{row['peak_mb']:.0f}" if ours else ""])) + " |")
    lines += ["", f"| ratio | measured | target on a {'GPU' if CUDA else 'CPU'} |", "|---|---|---|"]
    base = [row for row in rows if row["group"] == "door-human" and row["version"] == "BEAR"]
    over = [ms / floor for row in base for ms, floor in zip(row["ms"], row["floor_ms"])]
    lines += [f"| BEAR / its floor | {spread(over, 2)} | {'' if CUDA else '<= 1.5'} |"] if over else []
    for (case, other), targets in TARGETS.items():
        if values := ratio(rows, case, other):
            seeds = f", {case.num_seeds} seeds" if case.num_seeds > 1 else ""
            lines.append(f"| {case.version}{seeds} / {other.version} | {spread(values, 2)} | {targets[CUDA]} |")
    lines += ["", "| evaluation | task | s |", "|---|---|---|"] if any("s" in row for row in rows) else []
    lines += [f"| {row['what']} | {row['task']} | {spread(row['s'], 2)} |" for row in rows if "s" in row]
    return "\n".join(lines)


def plot(rows: list[dict], path: Path) -> None:
    """How an update's time grows with seeds, batch and passes, in units of BEAR's at the default sizes."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    styles = {"BEAR": ("#000000", "o"), "UWAC analytic": ("#0072B2", "s"), "UWAC mc": ("#D55E00", "^")}
    panels = {"seeds": ("num_seeds", "seeds"), "batch": ("batch_size", "batch"), "passes": ("passes", "T of mc")}
    for axes, (group, (name, label)) in zip(figure.subplots(1, 3, sharey=True), panels.items()):
        of_group = [row for row in rows if row["group"] == group]
        unit = next((row["ms"] for row in of_group if row["version"] == "BEAR"), None)
        for version, (colour, marker) in styles.items():
            cases = [row for row in of_group if row["version"] == version]
            points = [(row[name], median(a / b for a, b in zip(row["ms"], unit))) for row in cases]
            if len(points) == 1:
                axes.axhline(points[0][1], color=colour, label=version)
            elif points:
                axes.plot(*zip(*points), color=colour, marker=marker, label=version)
        axes.set(xscale="log", yscale="log", xlabel=label)
        for axis, values in ((axes.xaxis, sorted({row[name] for row in of_group})), (axes.yaxis, (1, 3, 10, 30))):
            axis.set_major_locator(FixedLocator(values))
            axis.set_major_formatter("{x:,.0f}")
            axis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("time of an update / BEAR's at\n1 seed, batch 256")
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main(args: Args) -> None:
    torch.set_num_threads(args.threads)
    if args.profile:
        agent = make_agent(Case(args.profile))
        agent.update()
        with torch.profiler.profile() as profile:
            for _ in range(20):
                agent.update()
        print(profile.key_averages().table("self_cuda_time_total" if CUDA else "self_cpu_time_total", 30))
        return
    info = Path("/proc/cpuinfo")  # knows the CPU's name, where it exists
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    machine = {"cpu": cpu, "gpu": torch.cuda.get_device_name() if CUDA else None, "torch": torch.__version__}
    machine |= {"python": platform.python_version(), "threads": args.threads}
    rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    for group in args.groups:  # each replaces what the file holds of it, so that one can measure them one by one
        rows = [row for row in rows if row["group"] != group]
        rows += measure_evaluation(args) if group == "evaluation" else measure(group, args)
        args.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))
    rates = [row["product_gflops"] for row in rows if "ms" in row]
    print(*(f"{name} {value}" for name, value in machine.items()), sep=", ")
    print(f"Medians (and ranges); matrix products at {spread(rates, 0)} GFLOP/s.\n")
    print(table(rows))
    plot(rows, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Args))
