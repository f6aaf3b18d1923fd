"""UWAC as its authors' code has it (ml-uwac), where that differs from the paper.

    python benchmark/variants/uwac_code.py --env-id door-demo

Its Q1 and Q2 are means of T stochastic passes, which draw masks of their own for each action. Such
a mean is nearly normal around the deterministic Q, with variance Var[Q] / T. So here a normal
number of that variance, by the closed form of Var[Q], is added to Q: in the targets, where a
maximum over candidates turns it into a bias, in the actor's loss, and in the choice of an action.
The other differences are defaults: exp weights, 4 actions for the MMD, and spectral norm and the
Gaussian kernel on every task. docs/fidelity.md lists what remains.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to start from any folder

from typing import Literal

import torch
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

import uwac
from benchmark.variants import weights


@dataclass
class Args(weights.Args):
    # as of weights.py, or the paper's: variance
    weighting: Literal["variance", *weights.OF_VARIANCE, *weights.WITHOUT_VARIANCE] = "exp"
    spectral_norm: Literal["auto", True, False] = True  # of the critics
    num_mmd_samples: PositiveInt = 4  # actions per state in the MMD, M
    mmd_kernel: Literal["auto", "gaussian", "laplacian"] = "gaussian"  # of the MMD


class Critic(uwac.Critic):
    """Twin Q functions with the noise of a mean of T stochastic passes."""

    def __init__(self, args: Args, obs_dim: int, action_dim: int):
        super().__init__(args, obs_dim, action_dim)
        self.dropout = args.dropout
        self.passes = args.passes

    def forward(self, obs: Tensor, action: Tensor, dropout: float = 0.0) -> Tensor:
        """As uwac.Critic's. The regression, which gives a rate of dropout, has a single pass."""
        q = super().forward(obs, action, dropout)
        if dropout > 0:
            return q
        variance = uwac.analytic_dropout_variance(self, obs, action, self.dropout)
        return q + (variance / self.passes).sqrt() * torch.randn_like(q)


class Agent(weights.Agent):
    algorithm = "uwac_code"
    args_type = Args
    critic_type = Critic


update = uwac.update

if __name__ == "__main__":
    uwac.command_line(Agent, update, __doc__)
