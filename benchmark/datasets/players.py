"""Who can play: policies that ship with the project, those of files, and those of runs.

Shapes: N environments, D observation size, A action size; networks have a leading 1 (seed).
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import d4rl
import uwac
from benchmark.policies import load

POLICIES = Path(__file__).resolve().with_name("policies")


class Player(NamedTuple):
    act: Callable[[np.ndarray], np.ndarray]  # obs (N, D) -> actions (N, A) in [-1, 1]
    env_id: str
    about: str  # words for a file's metadata


def dimensions(env_id: str) -> tuple[int, int]:
    """D and A."""
    env = d4rl.make(env_id)
    return *env.observation_space.shape, *env.action_space.shape


@torch.no_grad()
def sample(actor: uwac.Actor, obs: np.ndarray) -> np.ndarray:
    """One action a state, as D4RL's data are: obs (N, D) -> (N, A)."""
    x = actor.sample(torch.as_tensor(obs, dtype=torch.float32)[None], 1)  # (1, N, 1, A)
    return x.tanh()[0, :, 0].numpy()


def sample_dapg(expert: dict[str, np.ndarray], obs: np.ndarray) -> np.ndarray:
    """The same of an expert of the DAPG release (Rajeswaran et al., 2018), whose actions were
    clipped in D4RL's data."""
    h = (obs - expert["in_shift"]) / (expert["in_scale"] + 1e-8)
    h = np.tanh(h @ expert["w0"].T + expert["b0"])
    h = np.tanh(h @ expert["w1"].T + expert["b1"])
    mean = (h @ expert["w2"].T + expert["b2"]) * expert["out_scale"] + expert["out_shift"]
    noise = torch.randn(mean.shape).numpy()
    return (mean + np.exp(expert["log_std"]) * noise).clip(-1, 1)


def load_player(word: str, seed: int) -> Player:
    """The one that `--policy` names: a run's folder, TASK-random, or a file of a policy, which
    nothing is executed of. Raises ValueError."""
    if Path(word).is_dir():
        return of_run(Path(word))
    task = word.removesuffix("-random")
    if word != task in d4rl.TASKS:
        torch.manual_seed(seed)
        actor = uwac.Actor(1, *dimensions(task))
        return Player(functools.partial(sample, actor), task, f"{word}, SAC before training")
    shipped = {file.stem: file for file in POLICIES.glob("*.npz")}
    try:
        return of_file(Path(shipped.get(word, word)))
    except Exception as error:  # damage shows in many ways
        names = ", ".join([*sorted(shipped), "TASK-random"])
        problem = f"neither a run nor a policy; shipped: {names}"
        raise ValueError(f"--policy {word}: {problem} ({error})") from error


def of_file(path: Path) -> Player:
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    task = task_of(arrays["env"])
    if "log_std" in arrays:
        about = f"{path.stem}, the DAPG release's expert (Rajeswaran et al., 2018)"
        return Player(functools.partial(sample_dapg, arrays), task, about)
    actor = uwac.Actor(1, *dimensions(task))
    actor.load_state_dict({name: torch.from_numpy(arrays[name]) for name in actor.state_dict()})
    about = f"{path.stem}, SAC after {arrays['step']} steps"
    return Player(functools.partial(sample, actor), task, about)


def of_run(run: Path) -> Player:
    """The run's first seed. Raises ValueError."""
    _, agent, saved = load(run)
    agent.cpu()  # a GPU would wait for the environments
    env_id = saved["args"]["env_id"]
    task = d4rl.task_of(env_id)
    if task and "longhorizon" not in env_id:  # else episodes are longer than the task's
        env_id = task
    # Folders mean nothing elsewhere.
    how = saved["args"] | {"run_dir": None, "dataset_path": None}
    how["data"] = saved["data"] | {"path": None}
    about = f"the actor of {agent.algorithm}.py after {saved['updates']} updates"
    return Player(lambda obs: agent.act(obs, 1)[0], env_id, f"{about} with {json.dumps(how)}")


def task_of(environment: str) -> str:
    """D4RL's task, of the Gymnasium id that earlier files have, such as AdroitHandDoor-v1."""
    return str(environment).split("-")[0].lower().removeprefix("adroithand")
