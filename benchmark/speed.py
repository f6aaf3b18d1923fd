"""What an update costs: BEAR, UWAC with both of its variances, and the paper's variance taken to the letter.

    python benchmark/speed.py

Each version stands beside its floor, the time that the matrix products which its update cannot do without would take at
the rate measured in the same run. Sizes are door-human's, data are random numbers, and the machine should have nothing
else to do. The versions take turns, round after round, so that what slows the machine slows all of them, and ratios
are medians of the rounds' ratios. Each version has a process of its own, as in a run: what one leaves behind in the
memory allocator can speed another up by a tenth. Shape letters as in uwac.py.
"""

import json
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
import torch
import tyro
from torch import Tensor
from torch.nn.functional import dropout
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[1]))
import bear
import uwac

OBS_DIM, ACTION_DIM, NUM_CRITICS = 39, 28, 2
VERSIONS = {  # updates in a round
    "BEAR": 10,
    "UWAC analytic": 10,
    "UWAC mc": 3,
    "UWAC literal": 1,  # all T passes as one batch, as in the authors' code
    "UWAC literal, pass by pass": 1,  # kinder to memory and caches
}
TARGETS = {
    ("BEAR", "BEAR's floor"): "<= 1.7",
    ("UWAC analytic", "BEAR"): "<= 1.15",
    ("UWAC mc", "BEAR"): "<= 4",
    ("UWAC literal", "UWAC analytic"): ">= 40",
    ("UWAC literal, pass by pass", "UWAC analytic"): "",
}


@dataclass
class Args:
    threads: int = 2  # CPU threads of torch
    repetitions: int = 9  # rounds; the literal versions, at seconds an update, take part in every third
    num_seeds: int = 1  # S, agents trained side by side
    batch_size: int = 256  # B, transitions in a mini-batch
    json: Path | None = None  # file for all times, FLOPs, hardware and versions


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


