"""Runs' agents, the policies that evaluate.py plays of them, and what it found before."""

import functools
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

import d4rl
import uwac
from benchmark.lib.files import read_json, rows_of
from benchmark.lib.methods import SCRIPTS, script_of

POLICIES = {  # and their names in print, with N
    "best": "best of {}",
    "sample": "sample",
    "mean": "mean",
    "vae": "BC, the VAE's decoder",
}
KEY = ("step", "policy", "candidates", "episodes", "seed")  # of an evaluation
AT_ONCE = 1_000  # states whose candidates are in memory together


def load(run: Path) -> tuple[ModuleType, uwac.Agent, dict]:
    """The script that made the run, its agent, and all that was saved. Raises ValueError."""
    try:
        script = script_of(SCRIPTS[read_json(run / "result.json")["algorithm"]])
        agent, saved = uwac.load_checkpoint(run, script.Agent)
    except (OSError, ValueError, KeyError, TypeError) as error:
        scripts = ", ".join(SCRIPTS)
        raise ValueError(f"{run}: not a run's folder, of {scripts} ({error})") from error
    if not saved["history"]:
        raise ValueError(f"{run}: was not evaluated yet")
    return script, agent, saved


@torch.no_grad()
def act(agent: uwac.Agent, policy: str, obs: np.ndarray, num: int) -> np.ndarray:
    """Actions of one of POLICIES: obs (S, B, D) -> (S, B, A)."""
    if policy in ("mean", "vae"):
        obs = torch.as_tensor(obs, dtype=torch.float32, device=agent.log_alpha.device)
        action = agent.actor(obs)[0] if policy == "mean" else agent.vae.sample(obs, 1).squeeze(2)
        return action.tanh().numpy(force=True)
    parts = np.split(obs, range(AT_ONCE, obs.shape[1], AT_ONCE), axis=1)
    return np.concatenate([agent.act(part, num) for part in parts], axis=1)


def player(agent: uwac.Agent, policy: str) -> SimpleNamespace:
    """What uwac.evaluate needs of an agent, acting by `policy`."""
    return SimpleNamespace(args=agent.args, act=functools.partial(act, agent, policy))


@contextmanager
def made(env_id: str, num: int) -> Iterator[list[d4rl.UnitActions]]:
    """So many environments, closed at the end."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(d4rl.make(env_id))) for _ in range(num)]


def earlier_results(run: Path) -> list[dict]:
    """What RUN/evaluation.json holds already. Raises ValueError."""
    return rows_of(run / "evaluation.json", KEY)


def key_of(result: dict) -> list:
    """What an evaluation is of; a later one of the same replaces it."""
    return [result[name] for name in KEY]
