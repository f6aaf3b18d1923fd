"""Plays the policies of runs: score ± standard error over a run's agents, or one's episodes.

    python benchmark/evaluate.py runs/RUN runs/OTHER_RUN --policies best sample vae
    python benchmark/evaluate.py runs/RUN --candidates 1 10 100
    python benchmark/evaluate.py runs/RUN --episodes 10 --film

Policies:
  best    what the agent does: the best of N samples of its actor by Q1
  sample  one sample of the actor
  mean    tanh of the actor's mean
  vae     one sample of the run's own behaviour VAE: behaviour cloning on the same data

RUN/evaluation.json keeps every score and return. A later call adds to it, and replaces only what it
plays again. With a run's own seed, episodes and candidates, `best` is its last evaluation again.
A folder with checkpoint.pt and result.json is enough, so a copy of the two can be played later.
--film leaves a video of an episode more for each agent in RUN/film-STEP/.
"""

import functools
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import ensembles
import gymnasium as gym
import numpy as np
import torch
import tyro
import uwac_code
import what_bounds_q
from lib.arguments import OneOrMore
from lib.files import errors_in_one_line, read_json, write_json
from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

import bear
import d4rl
import uwac

MODULES = (bear, uwac, ensembles, uwac_code, what_bounds_q)
SCRIPTS = {module.Agent.algorithm: module for module in MODULES}
POLICIES = {  # and their names in print, with N
    "best": "best of {}",
    "sample": "sample",
    "mean": "mean",
    "vae": "BC, the VAE's decoder",
}
AT_ONCE = 1_000  # states whose candidates are in memory together


@dataclass
class Args:
    runs: tyro.conf.Positional[OneOrMore[Path]]  # folders of runs
    policies: OneOrMore[Literal[*POLICIES]] = ("best",)  # who plays
    episodes: PositiveInt = 100  # of each agent and policy
    candidates: OneOrMore[PositiveInt] = (100,)  # N of best
    seed: NonNegativeInt = 0  # of the episodes
    film: bool = False  # of the last policy


def load(run: Path) -> tuple[str, uwac.Agent, dict]:
    """The script that made the run, its agent, and all that was saved. Raises ValueError."""
    try:
        script = read_json(run / "result.json")["algorithm"]
        agent, saved = uwac.load_checkpoint(run, SCRIPTS[script].Agent)
    except (OSError, ValueError, KeyError, TypeError) as error:
        scripts = ", ".join(SCRIPTS)
        raise ValueError(f"{run}: not a run's folder, of {scripts} ({error})") from error
    if not saved["history"]:
        raise ValueError(f"{run}: was not evaluated yet")
    return script, agent, saved


def earlier_results(run: Path) -> list[dict]:
    """What RUN/evaluation.json holds already. Raises ValueError."""
    path = run / "evaluation.json"
    if not path.exists():
        return []
    results = read_json(path)
    try:
        for result in results:
            key_of(result)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not of evaluate.py, move it away ({error!r})") from error
    return results


def key_of(result: dict) -> list:
    """What an evaluation is of; a later one of the same replaces it."""
    names = ("step", "policy", "candidates", "episodes", "seed")
    return [result[name] for name in names]


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


def make_envs(env_id: str, num: int, **settings) -> gym.vector.SyncVectorEnv:
    return gym.vector.SyncVectorEnv([lambda: d4rl.make(env_id, **settings)] * num)


def film(env_id: str, playing: SimpleNamespace, folder: Path, seed: list[int], num: int) -> None:
    """An mp4 file of all agents side by side, in `folder`. Raises ValueError."""
    if not find_spec("moviepy"):
        raise ValueError("--film needs moviepy: pip install moviepy")
    try:
        with closing(make_envs(env_id, playing.args.num_seeds, render_mode="rgb_array")) as envs:
            length = envs.envs[0].spec.max_episode_steps
            first = {"episode_trigger": lambda episode: episode == 0, "video_length": length}
            with closing(gym.wrappers.vector.RecordVideo(envs, str(folder), **first)) as films:
                uwac.evaluate(playing, films, seed, num)
    except (gym.error.Error, ImportError, RuntimeError, AttributeError, TypeError) as error:
        raise ValueError(f"--film: without a screen, set MUJOCO_GL=egl ({error})") from error


def mean_and_error(values: np.ndarray) -> str:
    """Mean ± standard error of values (n,); of a single one there is no error."""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{values.mean():.1f} ± {values.std(ddof=1) / len(values) ** 0.5:.1f}"


def play(run: Path, loaded: tuple[str, uwac.Agent, dict], args: Args) -> None:
    """Adds to RUN/evaluation.json, and prints a line for each policy."""
    script, agent, saved = loaded
    env_id = agent.args.env_id
    step = saved["history"][-1]["step"]
    seed = [args.seed, step]
    if args.film:
        playing = player(agent, args.policies[-1])
        film(env_id, playing, run / f"film-{step}", seed, args.candidates[-1])
    about = {"step": step, "episodes": args.episodes, "seed": args.seed}
    unit = "score" if d4rl.full_id(env_id) in d4rl.TASK_OF else "return"
    results = earlier_results(run)
    choices = [
        (policy, num)
        for policy in args.policies
        for num in (args.candidates if policy == "best" else (1,))
    ]
    with closing(make_envs(env_id, agent.args.num_seeds * args.episodes)) as envs:
        for policy, num in choices:
            returns = uwac.evaluate(player(agent, policy), envs, seed, num)  # (S, episodes)
            if not np.isfinite(returns).all():
                raise ValueError(f"{run}: a return in {env_id} is not finite")
            scores = d4rl.normalized_score(env_id, returns)
            result = {"policy": policy, "candidates": num, **about}
            results = [one for one in results if key_of(one) != key_of(result)]
            results.append(result | {"scores": scores.tolist(), "returns": returns.tolist()})
            write_json(run / "evaluation.json", results)
            who = f"{script} on {env_id}, {step} updates, {POLICIES[policy].format(num)}"
            played = f"{len(scores)} agents x {args.episodes} episodes"
            values = scores[0] if len(scores) == 1 else scores.mean(1)
            print(f"{run}, {who}, {played}: {unit} {mean_and_error(values)}", flush=True)


def main(args: Args) -> None:
    """Raises ValueError, and OSError where a file cannot be written."""
    loaded = [load(run) for run in args.runs]  # all of them, before hours of one
    for run in args.runs:
        earlier_results(run)
    for run, one in zip(args.runs, loaded):
        play(run, one, args)


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
