"""Demonstrations of the hands: the DAPG release's, replayed, and a policy fitted to some.

Shapes: n steps, D observation size, A action size; networks have a leading 1 (seed).
"""

import pickle
from pathlib import Path

import numpy as np
import torch
from torch.distributions import Normal
from tqdm import tqdm

import d4rl
import uwac
from benchmark.datasets.episodes import COLUMNS, check_order, join, to_arrays


class ArraysAlone(pickle.Unpickler):
    """Reads arrays, and makes nothing that could run code."""

    def find_class(self, module, name):
        reconstruct, *_ = np.zeros(0).__reduce__()
        makers = {"ndarray": np.ndarray, "dtype": np.dtype, "_reconstruct": reconstruct}
        if not module.startswith("numpy") or name not in makers:
            raise pickle.UnpicklingError(f"{module}.{name} is no array")
        return makers[name]


def replay(path: Path, task: str) -> dict:
    """All steps of the release's TASK-v0_demos.pickle as D4RL made its human sets: played again
    with clipped actions, no step terminal (scripts/generation/hand_dapg_demos.py there). Raises
    ValueError, and OSError where it cannot be read."""
    env = d4rl.make(task).unwrapped
    episodes = []
    try:
        with open(path, "rb") as file:
            demonstrations = ArraysAlone(file).load()
        for one in demonstrations:
            env.reset(seed=0)
            state = {name: np.float64(one["init_state_dict"][name]) for name in env._state_space}
            env.set_env_state(state)
            obs = env._get_obs()
            rows = []
            for action in one["actions"].clip(-1, 1):
                next_obs, reward, *_ = env.step(action)
                rows.append((obs, action, reward, False, False))
                obs = next_obs
            episodes.append(to_arrays(zip(*rows)))
        return join(episodes)
    except OSError:
        raise
    except Exception as error:  # damage shows in many ways
        problem = f"not the DAPG release's demonstrations of {task}"
        raise ValueError(f"--demos {path}: {problem} ({error})") from error


def read_steps(path: Path, task: str) -> dict:
    """Demonstrations in D4RL's format. Raises ValueError."""
    d4rl.qlearning_dataset(d4rl.make(task), path)  # checks them
    arrays = d4rl.read(path)
    if "timeouts" not in arrays:
        raise ValueError(f"--demos {path}: timeouts missing")
    steps = to_arrays(arrays[name] for name in COLUMNS)
    check_order(path, arrays, steps["terminals"] | steps["timeouts"])
    return steps


def behavior_cloning(demos: dict, updates: int, seed: int) -> uwac.Actor:
    """A Gaussian policy fitted to the actions before the tanh by maximum likelihood."""
    obs, action = (torch.from_numpy(demos[name]) for name in ("observations", "actions"))
    x = action.clamp(-0.999, 0.999).atanh()  # finite
    torch.manual_seed(seed)
    actor = uwac.Actor(1, obs.shape[1], action.shape[1])
    adam = torch.optim.Adam(actor.parameters(), 3e-4, fused=True)
    for _ in tqdm(range(updates), unit="updates", desc="cloning", disable=None):
        index = torch.randint(len(obs), (256,))
        mean, log_std = actor(obs[index][None])
        loss = -Normal(mean, log_std.exp(), validate_args=False).log_prob(x[index]).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return actor
