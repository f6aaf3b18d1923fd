"""What may be wrong with data that can be read: warnings, of which docs/usage.md has the list."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np


def doubts(
    dataset: Mapping,
    data: dict[str, np.ndarray],
    done: np.ndarray,
    timeout: np.ndarray,
    chained: bool,
    limit: float,
    largest_action: np.ndarray,
) -> Iterator[str]:
    """Of n steps, as they were given (`dataset`), and as they are read (`data`). `done`, `timeout`
    (n,): where episodes end; `chained`: the rows are in the order of time; `limit`: an episode's
    steps at most; `largest_action` (A,): the environment's upper bounds."""
    obs, next_obs = data["observations"], data["next_observations"]
    actions, rewards = data["actions"], data["rewards"]
    end = done | timeout
    first = np.insert(end[:-1], 0, True)
    goes_on = np.append((next_obs[:-1] == obs[1:]).all(1), False)
    ends = np.flatnonzero(end | ~goes_on)
    lengths = np.diff(ends, prepend=-1)
    by_limit = timeout.copy()
    by_limit[ends[lengths == limit]] = True
    said = "timeouts" in data and timeout.any()
    if (said or (limit > 1 and by_limit.sum() > 1)) and done[by_limit].all():  # one may be chance
        yield "each timeout is a terminal, too; terminals must be 0 where time ran out"
    if limit > 1 and done.mean() > 0.5:
        yield f"{done.sum()} of {len(done)} steps are terminal; only an episode's last one may be"
    short = timeout & ~done & first
    if chained and limit > 1 and (short[0] or short.sum() > 1):
        yield "time ends episodes of one step; timeouts mark an episode's last step, not its first"
    into_next = timeout & ~done & goes_on
    if not chained and into_next.any():
        yield f"{into_next.sum()} next_observations at timeouts are the next episode's first"
    if lengths.max() > limit:
        yield f"{lengths.max()} steps without an end, more than the environment has"
    zeros = ~(obs.any(1) | actions.any(1) | (rewards != 0))
    still = (obs == next_obs).all(1)[~end]
    if (zeros[1:] & zeros[:-1]).any():
        yield f"{zeros.sum()} rows are zeros, as if never written"
    elif still.sum() > len(still) / 2:
        yield f"{still.sum()} observations equal the next one; record copies of them"
    if first.sum() > 2 and not rewards[first][1:].any() and (rewards == 0).mean() < 0.5:
        yield "the reward after each end is 0; leave out the steps in which environments are reset"
    if end.sum() > 1 and not actions[end].any() and actions.any():
        yield "the action of each end is 0; leave out rows that hold a last observation alone"
    beyond_one = abs(actions[:, largest_action > 1])
    if beyond_one.size and 0.99 < beyond_one.max() <= 1:
        yield "no action exceeds 1, as if scaled to [-1, 1]; give them in the environment's units"
    yield from unread(dataset, dataset.keys() - data.keys(), obs.shape, end)


def unread(dataset: Mapping, names: set, obs_shape: tuple, end: np.ndarray) -> Iterator[str]:
    """Arrays under other names that may be next observations, or say other ends than `end` (n,)."""
    for name in sorted(names, key=str):
        with suppress(ValueError):  # lists of several lengths, pickles
            if np.shape(dataset[name]) == obs_shape:
                yield f"{name} is not read; name it next_observations if it is that"
            elif np.shape(dataset[name]) in ((len(end),), (len(end), 1)):
                column = np.ravel(dataset[name])
                within = column[~end]  # where no episode ends
                if np.isin(column, (0, 1)).all() and within.any() and not within.all():
                    yield f"{name} is not read; terminals and timeouts say where episodes end"
