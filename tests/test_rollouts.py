"""`evaluate` against episodes by hand, in an environment that ends early and at random."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np


class Dice(gym.Env):
    """Each step ends the episode by `terminated` with a chance of 0.2, and so by `truncated`."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Box(-np.inf, np.inf, (2,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=2), {}

    def step(self, action):
        terminated, truncated = self.np_random.random(2) < 0.2
        return self.np_random.normal(size=2), action.sum(), terminated, truncated, {}


def test_evaluate_sums_the_rewards_of_whole_episodes(script):
    """Of two agents, whose actions differ; three episodes each."""
    own_way = np.array([1.0, 2.0])[:, None, None]  # (S, 1, 1)
    act = lambda obs, num: obs * own_way + num
    agent = SimpleNamespace(args=SimpleNamespace(num_seeds=2), act=act)
    envs = gym.vector.SyncVectorEnv([Dice] * 6)
    found = script.evaluate(agent, envs, [3, 5000], 7)
    first_seed = np.random.SeedSequence([3, 5000]).generate_state(1).item()
    expected = np.zeros(6)
    ways_to_end = set()
    for i in range(6):
        env = Dice()
        obs, _ = env.reset(seed=first_seed + i)
        ends = [False, False]
        while not any(ends):
            obs, reward, *ends, _ = env.step(obs * own_way[i // 3, 0] + 7)
            expected[i] += reward
        ways_to_end.add(tuple(map(bool, ends)))
    assert {(True, False), (False, True)} <= ways_to_end
    np.testing.assert_allclose(found, expected.reshape(2, 3), rtol=1e-6)
