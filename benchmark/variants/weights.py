"""UWAC with other weights than the paper's, or none: ablations, and controls of what bounds Q.

    python benchmark/variants/weights.py --weighting std --env-id door-demo
    python benchmark/variants/weights.py --weighting none --dropout 0 --spectral-norm True

The second line is BEAR + spectral norm. The arguments are uwac.py's, but --dropout may be 0 where
no weight needs Var[Q]. Where V is Var[Q1] + Var[Q2] and w the paper's weight beta / V, it is
  none                    1: BEAR with dropout, with spectral norm, or both
  std                     beta / sqrt(V) (section 5.6), with uwac.py's beta and limit: the paper
                          gives no others
  exp                     exp(-beta V) (the authors' code, whose beta is 0.5 and limit 1)
  shuffled                w of another state of the mini-batch
  constant                the mean of w over the mini-batch
  actor-constant          that mean in the actor's loss, w in the critics'
  critic-only, actor-only  w in one of the two losses, 1 in the other
  scaled-q                1 in the critics' loss, 2.5 / mean |Q| in the actor's (Fujimoto and Gu,
                          2021; TD3+BC)
  fixed-w                 1 in the critics' loss, --fixed-w in the actor's
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to start from any folder

from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass
from torch import Tensor

import uwac

WITHOUT_VARIANCE = ("none", "scaled-q", "fixed-w")
OF_VARIANCE = ("std", "exp", "shuffled", "constant", "actor-constant", "critic-only", "actor-only")


@dataclass
class Args(uwac.Args):
    weighting: Literal[*WITHOUT_VARIANCE, *OF_VARIANCE] = "none"  # see above
    fixed_w: NonNegativeFloat = 0.01  # weight in the actor's loss, of fixed-w
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1  # rate after each hidden layer
    beta: PositiveFloat | Literal["auto"] = "auto"  # auto: 0.5 for exp (ml-uwac), else uwac.py's
    weight_clip: PositiveFloat | Literal["auto"] = "auto"  # auto: 1 for exp, else uwac.py's

    def __post_init__(self):
        super().__post_init__()
        is_exp = self.weighting == "exp"
        if self.beta == "auto":
            self.beta = 0.5 if is_exp else uwac.Args.beta
        if self.weight_clip == "auto":
            self.weight_clip = 1.0 if is_exp else uwac.Args.weight_clip


class Agent(uwac.Agent):
    algorithm = "weights"
    args_type = Args

    def __init__(self, args: Args, *dims: int):
        if args.dropout == 0 and args.weighting not in WITHOUT_VARIANCE:
            allowed = ", ".join(WITHOUT_VARIANCE)
            raise ValueError(f"--dropout 0: no variance to weigh by; --weighting must be {allowed}")
        super().__init__(args, *dims)

    def uncertainty(self, critic: uwac.Critic, obs: Tensor, action: Tensor) -> Tensor:
        """As uwac.Agent's. Where no weight needs it, it is a metric: 0 without dropout, and with
        it the cheaper estimate."""
        args = self.args
        if args.dropout == 0:
            return torch.zeros(action.shape[:-1], device=action.device)
        if args.weighting in WITHOUT_VARIANCE:
            return uwac.analytic_dropout_variance(critic, obs, action, args.dropout).sum(0)
        return super().uncertainty(critic, obs, action)

    def weigh(self, variance: Tensor, q: Tensor, loss: Literal["critic", "actor"]) -> Tensor:
        args = self.args
        ones = torch.ones_like(variance)
        match args.weighting, loss:
            case "scaled-q", "actor":
                return 2.5 * ones / q.abs().mean(-1, keepdim=True)
            case "fixed-w", "actor":
                return args.fixed_w * ones
            case ("none" | "scaled-q" | "fixed-w", _) | ("critic-only", "actor"):
                return ones
            case "actor-only", "critic":
                return ones
            case "std", _:
                return (args.beta / variance.sqrt()).clamp(max=args.weight_clip)
            case "exp", _:
                return torch.exp(-args.beta * variance).clamp(max=args.weight_clip)
        weight = super().weigh(variance, q, loss)
        match args.weighting, loss:
            case ("constant", _) | ("actor-constant", "actor"):
                return weight.mean(-1, keepdim=True) * ones
            case "shuffled", _:
                order = torch.rand(weight.shape[-1], device=weight.device).argsort()
                return weight[:, order]
        return weight


update = uwac.update

if __name__ == "__main__":
    uwac.command_line(Agent, update, __doc__)
