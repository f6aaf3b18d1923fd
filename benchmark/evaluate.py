"""Plays the policies of runs: score ± standard error over episodes, and over agents.

    python benchmark/evaluate.py runs/RUN runs/OTHER_RUN --policies best sample vae
    python benchmark/evaluate.py runs/RUN --candidates 1 10 100
    python benchmark/evaluate.py runs/RUN --episodes 10 --film

Policies:
  best    what the agent does: the best of N samples of its actor by Q1, which UWAC gives the noise
          of its T stochastic passes
  greedy  the best of N samples by Q1 without that noise
  sample  one sample of the actor
  mean    tanh of the actor's mean
  vae     one sample of the run's own behaviour VAE: behaviour cloning on the same data

RUN/evaluation.json keeps every score and return. A later call adds to it, and replaces only what it
plays again. A run's agents are the members of its stack; runs that differ in the seed alone are
averaged, too. With a run's own seed, episodes and candidates, `best` is its last evaluation again.
A folder with checkpoint.pt and result.json is enough, so a copy of the two can be played later.
--film leaves RUN/update-STEP*.mp4, of an episode more for each agent.
"""

import functools
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
import tyro
from ending import errors_in_one_line

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import ensembles

import bear
import uwac

SCRIPTS = {"bear": bear, "uwac": uwac, "ensembles": ensembles}
POLICIES = {  # and their names in print, with N
    "best": "best of {}",
    "greedy": "greedy best of {}",
    "sample": "sample",
    "mean": "mean",
    "vae": "VAE (behaviour cloning)",
}
CHOOSING = ("best", "greedy")  # policies that have N candidates
OF_A_SEED = ("seed", "num_seeds", "run_dir", "resume", "dataset_path")  # not of an experiment


@dataclass
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]]  # folders of runs
    policies: tuple[Literal[*POLICIES], ...] = ("best",)  # who plays
    episodes: int = 100  # of each agent and policy
    candidates: tuple[int, ...] = (100,)  # N of best and greedy
    seed: int = 0  # of the episodes
    matmul_precision: Literal["highest", "high", "medium"] = "highest"  # whatever training had
    film: bool = False  # of the last policy


def load(run: Path) -> tuple[str, uwac.Agent, dict]:
    """The script that made the run, its agent, and all that was saved. Raises InputError."""
    wrong = (OSError, ValueError, KeyError)
    with uwac.input_errors(f"{run}: no run with a result.json and a checkpoint.pt", *wrong):
        script = json.loads((run / "result.json").read_text())["algorithm"]
        agent, saved = SCRIPTS[script].load_checkpoint(run)
        if not saved["history"]:
            raise ValueError("it was not evaluated yet")
        return script, agent, saved


def earlier_results(run: Path) -> list[dict]:
    """What RUN/evaluation.json holds already. Raises InputError."""
    path = run / "evaluation.json"
    if not path.exists():
        return []
    wrong = (OSError, ValueError, KeyError, TypeError)
    with uwac.input_errors(f"{path}: results cannot be added to it; move it away", *wrong):
        kept = json.loads(path.read_text())
        for one in kept:
            key_of(one)
        return kept


def key_of(result: dict) -> list:
    """What an evaluation is of; a later one of the same replaces it."""
    names = ("step", "policy", "candidates", "episodes", "seed", "matmul_precision")
    return [result[name] for name in names]


@torch.no_grad()
def act(agent: uwac.Agent, policy: str, obs: np.ndarray, num: int) -> np.ndarray:
    """Actions of one of POLICIES: obs (S, B, D) -> (S, B, A)."""
    if policy in ("best", "sample"):  # the best of one is a sample
        return agent.act(obs, num)
    if policy == "mean":
        return agent.act(obs, deterministic=True)
    obs = torch.as_tensor(obs, dtype=torch.float32, device=agent.log_alpha.device)
    if policy == "greedy":
        candidates = agent.actor.sample(obs, num).tanh()  # (S, B, N, A)
        q1, _ = agent.critic(obs, candidates)  # (S, B, N)
        best = q1.argmax(-1)[:, :, None, None]
        action = candidates.take_along_dim(best, dim=2).squeeze(2)
    else:
        action = agent.vae.sample(obs, 1).squeeze(2).tanh()
    return agent.to_env(action)


def player(agent: uwac.Agent, policy: str) -> SimpleNamespace:
    """What uwac.evaluate needs of an agent, acting by `policy`."""
    return SimpleNamespace(log_alpha=agent.log_alpha, act=functools.partial(act, agent, policy))


