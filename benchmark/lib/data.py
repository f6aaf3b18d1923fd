"""A task's data: as the scripts' `update` takes them, and its episodes' returns."""

from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import d4rl
import uwac
from benchmark.lib.episodes import returns_of


def load_transitions(env_id: str, dataset: str | Path) -> list[Tensor]:
    """obs (n, D), action (n, A) in [-1, 1], reward (n,), next_obs (n, D), done (n,) of a file, on
    the scripts' device. Raises ValueError and OSError."""
    with closing(d4rl.make(env_id)) as env:
        transitions = d4rl.qlearning_dataset(env, dataset)
    return [torch.as_tensor(array, device=uwac.DEVICE) for array in transitions.values()]


def returns_of_data(env_id: str, dataset: str | Path) -> np.ndarray:
    """Of each whole episode of a file. Without timeouts, time ends one where it does in training.
    Raises ValueError."""
    arrays = d4rl.read(dataset)
    if "timeouts" not in arrays:
        terminals = np.ravel(arrays["terminals"]) != 0
        limit = d4rl.step_limit_of(d4rl.make(env_id))
        original = d4rl.describe(dataset)["d4rl"]
        arrays = arrays | {"timeouts": d4rl.timeouts_by_limit(terminals, limit, original)}
    return returns_of(arrays)
