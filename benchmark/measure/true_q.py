"""How large discounted returns are, to compare Q with: means and standard deviations over steps,
and the standard errors of the means over episodes.

    python -m benchmark.measure.true_q door-human hopper-medium
    python -m benchmark.measure.true_q --policy door-expert runs/RUN

Of the data of tasks, found as the scripts find them, or of files in D4RL's format:
  in_episode  discounted sum of the rewards that the data have
  continued   the same, where an episode that time ended goes on with the mean of its last 20
              rewards for ever, as critics bootstrap there; where it was terminal, nothing follows
  constant    Q of a critic that is the same everywhere: mean reward / (1 - gamma), where nothing is
              terminal
  bound       largest reward / (1 - gamma), which no return of the data can exceed
Of policies that make_dataset.py can roll out, of a run one sample of its first seed's actor, the
first two of episodes that they play, and
  played      with the rewards of 600 steps beyond the time limit
  q           of a run, the smaller Q of its first seed in the same steps
"""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
import tyro
from scipy.signal import lfilter
from scipy.stats import sem

import d4rl
import uwac
from benchmark.lib.actors import load_player
from benchmark.lib.episodes import play
from benchmark.lib.files import errors_in_one_line
from benchmark.lib.policies import load

GAMMA = 0.99  # the scripts' default
LAST = 20  # rewards of an episode that its continuation repeats
BEYOND = 600  # steps; what comes after them counts 0.99^600 = 0.2%
EPISODES = 48  # played, 16 at a time


def discounted(rewards: np.ndarray, after: float = 0.0) -> np.ndarray:
    """Returns from each step on, of rewards (n,) and of a value that follows the last: (n,)."""
    rewards = rewards.astype(float)
    rewards[-1] += GAMMA * after
    return lfilter([1], [1, -GAMMA], rewards[::-1])[::-1]


def values(rewards: np.ndarray, terminal: bool) -> dict[str, np.ndarray]:
    """Of one episode, (n,) each."""
    after = 0 if terminal else rewards[-LAST:].mean() / (1 - GAMMA)
    return {"in_episode": discounted(rewards), "continued": discounted(rewards, after)}


def of_data(dataset: str) -> list[dict[str, np.ndarray]]:
    """Of each episode; steps after the last end are left out. Raises ValueError and OSError."""
    path = Path(dataset) if Path(dataset).is_file() else d4rl.download(dataset)
    arrays = d4rl.read(path)
    if "timeouts" not in arrays:
        raise ValueError(f"{path}: has no timeouts, so where its episodes end is not known")
    terminals = arrays["terminals"] != 0
    ends = np.flatnonzero(terminals | (arrays["timeouts"] != 0)) + 1
    same = {  # in all steps
        "constant": arrays["rewards"].mean() / (1 - GAMMA * (1 - terminals.mean())),
        "bound": arrays["rewards"].max() / (1 - GAMMA),
    }
    found = []
    for rewards, end in zip(np.split(arrays["rewards"], ends), ends):
        found.append(values(rewards, terminals[end - 1]))
        found[-1] |= {name: np.full(len(rewards), q) for name, q in same.items()}
    return found


@torch.no_grad()
def q_of(agent: uwac.Agent, env: d4rl.UnitActions, episode: dict) -> np.ndarray:
    """The smaller Q of the run's first seed at each step of an episode: (n,)."""
    action = (episode["actions"] - env.center) / env.radius
    pair = [torch.as_tensor(x, dtype=torch.float32) for x in (episode["observations"], action)]
    S = agent.args.num_seeds
    q = agent.cpu().critic(*(x.expand(S, -1, -1) for x in pair))  # (2, S, n)
    return q.amin(0)[0].numpy()


def of_policy(word: str) -> list[dict[str, np.ndarray]]:
    """Of each episode. Raises ValueError."""
    player = load_player(word, seed=0)
    agent = load(Path(word))[1] if Path(word).is_dir() else None
    limit = d4rl.step_limit_of(d4rl.make(player.env_id))
    torch.manual_seed(0)
    envs = [d4rl.make(player.env_id, max_episode_steps=limit + BEYOND) for _ in range(16)]
    found = []
    for first in range(0, EPISODES, len(envs)):
        for episode in play(player.act, envs, range(first, first + len(envs))):
            rewards = episode["rewards"]
            terminal = episode["terminals"][:limit].any()
            found.append(values(rewards[:limit], terminal))
            found[-1]["played"] = discounted(rewards)[:limit]
            if agent:
                found[-1]["q"] = q_of(agent, envs[0], episode)[:limit]
    return found


def main(datasets: tyro.conf.Positional[tuple[str, ...]] = (), policy: tuple[str, ...] = ()):
    """Raises ValueError and OSError."""
    if not datasets + policy:
        raise ValueError("name tasks or files of data, or policies")
    episodes = {word: of_data(word) for word in datasets}
    episodes |= {f"{word}, played": of_policy(word) for word in policy}
    rows = {}
    for word, several in episodes.items():
        rows[word] = {"episodes": len(several)}
        for name in several[0]:
            steps = np.concatenate([one[name] for one in several])
            error = sem([one[name].mean() for one in several])
            rows[word] |= {name: steps.mean(), f"{name}_std": steps.std(), f"{name}_error": error}
    print(pd.DataFrame(rows).T.to_markdown(floatfmt=",.1f"))


if __name__ == "__main__":
    with errors_in_one_line():
        tyro.cli(main, description=__doc__)
