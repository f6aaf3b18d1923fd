"""How near each estimate of Var[Q] comes to the truth, and at what cost.

    python benchmark/variance.py

Trains UWAC (analytic variance, a batch of 64, otherwise the defaults) for each dropout rate, with
spectral norm and without it, and compares estimates on the trained critics with 20,000 passes, at
256 states of the data, with the data's actions and with random ones. "one mask" is uwac.py's mc,
"per-sample masks" the same with masks of each row, as the authors' code draws them. Shape letters
as in uwac.py.
"""

import math
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median

import torch
import tyro
from lib.files import errors_in_one_line, hardware, write_json
from torch import Tensor

import d4rl
import uwac


@dataclass
class Args:
    env_id: str = "door-demo"  # task on whose data the critics are trained
    total_steps: int = 5_000  # updates of each critic
    batch_size: int = 64  # B of these
    rates: tuple[float, ...] = (0.1, 0.3, 0.5)  # dropout rates
    passes: tuple[int, ...] = (10, 30, 100, 300, 1000)  # T of the estimates by passes
    reference_passes: int = 20_000  # T of what counts as the truth, which leaves an error of 1%
    states: int = 256  # at which estimates are compared and timed
    repetitions: int = 50  # of each estimate
    folder: Path = Path("runs/variance")  # of variance.json


def train(args: Args, rate: float, spectral_norm: bool) -> tuple[uwac.Agent, list[Tensor]]:
    """UWAC trained on the task, and its transitions. Raises ValueError, OSError of a download."""
    env = d4rl.make(args.env_id)
    transitions = d4rl.qlearning_dataset(env)
    settings = {"env_id": args.env_id, "batch_size": args.batch_size, "variance": "analytic"}
    settings = uwac.Args(**settings, dropout=rate, spectral_norm=spectral_norm)
    torch.manual_seed(0)
    dims = (*env.observation_space.shape, *env.action_space.shape)
    agent = uwac.Agent(settings, *dims).to(uwac.DEVICE)
    data = [torch.as_tensor(array, device=uwac.DEVICE) for array in transitions.values()]
    data[1] = data[1].clamp(-1, 1)
    for step in range(args.total_steps):
        uwac.update(agent, data, step, settings)
    return agent, data


@torch.no_grad()
def row_masks_variance(critic: uwac.Critic, obs: Tensor, action: Tensor, p: float, T: int):
    """uwac.mc_dropout_variance with masks of each row: (S, B, D), (S, B, A) -> (2, S, B)."""
    return torch.stack([critic(obs, action, p) for _ in range(T)]).var(0)


def compare(estimate: Tensor, truth: Tensor) -> dict[str, float]:
    """Relative mean square error, and correlation of the logarithms."""
    error = (estimate / truth - 1).square().mean()
    logs = torch.stack([estimate.flatten().log(), truth.flatten().log()])
    return {"mse": error.item(), "log_correlation": torch.corrcoef(logs)[0, 1].item()}


def seconds() -> float:
    if uwac.DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def study(args: Args, agent: uwac.Agent, data: list[Tensor], rate: float) -> list[dict]:
    """A row for each kind of actions, estimate and T: over all repetitions the root mean square of
    its error, which with one mask is common to all states; the median of its correlation, and of
    its time in ms for all states and both critics."""
    index = torch.randperm(len(data[0]))[: args.states]
    obs, known = (array[index].unsqueeze(0) for array in data[:2])  # (1, B, ...)
    estimates = [("analytic", 0, uwac.analytic_dropout_variance, ())]
    for T in args.passes:
        estimates.append(("one mask", T, uwac.mc_dropout_variance, (T,)))
        estimates.append(("per-sample masks", T, row_masks_variance, (T,)))
    rows = []
    for actions, action in (("data", known), ("random", torch.rand_like(known) * 2 - 1)):
        inputs = agent.critic, obs, action, rate
        truth = uwac.mc_dropout_variance(*inputs, args.reference_passes)
        for name, T, estimate, passes in estimates:
            found = []
            for _ in range(args.repetitions):
                began = seconds()
                variance = estimate(*inputs, *passes)
                ms = 1000 * (seconds() - began)
                found.append({"ms": ms, **compare(variance, truth)})
            row = {"actions": actions, "estimate": name, "passes": T}
            row["rmse"] = math.sqrt(fmean(one["mse"] for one in found))
            medians = {key: median(one[key] for one in found) for key in ("log_correlation", "ms")}
            rows.append(row | medians)
    return rows


def main(args: Args) -> None:
    """Raises ValueError for numbers that give no variance, before a file is touched."""
    counts = [len(args.rates), len(args.passes), args.total_steps, args.batch_size]
    if min(*counts, args.repetitions) < 1:
        names = "--rates, --passes, --total-steps, --batch-size and --repetitions"
        raise ValueError(f"{names}: at least one of each")
    if min(*args.passes, args.reference_passes, args.states) < 2:
        raise ValueError("--passes, --reference-passes and --states must be at least 2")
    if not all(0 < rate < 1 for rate in args.rates):
        raise ValueError("--rates must be above 0 and below 1")
    path = args.folder.expanduser() / "variance.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"hardware": hardware(f"{uwac.DEVICE}, {torch.get_num_threads()} threads")}
    about["torch"] = str(torch.__version__)
    rows = []
    print("| p | spectral norm | actions | estimate | T | RMSE | log-correlation | ms |")
    print("|---|---|---|---|---|---|---|---|")
    for rate, spectral_norm in product(args.rates, (True, False)):
        agent, data = train(args, rate, spectral_norm)
        settings = {"rate": rate, "spectral_norm": spectral_norm}
        for row in study(args, agent, data, rate):
            rows.append(settings | row | about)
            head = f"| {rate} | {spectral_norm} | {row['actions']} | {row['estimate']}"
            errors = f"{row['rmse']:.3f} | {row['log_correlation']:.4f} | {row['ms']:.1f} |"
            print(f"{head} | {row['passes']} | {errors}")
        write_json(path, rows)


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args))
