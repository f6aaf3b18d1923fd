"""How near each estimate of Var[Q] comes to the truth, and at what cost.

    python benchmark/measure/variance.py

Trains UWAC (analytic variance, a batch of 64, otherwise the defaults) for each dropout rate, with
spectral norm and without it, and compares estimates on the trained critics with 20,000 passes, at
256 states of the data, with the data's actions and with random ones. "one mask" is uwac.py's mc,
"per-sample masks" the same with masks of each row, as the authors' code draws them. Shape letters
as in uwac.py.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to start from any folder

import functools
from itertools import product
from typing import Annotated

import pandas as pd
import torch
import tyro
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.utils.benchmark import Timer

import d4rl
import uwac
from benchmark.files import OneOrMore, errors_in_one_line, new_path, write_json
from benchmark.policies import load_transitions

Rate = Annotated[float, Field(gt=0, lt=1)]
AtLeast2 = Annotated[int, Field(ge=2)]


@dataclass
class Args:
    env_id: str = "door-demo"  # task on whose data the critics are trained
    total_steps: PositiveInt = 5_000  # updates of each critic
    batch_size: PositiveInt = 64  # B of these
    rates: OneOrMore[Rate] = (0.1, 0.3, 0.5)  # dropout rates
    passes: OneOrMore[AtLeast2] = (10, 30, 100, 300, 1000)  # T of the estimates by passes
    reference_passes: AtLeast2 = 20_000  # T of what counts as the truth, whose own error is 1%
    states: AtLeast2 = 256  # at which estimates are compared and timed
    repetitions: PositiveInt = 50  # of each estimate
    folder: Path = Path("runs/variance")  # of variance.json


def train(args: Args, rate: float, spectral_norm: bool) -> tuple[uwac.Agent, list[Tensor]]:
    """UWAC trained on the task, and its transitions. Raises ValueError, OSError of a download."""
    data = load_transitions(args.env_id, d4rl.download(args.env_id))
    settings = {"env_id": args.env_id, "batch_size": args.batch_size, "variance": "analytic"}
    settings = uwac.Args(**settings, dropout=rate, spectral_norm=spectral_norm)
    torch.manual_seed(0)
    agent = uwac.Agent(settings, data[0].shape[1], data[1].shape[1]).to(uwac.DEVICE)
    for step in range(args.total_steps):
        uwac.update(agent, data, torch.tensor(step))
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
            call = functools.partial(estimate, *inputs, *passes)
            found = pd.DataFrame(compare(call(), truth) for _ in range(args.repetitions))
            timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
            row = {"actions": actions, "estimate": name, "passes": T}
            row["rmse"] = found["mse"].mean() ** 0.5
            row["log_correlation"] = found["log_correlation"].median()
            with torch.random.fork_rng():  # as its number of calls depends on the machine
                rows.append(row | {"ms": 1000 * timer.blocked_autorange().median})
    return rows


def main(args: Args) -> None:
    """Raises ValueError before a file is touched, and OSError."""
    path = new_path(args.folder / "variance.json")
    about = {"hardware": uwac.hardware(), "torch": str(torch.__version__)}
    names = ("env_id", "total_steps", "batch_size", "reference_passes", "states", "repetitions")
    about |= {name: getattr(args, name) for name in names}
    rows = []
    for rate, spectral_norm in product(args.rates, (True, False)):
        agent, data = train(args, rate, spectral_norm)
        settings = {"rate": rate, "spectral_norm": spectral_norm}
        new = [settings | row for row in study(args, agent, data, rate)]
        print(pd.DataFrame(new).to_markdown(index=False, floatfmt=".4g"), end="\n\n")
        rows += [row | about for row in new]
        write_json(path, rows)


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