def start_worker(version: str, args: Args) -> None:
    global agent  # the one of this process
    torch.set_num_threads(args.threads)
    shapes = {"obs": (OBS_DIM,), "action": (ACTION_DIM,), "reward": (), "next_obs": (OBS_DIM,), "done": ()}
    rng = np.random.default_rng(0)
    dataset = {name: rng.uniform(-1, 1, (10_000, *shape)).astype(np.float32) for name, shape in shapes.items()}
    dataset["done"][:] = 0
    sizes = {"env_id": "door-human", "num_seeds": args.num_seeds, "batch_size": args.batch_size}
    torch.manual_seed(0)
    if version == "BEAR":
        agent = bear.Agent(bear.Args(**sizes), dataset, torch.device("cpu"))
    else:
        script_args = uwac.Args(**sizes, variance="analytic" if version == "UWAC analytic" else "mc")
        agent = (LiteralAgent if "literal" in version else uwac.Agent)(script_args, dataset, torch.device("cpu"))
    if version == "UWAC literal":  # as many as fit into 256,000 rows, which take 2.5 GB
        agent.passes_at_once = max(1, 256_000 // (args.num_seeds * args.batch_size * script_args.num_candidates))
    with FlopCounterMode(display=False) as counter:  # the first update also allocates memory
        agent.update()
    done, floor = counter.get_total_flops(), sum(count_flops(version, args).values())
    if done < floor:
        raise RuntimeError(f"{version}: {done} FLOPs, under its floor of {floor}: speed.py no longer fits the scripts")


def time_updates(count: int) -> float:
    """Milliseconds of one of this process's updates, the mean of `count`."""
    start = time.perf_counter()
    for _ in range(count):
        agent.update()
    return 1000 * (time.perf_counter() - start) / count


def count_flops(version: str, args: Args) -> dict[str, int]:
    """Matrix products of one update, part by part: the least that the algorithm needs, none of them twice. Left out is
    what is small beside them: the kernels of MMD, and the products with vectors of spectral norm."""
    D, A, L, H, V = OBS_DIM, ACTION_DIM, 2 * ACTION_DIM, 256, 750  # L: latent size; H, V: hidden units, V in the VAE
    settings = uwac.Args(env_id="door-human")
    B, C, N, M, T = args.batch_size, NUM_CRITICS, settings.num_candidates, settings.num_mmd_samples, settings.passes

    def flops(rows: int, *sizes: int) -> int:
        """A network from the first size to the last, two FLOPs a weight and row. The gradient of its weights costs the
        same, and so does that of its input, from the last size back to the first one that needs it."""
        return args.num_seeds * 2 * rows * sum(a * b for a, b in pairwise(sizes))

    parts = {
        "VAE encoder": 2 * flops(B, D + A, V, V, 2 * L) + flops(B, V, V, 2 * L),
        "VAE decoder": 2 * flops(B, D + L, V, V, A) + flops(B, L, V, V, A),
        "target actor": flops(B, D, H, H, 2 * A),
        "target critics": C * (flops(B, D, H) + flops(B * N, A, H, H, 1)),  # the state's half once a state
        "critics": C * (2 * flops(B, D + A, H, H, 1) + flops(B, H, H, 1)),
        "actor": 2 * flops(B, D, H, H, 2 * A) + flops(B, H, H, 2 * A),
        "VAE samples": flops(B, D, V) + flops(B * M, L, V, V, A),
        "Q of the policy": C * (flops(B, D + A, H, H, 1) + flops(B, A, H, H, 1)),
    }
    variance = {  # in the target and for the policy; both begin at hidden layers that are known from above
        "BEAR": 0,
        "UWAC analytic": 2 * C * 2 * flops(B, H, H),
        "UWAC mc": 2 * C * T * flops(B, H, H, 1),
    }
    return parts | {"variance": variance.get(version, C * T * flops(B * N + B, D + A, H, H, 1))}


def product_rate() -> float:
    """GFLOP/s of a large float32 matrix product: the best of several, the decoder's widest and a square one."""
    rates = []
    for rows, inner, columns in [(2560, 750, 750), (2048, 2048, 2048)] * 5:
        a, b, out = torch.randn(rows, inner), torch.randn(inner, columns), torch.zeros(rows, columns)
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        rates.append(2 * rows * inner * columns / (time.perf_counter() - start) / 1e9)
    return max(rates)


def measure(args: Args) -> list[dict[str, float]]:
    """For each round: ms of an update of each version that takes part, ms of each floor, and the rate behind these."""
    spawn = get_context("spawn")
    workers = {name: ProcessPoolExecutor(1, spawn, start_worker, (name, args)) for name in VERSIONS}
    for start in [worker.submit(time_updates, 1) for worker in workers.values()]:
        start.result()  # none is still starting when the clock runs
    rounds = []
    for i in range(args.repetitions):
        times = {"GFLOP/s": product_rate()}
        for name, updates in VERSIONS.items():
            times[f"{name}'s floor"] = sum(count_flops(name, args).values()) / times["GFLOP/s"] / 1e6
            if i % 3 == 0 or "literal" not in name:
                times[name] = workers[name].submit(time_updates, updates).result()
        rounds.append(times)
    return rounds


def main(args: Args) -> None:
    torch.set_num_threads(args.threads)
    rounds = measure(args)

    def spread(digits: int, name: str, other: str | None = None) -> str:
        values = [row[name] / (row[other] if other else 1) for row in rounds if name in row]
        return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"

    info = Path("/proc/cpuinfo")  # knows the CPU's name, where it exists
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    machine = {"cpu": cpu, "torch": torch.__version__, "python": platform.python_version()}
    print(*(f"{name} {value}" for name, value in machine.items()), sep=", ", end="; ")
    print(*(f"{name} {value}" for name, value in asdict(args).items() if name != "json"), sep=", ")
    print(f"Medians (and ranges); matrix products at {spread(0, 'GFLOP/s')} GFLOP/s.\n")
    print("| version | ms per update | GFLOP | floor, ms | over its floor |\n|---|---|---|---|---|")
    for name in VERSIONS:
        gflop, floor = sum(count_flops(name, args).values()) / 1e9, f"{name}'s floor"
        print(f"| {name} | {spread(1, name)} | {gflop:.2f} | {spread(1, floor)} | {spread(2, name, floor)} |")
    print("\n| ratio | measured | target |\n|---|---|---|")
    for (name, other), target in TARGETS.items():
        print(f"| {name} / {other} | {spread(2, name, other)} | {target} |")
    if args.json:
        flops = {name: count_flops(name, args) for name in VERSIONS}
        result = {"machine": machine, "args": asdict(args), "flops": flops, "rounds": rounds}
        args.json.write_text(json.dumps(result, indent=2, default=str))


if __name__ == "__main__":
    main(tyro.cli(Args))
