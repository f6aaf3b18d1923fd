"""A task's data as the scripts' `update` takes them."""

from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

import d4rl
import uwac


def load_transitions(env_id: str, dataset: str | Path) -> list[Tensor]:
    """obs (n, D), action (n, A) in [-1, 1], reward (n,), next_obs (n, D), done (n,) of a file, on
    the scripts' device. Raises ValueError and OSError."""
    with closing(d4rl.make(env_id)) as env:
        transitions = d4rl.qlearning_dataset(env, dataset)
    return [torch.as_tensor(array, device=uwac.DEVICE) for array in transitions.values()]
