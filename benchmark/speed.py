"""What an update costs: BEAR, UWAC with both of its variances, and the paper's variance taken to the letter.

    python benchmark/speed.py

Each version stands beside its floor: the time in which this machine, in this run, could do the matrix products that the
update cannot do without. The sizes are door-human's (D = 39, A = 28), the data are random numbers, the machine should
have nothing else to do. All versions are timed in turns, round after round, so that a machine that slows down slows all
of them; a ratio is the median of the rounds' ratios. Shape letters as in uwac.py.
"""

import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
import tyro
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))
import bear
import uwac

OBS_DIM, ACTION_DIM, NUM_CRITICS, TRANSITIONS = 39, 28, 2, 10_000
TARGETS = {  # of ratios: at most, or at least
    ("BEAR", "BEAR, floor"): "<= 1.7",
    ("UWAC analytic", "BEAR"): "<= 1.15",
    ("UWAC mc", "BEAR"): "<= 4",
    ("UWAC literal", "UWAC analytic"): ">= 40",
}


@dataclass
class Args:
    threads: int = 2  # CPU threads of torch
    repetitions: int = 9  # rounds; the literal version, at seconds an update, sits out two of three
    num_seeds: int = 1  # S, agents trained side by side
    batch_size: int = 256  # B, transitions in a mini-batch
    json: Path | None = None  # where to write every time, the hardware and the versions


class LiteralAgent(uwac.Agent):
    """UWAC as one would first write it down: every pass runs the whole critic, on all N candidates."""

    def q_values(self, critic: uwac.Critic, obs: Tensor, action: Tensor, dropout: float = 0.0) -> Tensor:
        if action.dim() == 4:  # (S, B, N, A): the candidates among which `update` then takes the best
            self.candidates = action
        return super().q_values(critic, obs, action, dropout)

    @torch.no_grad()
    def q_variance(self, critic: uwac.Critic, obs: Tensor, action: Tensor) -> Tensor:
        """As in uwac.py: the variances of all candidates, of which that of `action` is taken; in the actor's loss, that
        of `action` alone."""
        at_target = critic is self.target_critic
        actions = self.candidates if at_target else action.unsqueeze(2)  # (S, B, N, A)
        pairs = torch.cat([obs.unsqueeze(2).expand(-1, -1, actions.shape[2], -1), actions], dim=-1)
        pairs = pairs.flatten(1, 2).repeat_interleave(NUM_CRITICS, 0)  # (S * C, B * N, D + A)
        variance = self.stochastic_q(critic, pairs).var(0)  # (S * C, B * N)
        variance = variance.unflatten(0, (-1, NUM_CRITICS)).sum(1).unflatten(1, actions.shape[1:3])  # (S, B, N)
        taken = (actions == action.unsqueeze(2)).all(-1).int().argmax(-1, keepdim=True)
        return variance.take_along_dim(taken, 2).squeeze(2)

    def stochastic_q(self, critic: uwac.Critic, pairs: Tensor) -> Tensor:
        """T passes: (S * C, B * N, D + A) -> (T, S * C, B * N)."""
        (w1, b1), (w2, b2), (w3, b3) = ((layer.weight, layer.bias) for layer in critic.layers)
        q = []
        for _ in range(self.args.passes):  # one by one, which takes less memory than all at once, and less time
            h = F.dropout(torch.relu(torch.bmm(pairs, w1) + b1), self.args.dropout)
            h = F.dropout(torch.relu(torch.bmm(h, w2) + b2), self.args.dropout)
            q.append((torch.bmm(h, w3) + b3).squeeze(2))
        return torch.stack(q)


def count_flops(version: str, args: uwac.Args) -> dict[str, int]:
    """Matrix products of one update, part by part: the least that its definition needs, nothing twice.

    Left out is what is small beside them: the kernels of MMD and spectral norm's products with a vector.
    """
    D, A, L, H, V = OBS_DIM, ACTION_DIM, 2 * ACTION_DIM, 256, 750  # L: latent size; H, V: hidden units, of the VAE
    S, C, B, T = args.num_seeds, NUM_CRITICS, args.batch_size, args.passes
    N, M = args.num_candidates, args.num_mmd_samples

    def flops(rows: int, *sizes: int) -> int:
        """A network from its first size to its last, two FLOPs a weight and row. The gradient of the weights costs the
        same; that of the input too, from the last size down to the first that needs it."""
        return S * 2 * rows * sum(a * b for a, b in pairwise(sizes))

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
    # Both variances, in the target and for the policy, start from hidden layers that are known from above.
    if version == "UWAC analytic":
        parts["variance"] = 2 * C * flops(B, H, H)
    elif version == "UWAC mc":
        parts["variance"] = 2 * C * T * flops(B, H, H, 1)
    elif version == "UWAC literal":
        parts["variance"] = C * T * flops(B * N + B, D + A, H, H, 1)
    return parts


