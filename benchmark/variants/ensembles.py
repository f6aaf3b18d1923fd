"""UWAC with an ensemble or with REM in place of dropout (paper, section 5.6).

    python benchmark/variants/ensembles.py --members rem --env-id door-demo

Each of the two critics has K members. Ensemble ("average-DQN"): Q is the members' mean, and each
member learns the target by itself. REM (Agarwal et al., 2020): Q is a random mixture of the
members, which learns as one. An update draws one mixture for both critics and their targets, and
the mean acts. Var[Q] is the sample variance over the members. (K and the variance are ours, as the
paper gives neither.) The arguments are uwac.py's. Of these --variance and --passes do nothing here,
and --dropout must only stay above 0: members differ without dropout.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to start from any folder

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

import uwac


@dataclass
class Args(uwac.Args):
    members: Literal["ensemble", "rem"] = "ensemble"  # how members make a critic
    ensemble_size: Annotated[int, Field(ge=2)] = 10  # K (ours)


class Critic(uwac.Critic):
    """Twin Q functions of K members each, which are trained like K * S seeds."""

    def __init__(self, args: Args, obs_dim: int, action_dim: int):
        K, S = args.ensemble_size, args.num_seeds
        super().__init__(replace(args, num_seeds=K * S), obs_dim, action_dim)
        self.each_learns = args.members == "ensemble"
        self.register_buffer("mixture", torch.full((K, S), 1 / K))

    def q_of_members(self, obs: Tensor, action: Tensor) -> Tensor:
        """obs (S, B, D), action (S, B, A) or (S, B, N, A) -> (2, K, S, B) or (2, K, S, B, N)."""
        K, S = self.mixture.shape
        q = super().forward(torch.cat([obs] * K), torch.cat([action] * K))
        return q.unflatten(1, (K, S))

    def forward(self, obs: Tensor, action: Tensor, dropout: float | None = None) -> Tensor:
        """Q1, Q2, as uwac.Critic. A rate of dropout tells the regression: what learns by itself,
        of an ensemble (2 * K, S, B)."""
        q = self.q_of_members(obs, action)
        if dropout is not None and self.each_learns:
            return q.flatten(0, 1)
        return torch.einsum("ks,cks...->cs...", self.mixture, q)


class Agent(uwac.Agent):
    algorithm = "ensembles"
    args_type = Args
    critic_type = Critic

    @torch.no_grad()
    def uncertainty(self, critic: Critic, obs: Tensor, action: Tensor) -> Tensor:
        """Var[Q1] + Var[Q2] over the members: obs (S, B, D), action (S, B, A) -> (S, B)."""
        return critic.q_of_members(obs, action).var(1).sum(0)


def update(agent: Agent, data: list[Tensor], step: Tensor) -> dict[str, Tensor]:
    """Algorithm 1 under the members' mean, or under one mixture drawn for each seed (REM)."""
    args = agent.args
    if args.members == "rem":
        drawn = torch.rand_like(agent.critic.mixture)
        agent.critic.mixture.copy_(drawn / drawn.sum(0))
        agent.target_critic.mixture.copy_(agent.critic.mixture)
    metrics = uwac.update(agent, data, step)
    agent.critic.mixture.fill_(1 / args.ensemble_size)  # to act with
    return metrics


if __name__ == "__main__":
    uwac.command_line(Agent, update, __doc__)
