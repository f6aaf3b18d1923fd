"""Which part of UWAC's weights bounds Q? UWAC and BEAR with one thing changed.

    python -m benchmark.variants.what_bounds_q --control constant --spectral-norm False

UWAC's weight w is large where Var[Q] is small. Each control takes something from that:
shuffled: a state gets the weight of another state of its mini-batch.
constant: every state gets the mean weight of its mini-batch.
actor-constant: that mean in the actor's loss, a state's own weight in the critics'.
critic-only, actor-only: w in one of the two losses, 1 in the other.
scaled-q: BEAR whose actor divides Q by its mean |Q|, times 2.5 (Fujimoto and Gu, 2021; TD3+BC).
fixed-w: BEAR whose actor has 0.01 Q, or --fixed-w times Q.
The last two need `--weighting none --dropout 0`, and the arguments are uwac.py's.
"""

from typing import Literal

import torch
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass
from torch import Tensor

import uwac

OF_UWAC = ("shuffled", "constant", "actor-constant", "critic-only", "actor-only")
OF_BEAR = ("scaled-q", "fixed-w")


@dataclass
class Args(uwac.Args):
    control: Literal[*OF_UWAC, *OF_BEAR] = "constant"  # what is done to the weights
    fixed_w: NonNegativeFloat = 0.01  # weight in the actor's loss, of --control fixed-w


class Agent(uwac.Agent):
    algorithm = "what_bounds_q"
    args_type = Args

    def __init__(self, args: Args, *dims: int):
        if args.control in OF_BEAR and (args.weighting, args.dropout) != ("none", 0):
            raise ValueError(f"--control {args.control}: needs --weighting none --dropout 0")
        super().__init__(args, *dims)

    @torch.no_grad()
    def uncertainty(self, critic: uwac.Critic, obs: Tensor, action: Tensor) -> Tensor:
        """The control's weight, also where `update` logs a variance: obs (B, D), action (B, A) ->
        (B,). The target critic asks for the critics' loss, the critic for the actor's."""
        control = self.args.control
        in_critic_loss = critic is self.target_critic
        one = torch.ones(action.shape[:-1], device=action.device)
        if control in OF_BEAR:
            if in_critic_loss:
                return one
            if control == "fixed-w":
                return self.args.fixed_w * one
            q = critic(obs, action).amin(0)  # (B,)
            return 2.5 * one / q.abs().mean(-1, keepdim=True)
        if control == ("actor-only" if in_critic_loss else "critic-only"):
            return one
        weight = uwac.uncertainty_weight(super().uncertainty(critic, obs, action), self.args)
        if control == "constant" or (control == "actor-constant" and not in_critic_loss):
            return weight.mean(-1, keepdim=True) * one
        if control == "shuffled":
            order = torch.rand(weight.shape[-1], device=weight.device).argsort()
            return weight[..., order]
        return weight

    def weigh(self, variance: Tensor) -> Tensor:
        """`uncertainty` gives the weight itself."""
        return variance


update = uwac.update

if __name__ == "__main__":
    uwac.command_line(Agent, update, __doc__)