def processor() -> str:
    """The CPU's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def make_agents(args: Args) -> dict[str, bear.Agent | uwac.Agent]:
    dataset = {"obs": (OBS_DIM,), "action": (ACTION_DIM,), "reward": (), "next_obs": (OBS_DIM,), "done": ()}
    rng = np.random.default_rng(0)
    dataset = {name: rng.uniform(-1, 1, (TRANSITIONS, *shape)).astype(np.float32) for name, shape in dataset.items()}
    dataset["done"][:] = 0
    torch.manual_seed(0)
    shared = {"env_id": "door-human", "num_seeds": args.num_seeds, "batch_size": args.batch_size}
    return {
        "BEAR": bear.Agent(bear.Args(**shared), dataset, torch.device("cpu")),
        "UWAC analytic": uwac.Agent(uwac.Args(**shared, variance="analytic"), dataset, torch.device("cpu")),
        "UWAC mc": uwac.Agent(uwac.Args(**shared), dataset, torch.device("cpu")),
        "UWAC literal": LiteralAgent(uwac.Args(**shared), dataset, torch.device("cpu")),
    }


def seconds(call: Callable[[], object], count: int) -> float:
    """Time of one call, the mean of `count`."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def product_rate() -> float:
    """FLOPs a second of a large float32 matrix product: the best of several, the decoder's widest and a square one."""
    rates = []
    for rows, inner, columns in [(2560, 750, 750), (2048, 2048, 2048)] * 5:
        a, b, out = torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)
        rates.append(2 * rows * inner * columns / seconds(partial(torch.mm, a, b, out=out), 2))
    return max(rates)


def measure(agents: dict[str, bear.Agent], flops: dict[str, int], repetitions: int) -> list[dict[str, float]]:
    """For each round: ms of an update of each version, ms of its floor, and the rate behind the floors."""
    updates = {"BEAR": 10, "UWAC analytic": 10, "UWAC mc": 3, "UWAC literal": 1}  # in a round
    for agent in agents.values():
        agent.update()  # the first one also allocates memory
    rounds = []
    for i in range(repetitions):
        rate = product_rate()
        times = {"GFLOP/s": rate / 1e9} | {f"{name}, floor": 1000 * flops[name] / rate for name in agents}
        for name, agent in agents.items():
            if i % 3 == 0 or name != "UWAC literal":
                times[name] = 1000 * seconds(agent.update, updates[name])
        rounds.append(times)
    return rounds


def spread(values: list[float], digits: int) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main(args: Args) -> None:
    torch.set_num_threads(args.threads)
    agents = make_agents(args)
    parts = {name: count_flops(name, agents["UWAC mc"].args) for name in agents}
    rounds = measure(agents, {name: sum(flops.values()) for name, flops in parts.items()}, args.repetitions)

    def times(name: str) -> list[float]:
        return [row[name] for row in rounds if name in row]

    def ratios(name: str, other: str) -> list[float]:
        return [row[name] / row[other] for row in rounds if name in row]

    machine = {"processor": processor(), "threads": args.threads, "python": platform.python_version()}
    machine["torch"] = torch.__version__
    print(*(f"{key} {value}" for key, value in machine.items()), sep=", ", end="; ")
    print(f"S = {args.num_seeds}, B = {args.batch_size}; products at {spread(times('GFLOP/s'), 0)} GFLOP/s")
    print(f"Medians (and ranges) of {args.repetitions} rounds, {len(times('UWAC literal'))} for the literal version.\n")
    print("| version | ms per update | GFLOP | floor, ms | over its floor |\n|---|---|---|---|---|")
    for name in agents:
        floor, gflop = f"{name}, floor", sum(parts[name].values()) / 1e9
        columns = [spread(times(name), 1), f"{gflop:.2f}", spread(times(floor), 1), spread(ratios(name, floor), 2)]
        print("|", " | ".join([name, *columns]), "|")
    print("\n| ratio | measured | target |\n|---|---|---|")
    for (name, other), target in TARGETS.items():
        print(f"| {name} / {other.removeprefix('BEAR, ')} | {spread(ratios(name, other), 2)} | {target} |")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"machine": machine, "flops": parts, "rounds": rounds}, indent=2))


if __name__ == "__main__":
    main(tyro.cli(Args))
