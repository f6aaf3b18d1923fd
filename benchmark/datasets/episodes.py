"""Episodes that a policy plays, and their arrays in D4RL's format.

Shapes: n steps, N environments, D observation size, A action size.
"""

from pathlib import Path

import numpy as np
from tqdm import tqdm

import d4rl

COLUMNS = ("observations", "actions", "rewards", "terminals", "timeouts")  # (n, D), (n, A), (n,)


def play(act, envs: list[d4rl.UnitActions], seeds: range) -> list[dict]:
    """An episode in each of N environments, begun with its seed."""
    observations = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds)]
    rows = [[] for _ in envs]
    running = list(range(len(envs)))
    while running:
        actions = act(np.float32([observations[i] for i in running]))
        for i, action in zip(list(running), actions):
            obs = np.array(observations[i])  # which an environment may change in place
            observations[i], reward, terminal, truncated, _ = envs[i].step(action)
            action = envs[i].action(action)
            rows[i].append((obs, action, reward, terminal, truncated and not terminal))
            if terminal or truncated:
                running.remove(i)
    return [to_arrays(zip(*episode)) for episode in rows]


def to_arrays(columns) -> dict:
    """Five columns as arrays of D4RL's types; the last step is a timeout if it is not terminal."""
    arrays = {name: np.asarray(column, np.float32) for name, column in zip(COLUMNS, columns)}
    for name in ("observations", "actions"):
        arrays[name] = arrays[name].reshape(len(arrays[name]), -1)
    for name in ("rewards", "terminals", "timeouts"):
        arrays[name] = arrays[name].reshape(-1)
    for name in ("terminals", "timeouts"):
        arrays[name] = arrays[name] != 0
    arrays["timeouts"][-1] = not arrays["terminals"][-1]
    return arrays


def join(parts: list[dict]) -> dict:
    return {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}


def roll_out(act, env_id: str, steps: int, seed: int) -> dict:
    """The first `steps` steps of the policy's episodes in the order of their seeds (in that of
    their ends, short ones would come too often); the last one is cut off."""
    envs = [d4rl.make(env_id) for _ in range(16)]  # that share the cost of a call of `act`
    episodes, done = [], 0
    with tqdm(total=steps, unit="steps", desc=env_id) as bar:
        while done < steps:
            first = seed + len(episodes)
            for episode in play(act, envs, range(first, first + len(envs))):
                episodes.append(episode)
                done += len(episode["rewards"])
                bar.update(len(episode["rewards"]))
    return to_arrays(array[:steps] for array in join(episodes).values())


def check_order(dataset: str | Path, arrays: dict, end: np.ndarray) -> None:
    """Raises ValueError where rows with next_observations are not in the order of time; end (n,) is
    1 at each episode's last step."""
    if "next_observations" not in arrays or d4rl.describe(dataset)["d4rl"]:
        return
    follows = (arrays["next_observations"][:-1] == arrays["observations"][1:]).all(1)
    if not (follows | end[:-1]).all():
        raise ValueError(f"{dataset}: its rows are not in the order of time")


def rewards_and_ends(dataset: str | Path, env_id: str = "") -> dict:
    """A file's rewards, terminals and timeouts in the shapes and with the ends that training sees:
    (n,) each. Without timeouts, time ends an episode at the task's step limit. Raises ValueError
    for data that training refuses, or without timeouts where no task is given."""
    arrays = d4rl.read(dataset)
    missing = {"rewards", "terminals"} - set(arrays)
    if missing:
        raise ValueError(f"{dataset}: {', '.join(sorted(missing))} missing")
    found = {name: np.ravel(arrays[name]) for name in COLUMNS[2:] if name in arrays}
    for name in {"terminals", "timeouts"} & set(found):
        found[name] = found[name] != 0
    if "timeouts" not in found:
        if not env_id:
            raise ValueError(f"{dataset}: has no timeouts, so where its episodes end is not known")
        limit = d4rl.step_limit_of(d4rl.make(env_id))
        original = d4rl.describe(dataset)["d4rl"]
        found["timeouts"] = d4rl.timeouts_by_limit(found["terminals"], limit, original)
    check_order(dataset, arrays, found["terminals"] | found["timeouts"])
    return found


def returns_of(arrays: dict) -> np.ndarray:
    """Of each whole episode: of one that was cut off where its last step is a timeout."""
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"])
    return np.diff(np.cumsum(arrays["rewards"], dtype=np.float64)[ends], prepend=0)
