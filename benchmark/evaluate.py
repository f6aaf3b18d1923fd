"""Plays the policies of runs: score ± standard error, for each number of candidate actions.

    python benchmark/evaluate.py runs/RUN runs/OTHER_RUN --candidates 1 10 100
    python benchmark/evaluate.py runs/RUN --episodes 10 --film

All scores and returns stay in RUN/evaluation.json. With a run's own seed, episodes and candidates
its last evaluation comes out again. --film: RUN/update-STEP*.mp4, of an episode more for each seed.
"""

import functools
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import torch
import tyro
from ending import errors_in_one_line

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import ensembles

import bear
import uwac

SCRIPTS = {"bear": bear, "uwac": uwac, "ensembles": ensembles}


@dataclass
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]]  # folders of runs
    episodes: int = 100  # of each seed
    candidates: tuple[int, ...] = (100,)  # actions a state, of which the best by Q1 acts
    seed: int = 0  # of the episodes
    film: bool = False  # of the last number of candidates


def load(run: Path) -> tuple[str, uwac.Agent, dict]:
    """The script that made the run, its agent, and all that was saved. Raises InputError."""
    with uwac.input_errors(f"{run}: no run with a result.json and a checkpoint.pt"):
        script = json.loads((run / "result.json").read_text())["algorithm"]
        agent, saved = SCRIPTS[script].load_checkpoint(run)
        if not saved["history"]:
            raise ValueError("it was not evaluated yet")
        return script, agent, saved


def film(env_id: str, agent: uwac.Agent, path: Path, seed: list[int], num: int) -> None:
    """PATH*.mp4, all seeds side by side. Raises InputError."""
    gym_id, max_steps, *_ = uwac.env_spec(env_id)
    settings = {"max_episode_steps": max_steps, "render_mode": "rgb_array"}
    make = functools.partial(uwac.make_env, gym_id, **settings)
    with uwac.input_errors("--film needs moviepy and, without a screen, MUJOCO_GL=egl"):
        envs = gym.vector.SyncVectorEnv([make] * len(agent.log_alpha))
        length = envs.envs[0].spec.max_episode_steps or 0  # 0: to the first seed's end
        first = {"episode_trigger": lambda episode: episode == 0, "video_length": length}
        name = {"video_folder": str(path.parent), "name_prefix": path.name}
        envs = gym.wrappers.vector.RecordVideo(envs, **name, **first)
        uwac.evaluate(agent, envs, seed, num)
        envs.close()


def main(args: Args) -> None:
    """Raises InputError, and OSError where a file cannot be written."""
    counts = [len(args.runs), len(args.candidates), *args.candidates, args.episodes]
    if min(*counts, args.seed + 1) < 1:
        raise uwac.InputError("a run, an episode and a candidate at least, and no negative --seed")
    loaded = [load(run) for run in args.runs]  # all of them, before hours of one
    for run, (script, agent, saved) in zip(args.runs, loaded):
        env_id, step = saved["args"]["env_id"], saved["history"][-1]["step"]
        first_seed = saved["args"]["seed"]
        torch.set_float32_matmul_precision(saved["args"]["matmul_precision"])
        if args.film:
            film(env_id, agent, run / f"update-{step}", [args.seed, step], args.candidates[-1])
        envs = uwac.make_envs(env_id, len(agent.log_alpha) * args.episodes)
        result = {"args": vars(args), "step": step, "candidates": {}}
        if len(loaded) > 1:
            print(run)  # the lines below name the script alone
        for num in args.candidates:
            returns = uwac.evaluate(agent, envs, [args.seed, step], num)  # (S, episodes)
            scores = uwac.normalized_score(env_id, returns)
            found = {"scores": scores.tolist(), "returns": returns.tolist()}
            result["candidates"][num] = found
            (run / "evaluation.json").write_text(json.dumps(result, indent=2, default=str))
            for i, score in enumerate(scores):
                error = score.std(ddof=1) / math.sqrt(len(score)) if len(score) > 1 else math.nan
                policy = f"{env_id}, {script}, seed {first_seed + i}, {step} updates"
                episodes = f"{len(score)} episodes, {num} candidates"
                means = f"score {score.mean():.1f} ± {error:.1f}, return {returns[i].mean():.1f}"
                print(f"{policy}, {episodes}: {means}", flush=True)


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args))
