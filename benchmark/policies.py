"""A run's agent and data, the policies that evaluate.py plays of it, and what it found before."""

import functools
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
from filelock import FileLock
from pydantic_core import to_jsonable_python
from torch import Tensor

import d4rl
import uwac
from benchmark.files import read_json, write_json
from benchmark.methods import SCRIPTS, script_of

POLICIES = {  # and their names in print, with N
    "best": "best of {}",
    "sample": "sample",
    "mean": "mean",
    "vae": "BC, the VAE's decoder",
}
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
    saved.setdefault("updates", saved["history"][-1]["step"])  # earlier versions kept none
    return script, agent, saved


def load_transitions(env_id: str, dataset: str | Path) -> list[Tensor]:
    """obs (n, D), action (n, A) in [-1, 1], reward (n,), next_obs (n, D), done (n,) of a file, on
    the scripts' device. Raises ValueError and OSError."""
    with closing(d4rl.make(env_id)) as env:
        transitions = d4rl.qlearning_dataset(env, dataset)
        transitions["actions"] = env.unit(transitions["actions"])
    return [torch.as_tensor(array, device=uwac.DEVICE) for array in transitions.values()]


def fork(source: Path, run: Path, agent_type: type[uwac.Agent], args: uwac.Args) -> None:
    """A copy of a run in the folder of another, which goes on from it with a script and arguments
    of its own; forked_from.json there says of what. Raises ValueError where it cannot."""
    _, old, saved = load(source)
    new = agent_type(args, *saved["dims"])
    try:
        new.load_state_dict(saved["agent"])
    except RuntimeError as error:
        problem = f"has other networks than {agent_type.algorithm} with these arguments"
        raise ValueError(f"{source}: {problem}") from error
    for name in ("env_id", "seed", "num_seeds"):
        if getattr(old.args, name) != getattr(args, name):
            raise ValueError(f"{source}: {name} was {getattr(old.args, name)} and cannot change")
    if saved["updates"] >= args.total_steps:
        raise ValueError(f"{source}: has {saved['updates']} updates; give more --total-steps")
    for name, optimizer in new.optimizers.items():  # Adam's moments go on, at the new rates
        saved["optimizers"][name]["param_groups"] = optimizer.state_dict()["param_groups"]
    about = {name: saved[name] for name in ("algorithm", "args", "updates")}
    saved["args"] = to_jsonable_python(replace(args, run_dir=None, resume=False))
    saved["algorithm"] = agent_type.algorithm
    run.mkdir(parents=True, exist_ok=True)
    write_json(run / "forked_from.json", {"run": str(source)} | about)
    torch.save(saved, run / "checkpoint.pt")


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


def key_of(result: dict) -> list:
    """What an evaluation is of; a later one of the same replaces it."""
    return [result[name] for name in ("step", "policy", "candidates", "episodes", "seed")]


def earlier_results(run: Path) -> list[dict]:
    """What RUN/evaluation.json holds already. Raises ValueError."""
    path = run / "evaluation.json"
    results = read_json(path) if path.exists() else []
    try:
        for result in results:
            key_of(result)
    except (KeyError, TypeError) as error:
        problem = f"of another program or version, move it away ({error!r})"
        raise ValueError(f"{path}: {problem}") from error
    return results


def add_result(run: Path, result: dict) -> None:
    """To RUN/evaluation.json. What another process adds at the same time stays. Raises ValueError,
    and OSError."""
    path = run / "evaluation.json"
    lock = FileLock(f"{path}.lock")
    with suppress(OSError):  # on a disk without locks results are worth more than their order
        lock.acquire()
    try:
        kept = [one for one in earlier_results(run) if key_of(one) != key_of(result)]
        write_json(path, [*kept, result])
    finally:
        lock.release()
