"""UWAC with an ensemble or with REM in place of dropout (paper, section 5.6).

    python benchmark/ensembles.py --members rem --env-id door-demo

Each of the two critics has K members. Ensemble ("average-DQN"): Q is the members' mean, and each
member learns the target by itself. REM (Agarwal et al., 2020): Q is a random mixture of the
members, which learns as one; an update draws one mixture for both critics and their targets, and
what acts is the mean. Var[Q] is the sample variance over the members (ours, as K: the paper gives
neither). The arguments are uwac.py's, of which --variance and --passes do nothing here.
"""

import functools
import sys
from pathlib import Path
from typing import Annotated, Literal
from unittest import mock

import pydantic
import torch
import tyro
from ending import errors_in_one_line
from pydantic import Field
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import uwac
from uwac import update as algorithm_1


@pydantic.dataclasses.dataclass
class Members:
    members: Literal["ensemble", "rem"] = "ensemble"  # how members make a critic
    ensemble_size: Annotated[int, Field(ge=2)] = 10  # K (ours)


@pydantic.dataclasses.dataclass
class Args(uwac.Args, Members):  # Members first among the fields: a run keeps them on --resume
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0  # members differ without it


class Critic(uwac.Critic):
    """Twin Q functions of K members each, which are trained like K * S seeds."""

    def __init__(self, args: Args, S: int, obs_dim: int, action_dim: int, spectral_norm: bool):
        K = args.ensemble_size
        super().__init__(K * S, obs_dim, action_dim, spectral_norm)
        self.each_learns = args.members == "ensemble"
        self.register_buffer("mixture", torch.full((K, S), 1 / K))

    def q_of_members(self, obs: Tensor, action: Tensor, dropout: float = 0.0) -> Tensor:
        """obs (S, B, D), action (S, B, A) or (S, B, N, A) -> (2, K, S, B) or (2, K, S, B, N)."""
        K, S = self.mixture.shape
        q = super().forward(torch.cat([obs] * K), torch.cat([action] * K), dropout)
        return q.unflatten(1, (K, S))

    def forward(self, obs: Tensor, action: Tensor, dropout: float | None = None) -> Tensor:
        """Q1, Q2, as uwac.Critic. A rate of dropout tells the regression: what learns by itself,
        of an ensemble (2 * K, S, B)."""
        q = self.q_of_members(obs, action, dropout or 0.0)
        if dropout is not None and self.each_learns:
            return q.flatten(0, 1)
        return torch.einsum("ks,cks...->cs...", self.mixture, q)


class Agent(uwac.Agent):
    def __init__(self, args: Args, obs_dim: int, action_dim: int):
        with mock.patch.object(uwac, "Critic", functools.partial(Critic, args)):
            super().__init__(args, obs_dim, action_dim)


def update(agent: Agent, data: list[Tensor], step: int | Tensor, args: Args) -> dict[str, Tensor]:
    """Algorithm 1 under the members' mean, or under one mixture drawn for each seed (REM)."""
    if args.members == "rem":
        drawn = torch.rand_like(agent.critic.mixture)
        agent.critic.mixture.copy_(drawn / drawn.sum(0))
        agent.target_critic.mixture.copy_(agent.critic.mixture)
    metrics = algorithm_1(agent, data, step, args)
    agent.critic.mixture.fill_(1 / args.ensemble_size)  # to act with
    return metrics


@torch.no_grad()
def uncertainty(critic: Critic, obs: Tensor, action: Tensor, args: Args) -> Tensor:
    """Var[Q1] + Var[Q2] over the members: obs (S, B, D), action (S, B, A) -> (S, B)."""
    return critic.q_of_members(obs, action).var(1).sum(0)


GIT_LOG = f"git -C '{ROOT}' log -1 --format=%H uwac.py benchmark/ensembles.py 2>/dev/null"
in_uwac = mock.patch.multiple(  # what stands here, in place of uwac.py's
    uwac,
    SCRIPT="ensembles",
    GIT_LOG=GIT_LOG,
    Args=Args,
    Agent=Agent,
    update=update,
    uncertainty=uncertainty,
)
main = in_uwac(uwac.main)
load_checkpoint = in_uwac(uwac.load_checkpoint)


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args))
