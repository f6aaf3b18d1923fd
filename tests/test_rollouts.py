"""`evaluate` on episodes that are written down here."""

from types import SimpleNamespace

import numpy as np
import torch

import uwac

# Four environments, for two seeds: in each step their rewards, and which of them end.
REWARDS = np.array([[1, 2, 3, 4], [10, 20, 30, 40], [100, 200, 300, 400.0]])
TERMINATED = np.array([[0, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0]], bool)
TRUNCATED = np.array([[0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]], bool)
RETURNS = [[11, 2], [333, 44]]


def test_evaluate_sums_the_rewards_of_whole_episodes():
    """Of each environment the first one; seeds act in environments of their own. What is drawn is
    by the seed."""
    seen, drawn = [], []

    def act(obs, num):
        assert num == 7
        seen.append(obs)
        drawn.append(torch.rand(1).item())
        return obs[..., :2] * np.array([1.0, -1.0])[:, None, None]  # of two agents: (S, E, A)

    def step(actions):
        steps = len(seen) - 1
        assert (actions == obs[:, :2] * np.array([[1], [1], [-1], [-1]])).all()
        return obs, REWARDS[steps], TERMINATED[steps], TRUNCATED[steps], {}

    obs = np.random.default_rng(0).normal(size=(4, 3))
    seeds = []
    envs = SimpleNamespace(num_envs=4, step=step)
    envs.reset = lambda seed: seeds.append(seed) or (obs, {})
    agent = SimpleNamespace(args=SimpleNamespace(num_seeds=2), act=act)
    for seed in ([3, 5000], [3, 5000], [4, 5000], [3, 6000]):
        seen.clear()
        assert uwac.evaluate(agent, envs, seed, 7).tolist() == RETURNS
        assert all((given == obs.reshape(2, 2, 3)).all() for given in seen) and len(seen) == 3
    assert seeds[0] == seeds[1] and len(set(seeds)) == 3
    assert drawn[:3] == drawn[3:6] and len(set(drawn)) == 9
