"""Types of the programs' arguments, and what agents with a critic of their own share."""

import copy
from typing import Annotated, TypeVar

import torch
from pydantic import Field

import uwac

T = TypeVar("T")
Seed = Annotated[int, Field(ge=0, lt=2**63)]
OneOrMore = Annotated[tuple[T, ...], Field(min_length=1)]


def put_critic(agent: uwac.Agent, critic: uwac.Critic) -> None:
    """In place of the agent's own, with a target and an optimizer."""
    agent.critic = critic
    agent.target_critic = copy.deepcopy(critic)
    args = agent.args
    adam = torch.optim.Adam(
        critic.parameters(), args.critic_lr, fused=True, capturable=args.cuda_graph
    )
    agent.optimizers["critic"] = adam
