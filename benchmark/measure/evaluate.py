"""Plays the policies of runs: score ± standard error over a run's agents, or one's episodes.

    python benchmark/measure/evaluate.py runs/RUN runs/OTHER_RUN --policies best sample vae
    python benchmark/measure/evaluate.py runs/RUN --candidates 1 10 100
    python benchmark/measure/evaluate.py runs/RUN --episodes 10 --film

Policies:
  best    what the agent does: the best of N samples of its actor by Q1
  sample  one sample of the actor
  mean    tanh of the actor's mean
  vae     one sample of the run's own behaviour VAE: behaviour cloning on the same data

RUN/evaluation.json keeps every score and return. A later call adds to it, and replaces only what it
plays again. With a run's own seed, episodes and candidates, `best` is its last evaluation again.
A folder with checkpoint.pt and result.json is enough, so a copy of the two can be played later.
--film leaves a video of an episode more for each agent, of the last policy, in RUN/film-STEP/.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to start from any folder

import warnings
from contextlib import ExitStack, closing
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
import tyro
from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

import d4rl
import uwac
from benchmark.files import OneOrMore, errors_in_one_line, try_to_write
from benchmark.policies import POLICIES, add_result, earlier_results, load, made, player


@dataclass
class Args:
    runs: tyro.conf.Positional[OneOrMore[Path]]  # folders of runs
    policies: OneOrMore[Literal[*POLICIES]] = ("best",)  # who plays
    episodes: PositiveInt = 100  # of each agent and policy
    candidates: OneOrMore[PositiveInt] = (100,)  # N of best
    seed: NonNegativeInt = 0  # of the episodes
    film: bool = False  # of the last policy


def camera(env_id: str, folder: Path, name: str) -> gym.wrappers.RecordVideo:
    """An environment whose episode is filmed. Raises ValueError."""
    if not find_spec("moviepy"):
        raise ValueError("--film needs moviepy: pip install moviepy")
    try:
        env = d4rl.make(env_id, render_mode="rgb_array")
        env.reset(seed=0)
        env.render()
    except Exception as error:  # each renderer has its own
        raise ValueError(f"--film: without a screen, set MUJOCO_GL=egl ({error})") from error
    return gym.wrappers.RecordVideo(env, str(folder), name_prefix=name)


def film(env_id: str, playing: SimpleNamespace, path: Path, seed: list[int], num: int) -> None:
    """An episode of each agent, as PATH-agent-I-episode-0.mp4. Raises ValueError."""
    warnings.filterwarnings("ignore", ".*Overwriting existing videos")  # of other names
    names = [f"{path.name}-agent-{i}" for i in range(playing.args.num_seeds)]
    with ExitStack() as stack:
        cameras = (closing(camera(env_id, path.parent, name)) for name in names)
        uwac.evaluate(playing, [stack.enter_context(one) for one in cameras], seed, num)
    for name in names:
        print(path.with_name(f"{name}-episode-0.mp4"))


def mean_and_error(values: np.ndarray) -> str:
    """Mean ± standard error of values (n,); of a single one there is no error."""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{values.mean():.1f} ± {values.std(ddof=1) / len(values) ** 0.5:.1f}"


def play(run: Path, agent: uwac.Agent, saved: dict, args: Args) -> None:
    """Adds to RUN/evaluation.json, and prints a line for each policy."""
    torch.set_float32_matmul_precision(agent.args.matmul_precision)  # as in training
    env_id = agent.args.env_id
    step = saved["updates"]
    seed = [args.seed, step]
    about = {"step": step, "episodes": args.episodes, "seed": args.seed}
    about["matmul_precision"] = agent.args.matmul_precision
    unit = "score" if d4rl.task_of(env_id) else "return"
    choices = [
        (policy, num)
        for policy in args.policies
        for num in (args.candidates if policy == "best" else (1,))
    ]
    if args.film:
        policy, num = choices[-1]
        path = run / f"film-{step}" / f"{policy}-{num}-seed-{args.seed}"
        film(env_id, player(agent, policy), path, seed, num)
    with made(env_id, agent.args.num_seeds * args.episodes) as envs:
        for policy, num in choices:
            returns = uwac.evaluate(player(agent, policy), envs, seed, num)  # (S, episodes)
            scores = d4rl.normalized_score(env_id, returns)
            result = {"policy": policy, "candidates": num, **about}
            result |= {"scores": scores.tolist(), "returns": returns.tolist()}
            add_result(run, result)
            who = f"{agent.algorithm} on {env_id}, {step} updates, {POLICIES[policy].format(num)}"
            played = f"{len(scores)} agents x {args.episodes} episodes"
            values = scores[0] if len(scores) == 1 else scores.mean(1)
            print(f"{run}, {who}, {played}: {unit} {mean_and_error(values)}", flush=True)


def main(args: Args) -> None:
    """Raises ValueError, and OSError where a file cannot be written."""
    loaded = [load(run) for run in args.runs]  # all of them, before hours of one
    for run in args.runs:
        earlier_results(run)
        try_to_write(run)
    for run, (_, agent, saved) in zip(args.runs, loaded):
        play(run, agent, saved, args)


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
