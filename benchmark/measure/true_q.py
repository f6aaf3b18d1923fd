"""How large discounted returns are, to compare Q with: means and standard deviations (_std) over
steps, and the standard errors of the means over episodes (_error).

    python benchmark/measure/true_q.py door-human hopper-medium
    python benchmark/measure/true_q.py --policy door-expert runs/RUN

Of the data of tasks, found as the scripts find them, or of files in D4RL's format:

  in_episode  discounted sum of the rewards that the data have
  continued   the same, where an episode that time ended goes on with the mean of its last 20
              rewards for ever, as critics bootstrap there; where it was terminal, nothing follows
  constant    Q of a critic that is the same everywhere: mean reward / (1 - gamma), where nothing is
              terminal
  bound       largest reward / (1 - gamma), which no return of the data can exceed; at least 0

Of policies that make_dataset.py can roll out, of a run one sample of its first seed's actor, the
first two of episodes that they play, and

  played      with the rewards of steps beyond the time limit, 600 where gamma is 0.99
  q           of a run, the smaller Q of its first seed in the same steps

Gamma is 0.99, or the run's. RUN/true-q-STEP.json keeps the row of a run, and
runs/true-q/NAME.json that of anything else.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # to start from any folder

import numpy as np
import pandas as pd
import torch
import tyro
from scipy.signal import lfilter
from scipy.stats import sem

import d4rl
import uwac
from benchmark.datasets.episodes import play, rewards_and_ends
from benchmark.datasets.players import load_player
from benchmark.files import errors_in_one_line, read_json, try_to_write, write_json
from benchmark.policies import load
from benchmark.store import bound_of

GAMMA = 0.99  # the scripts' default
LAST = 20  # rewards of an episode that its continuation repeats
REST = 0.0024  # how much a reward counts after the last step that is played
FOLDER = Path("runs/true-q")
EPISODES = 48  # played, 16 at a time


def discounted(rewards: np.ndarray, gamma: float, after: float = 0.0) -> np.ndarray:
    """Returns from each step on, of rewards (n,) and of a value that follows the last: (n,)."""
    rewards = rewards.astype(float)
    rewards[-1] += gamma * after
    return lfilter([1], [1, -gamma], rewards[::-1])[::-1]


def values(rewards: np.ndarray, gamma: float, terminal: bool) -> dict[str, np.ndarray]:
    """Of one episode, (n,) each."""
    after = 0 if terminal else rewards[-LAST:].mean() / (1 - gamma)
    return {
        "in_episode": discounted(rewards, gamma),
        "continued": discounted(rewards, gamma, after),
    }


def of_data(dataset: str) -> list[dict[str, np.ndarray]]:
    """Of each episode; steps after the last end are left out. Raises ValueError and OSError."""
    is_file = Path(dataset).is_file()
    path = Path(dataset) if is_file else d4rl.download(dataset)
    if not is_file:
        d4rl.qlearning_dataset(d4rl.make(dataset), path)  # checks them
    arrays = rewards_and_ends(path, "" if is_file else dataset)
    terminals = arrays["terminals"]
    ends = np.flatnonzero(terminals | arrays["timeouts"]) + 1
    same = {  # in all steps
        "constant": arrays["rewards"].mean() / (1 - GAMMA * (1 - terminals.mean())),
        "bound": bound_of(arrays["rewards"].max(), GAMMA),
    }
    found = []
    for rewards, end in zip(np.split(arrays["rewards"], ends), ends):
        found.append(values(rewards, GAMMA, terminals[end - 1]))
        found[-1] |= {name: np.full(len(rewards), q) for name, q in same.items()}
    return found


@torch.no_grad()
def q_of(agent: uwac.Agent, env: d4rl.UnitActions, episode: dict) -> np.ndarray:
    """The smaller Q of the run's first seed at each step of an episode: (n,)."""
    action = env.unit(episode["actions"])
    pair = [torch.as_tensor(x, dtype=torch.float32) for x in (episode["observations"], action)]
    S = agent.args.num_seeds
    q = agent.cpu().critic(*(x.expand(S, -1, -1) for x in pair))  # (2, S, n)
    return q.amin(0)[0].numpy()


def of_policy(word: str, agent: uwac.Agent | None = None) -> list[dict[str, np.ndarray]]:
    """Of each episode; `agent` is the run's, if the policy is one's. Raises ValueError."""
    gamma = agent.args.gamma if agent else GAMMA
    if gamma == 1:
        raise ValueError(f"{word}: with --gamma 1 returns have no end")
    player = load_player(word, seed=0)
    limit = d4rl.step_limit_of(d4rl.make(player.env_id))
    beyond = round(np.log(REST) / np.log(gamma)) if gamma > 0 else 0
    torch.manual_seed(0)
    envs = [d4rl.make(player.env_id, max_episode_steps=limit + beyond) for _ in range(16)]
    found = []
    for first in range(0, EPISODES, len(envs)):
        for episode in play(player.act, envs, range(first, first + len(envs))):
            rewards = episode["rewards"]
            terminal = episode["terminals"][:limit].any()
            found.append(values(rewards[:limit], gamma, terminal))
            found[-1]["played"] = discounted(rewards, gamma)[:limit]
            if agent:
                found[-1]["q"] = q_of(agent, envs[0], episode)[:limit]
    return found


def summary(episodes: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """A row, of the values of each episode, (n,)."""
    row = {"episodes": len(episodes)}
    for name in episodes[0]:
        steps = np.concatenate([one[name] for one in episodes])
        row[name] = float(steps.mean())
        if name not in ("constant", "bound"):
            row[f"{name}_std"] = float(steps.std())
            row[f"{name}_error"] = float(sem([one[name].mean() for one in episodes]))
    return row


def checked(path: Path, what: str) -> Path:
    """The path. Raises ValueError where what lies there is of something else."""
    if path.exists() and read_json(path)[0]["what"] != what:
        raise ValueError(f"{path}: of {read_json(path)[0]['what']}, not {what}; move it away")
    return path


def keep(path: Path, row: dict) -> dict:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, [row])
    return row


def main(datasets: tyro.conf.Positional[tuple[str, ...]] = (), policy: tuple[str, ...] = ()):
    """Raises ValueError and OSError."""
    if not datasets + policy:
        raise ValueError("name tasks or files of data, or policies")
    rows = []
    for word in datasets:
        path = checked(FOLDER / f"{Path(word).stem}.json", word)
        rows.append(keep(path, {"what": word, **summary(of_data(word))}))
    for word in policy:
        run = Path(word)
        if not run.is_dir():
            what = f"{word}, played"
            path = checked(FOLDER / f"{run.stem}-played.json", what)
            rows.append(keep(path, {"what": what, **summary(of_policy(word))}))
            continue
        _, agent, saved = load(run)
        try_to_write(run)
        row = {"what": run.resolve().name, "updates": saved["updates"]}
        row |= summary(of_policy(word, agent))
        rows.append(keep(run / f"true-q-{row['updates']}.json", row))
    print(pd.DataFrame(rows).to_markdown(index=False, floatfmt=",.1f"))


if __name__ == "__main__":
    with errors_in_one_line():
        tyro.cli(main, description=__doc__)
