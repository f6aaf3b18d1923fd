"""Types of the programs' arguments, and what those with an agent of their own share."""

import copy
from typing import Annotated, TypeVar

import torch
import tyro
from pydantic import Field

import uwac
from benchmark.lib.files import errors_in_one_line

T = TypeVar("T")
OneOrMore = Annotated[tuple[T, ...], Field(min_length=1)]


def put_critic(agent: uwac.Agent, critic: uwac.Critic) -> None:
    """In place of the agent's own, with a target and an optimizer."""
    agent.critic = critic
    agent.target_critic = copy.deepcopy(critic)
    agent.optimizers["critic"] = torch.optim.Adam(
        critic.parameters(), agent.args.critic_lr, fused=True
    )


def train_by_command_line(agent_type: type[uwac.Agent], update, description: str) -> None:
    """As uwac.py's own command line, for another agent and update."""
    with errors_in_one_line():
        args = tyro.cli(agent_type.args_type, description=description)
        if args.resume:  # the run's own arguments become the defaults
            agent, _ = uwac.load_checkpoint(args.resume, agent_type)
            args = tyro.cli(agent_type.args_type, default=agent.args)
        uwac.main(args, agent_type=agent_type, update=update)
