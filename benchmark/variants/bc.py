"""Behaviour cloning (BC) by the actor's own network, seeds side by side.

    python benchmark/variants/bc.py --env-id door-human

The tanh of the actor's mean learns the data's actions by mean squared error, and plays.
runs/bc/TASK.json has every score, and the data's own: the mean over its episodes.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to start from any folder

import torch
import tyro
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from torch import nn
from tqdm import trange

import d4rl
import uwac
from benchmark.datasets.episodes import returns_of, rewards_and_ends
from benchmark.files import errors_in_one_line, new_path, write_json
from benchmark.policies import load_transitions, made, player


@dataclass
class Args:
    env_id: str  # D4RL task
    num_seeds: PositiveInt = 3  # S
    total_steps: PositiveInt = 100_000  # updates, with batch size and learning rate of UWAC's actor
    eval_every: PositiveInt = 20_000  # updates
    eval_episodes: PositiveInt = 20  # of each seed


def size(network: nn.Module) -> int:
    """Parameters of one seed's network."""
    return sum(parameter[0].numel() for parameter in network.parameters())


def main(args: Args) -> None:
    """Raises ValueError and OSError."""
    path = d4rl.download(args.env_id)
    obs, action, *_ = load_transitions(args.env_id, path)  # (n, D), (n, A)
    file = new_path(Path("runs/bc", f"{args.env_id}.json"))
    torch.manual_seed(0)
    settings = uwac.Args(args.env_id, num_seeds=args.num_seeds)
    agent = uwac.Agent(settings, obs.shape[1], action.shape[1]).to(uwac.DEVICE)
    returns = returns_of(rewards_and_ends(path, args.env_id))
    result = {
        "task": args.env_id,
        "command": f"python benchmark/variants/bc.py {' '.join(sys.argv[1:])}",
        "data": d4rl.describe(path),
        "data_score": d4rl.normalized_score(args.env_id, returns.mean()),
        "parameters": {"actor": size(agent.actor), "VAE's decoder": size(agent.vae.decoder)},
        "history": [],
    }
    with made(args.env_id, args.num_seeds * args.eval_episodes) as envs:
        for step in trange(1, args.total_steps + 1, mininterval=10):
            index = torch.randint(len(obs), (args.num_seeds, settings.batch_size))
            mean, _ = agent.actor(obs[index])
            loss = (mean.tanh() - action[index]).square().mean((1, 2))  # (S,)
            agent.minimize(loss, "actor")
            if step % args.eval_every == 0 or step == args.total_steps:
                returns = uwac.evaluate(player(agent, "mean"), envs, [0, step], 1)
                scores = d4rl.normalized_score(args.env_id, returns)  # (S, episodes)
                result["history"].append({"step": step, "scores": scores.tolist()})
                mean_scores = scores.mean(1).round(1)
                print(f"{args.env_id}, {step} updates: scores {mean_scores}", flush=True)
                write_json(file, result)


if __name__ == "__main__":
    with errors_in_one_line():
        main(tyro.cli(Args, description=__doc__))