def film(env_id: str, playing: SimpleNamespace, path: Path, seed: list[int], num: int) -> None:
    """PATH*.mp4, all agents side by side. Raises InputError."""
    gym_id, max_steps, *_ = uwac.env_spec(env_id)
    settings = {"max_episode_steps": max_steps, "render_mode": "rgb_array"}
    make = functools.partial(uwac.make_env, gym_id, **settings)
    wrong = (gym.error.Error, ImportError, RuntimeError, AttributeError)  # MuJoCo's, too
    with uwac.input_errors("--film needs moviepy and, without a screen, MUJOCO_GL=egl", *wrong):
        envs = gym.vector.SyncVectorEnv([make] * len(playing.log_alpha))
        length = envs.envs[0].spec.max_episode_steps or 0  # 0: to the first agent's end
        first = {"episode_trigger": lambda episode: episode == 0, "video_length": length}
        name = {"video_folder": str(path.parent), "name_prefix": path.name}
        envs = gym.wrappers.vector.RecordVideo(envs, **name, **first)
        uwac.evaluate(playing, envs, seed, num)
        envs.close()


def mean_and_error(values: np.ndarray) -> str:
    """Mean ± standard error of values (n,); of a single one there is no error."""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{values.mean():.1f} ± {values.std(ddof=1) / len(values) ** 0.5:.1f}"


def play(run: Path, loaded: tuple[str, uwac.Agent, dict], args: Args) -> dict[str, np.ndarray]:
    """Adds to RUN/evaluation.json. Returns each policy's scores (S, episodes) by its name."""
    script, agent, saved = loaded
    env_id, step = saved["args"]["env_id"], saved["history"][-1]["step"]
    if args.film:
        playing = player(agent, args.policies[-1])
        film(env_id, playing, run / f"update-{step}", [args.seed, step], args.candidates[-1])
    envs = uwac.make_envs(env_id, len(agent.log_alpha) * args.episodes)
    about = {"step": step, "episodes": args.episodes, "seed": args.seed}
    about["matmul_precision"] = args.matmul_precision
    results = earlier_results(run)
    played = {}
    for policy in args.policies:
        for num in args.candidates if policy in CHOOSING else (1,):
            name = POLICIES[policy].format(num)
            returns = uwac.evaluate(player(agent, policy), envs, [args.seed, step], num)
            scores = uwac.normalized_score(env_id, returns)
            played[name] = scores
            result = {"policy": policy, "candidates": num, **about}
            results = [one for one in results if key_of(one) != key_of(result)]
            results.append(result | {"scores": scores.tolist(), "returns": returns.tolist()})
            (run / "evaluation.json").write_text(json.dumps(results, indent=1))
            episodes = "1 episode" if args.episodes == 1 else f"{args.episodes} episodes"
            for i, score in enumerate(scores):
                who = f"{env_id}, {script}, {step} updates, agent {i}, {name}, {episodes}"
                means = f"score {mean_and_error(score)}, return {returns[i].mean():.1f}"
                print(f"{who}: {means}", flush=True)
    return played


def main(args: Args) -> None:
    """Raises InputError, and OSError where a file cannot be written."""
    counts = [len(args.runs), len(args.policies), len(args.candidates), *args.candidates]
    if min(*counts, args.episodes, args.seed + 1) < 1:
        wanted = "a run, a policy, an episode and a candidate at least, and no negative --seed"
        raise uwac.InputError(wanted)
    loaded = [load(run) for run in args.runs]  # all of them, before hours of one
    for run in args.runs:
        earlier_results(run)
    torch.set_float32_matmul_precision(args.matmul_precision)
    experiments = {}  # script, update and arguments -> runs, and each policy's mean score of agents
    for run, (script, agent, saved) in zip(args.runs, loaded):
        if len(loaded) > 1:
            print(run)  # the lines below name the script alone
        played = play(run, (script, agent, saved), args)
        settings = {name: saved["args"][name] for name in saved["args"] if name not in OF_A_SEED}
        key = f"{script}, {saved['history'][-1]['step']} updates, {settings}"
        runs, means = experiments.setdefault(key, ([], {}))
        runs.append(str(run))
        for name, scores in played.items():
            means.setdefault(name, []).extend(scores.mean(1))
    for runs, means in experiments.values():
        for name, of_agents in means.items():
            if len(of_agents) > 1:
                score = mean_and_error(np.array(of_agents))
                print(f"{', '.join(runs)}: {name}, {len(of_agents)} agents: score {score}")


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
