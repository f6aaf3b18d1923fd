"""gym 0.21's interface on Gymnasium, for programs that were written for D4RL and gym.

    from d4rl import old_gym as gym    # in place of `import gym`

`reset` returns the observation alone, `step` (observation, reward, done, info), `seed` seeds the
next episode, and attributes are found through wrappers. Classes of one's own build on those here.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
from gymnasium import Env, error, logger, register, spaces  # noqa: F401 (as gym.spaces and so on)

__version__ = "0.21.0"


class Wrapper(gymnasium.Wrapper):
    """Passes on all that it does not change."""

    env: Any

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # while a copy is made
            raise AttributeError(name)
        return self.env.get_wrapper_attr(name)

    def reset(self, **options: Any) -> Any:
        return self.env.reset(**options)


class ObservationWrapper(Wrapper):
    def reset(self, **options: Any) -> Any:
        return self.observation(self.env.reset(**options))

    def step(self, action: Any) -> Any:
        obs, reward, done, info = self.env.step(action)
        return self.observation(obs), reward, done, info


class ActionWrapper(Wrapper):
    def step(self, action: Any) -> Any:
        return self.env.step(self.action(action))


class RewardWrapper(Wrapper):
    def step(self, action: Any) -> Any:
        obs, reward, done, info = self.env.step(action)
        return obs, self.reward(reward), done, info


class TransformObservation(ObservationWrapper):
    def __init__(self, env: Env, f: Callable):
        super().__init__(env)
        self.observation = f


class TransformReward(RewardWrapper):
    def __init__(self, env: Env, f: Callable):
        super().__init__(env)
        self.reward = f


wrappers = SimpleNamespace(
    TransformObservation=TransformObservation, TransformReward=TransformReward
)


class OldEnv(Wrapper):
    """A Gymnasium environment, as gym's."""

    @property
    def unwrapped(self) -> "OldEnv":
        return OldEnv(self.env.unwrapped)

    def seed(self, seed: int | None = None) -> list:
        self.env.unwrapped.next_seed = seed  # so that `unwrapped` can be seeded, too
        return [seed]

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        base = self.env.unwrapped
        seed = getattr(base, "next_seed", None) if seed is None else seed
        base.next_seed = None
        obs, _ = self.env.reset(seed=seed, **options)
        return obs

    def step(self, action: Any) -> Any:
        obs, reward, terminal, timeout, info = self.env.step(action)
        if timeout:
            info = {**info, "TimeLimit.truncated": not terminal}
        return obs, reward, terminal or timeout, info


def make(env_id: str, **settings: Any) -> OldEnv:
    """Raises as `gymnasium.make`."""
    return OldEnv(gymnasium.make(env_id, **settings))
