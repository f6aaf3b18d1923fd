"""d4rl/old_gym.py: programs written for gym 0.21 find what they use, and the same numbers."""

import copy
import pickle

import gymnasium
import numpy as np

import d4rl
from d4rl import old_gym as gym


def halve(state):
    return state / 2


def negate(reward):
    return -reward


class Repeat(gym.Wrapper):
    def step(self, action):
        self.env.step(action)
        obs, reward, done, info = self.env.step(action)
        return obs, reward, done, info


def wrapped():
    env = gym.wrappers.TransformObservation(gym.make("door-demo-v0"), halve)
    return gym.wrappers.TransformReward(env, negate)


def test_the_calls_of_an_offline_program():
    """As CORL's programs make them. Numbers are Gymnasium's for the same seeds."""
    plain = gymnasium.make("door-demo-v0")
    env = wrapped()
    np.testing.assert_equal(d4rl.qlearning_dataset(env), d4rl.qlearning_dataset(plain))
    np.testing.assert_equal(env.get_dataset(), plain.get_dataset())
    env.seed(3)
    env.action_space.seed(3)
    plain.action_space.seed(3)
    for seed in (3, None):  # the second episode goes on with the generator that the seed began
        state, done = env.reset(), False
        obs, _ = plain.reset(seed=seed)
        np.testing.assert_array_equal(state, obs / 2)
        while not done:
            state, reward, done, info = env.step(env.action_space.sample())
            obs, expected, _, truncated, _ = plain.step(plain.action_space.sample())
            np.testing.assert_array_equal(state, obs / 2)
            assert (reward, done) == (-expected, truncated)
        assert info["TimeLimit.truncated"] is True
    np.testing.assert_array_equal(env.reset(seed=3), plain.reset(seed=3)[0] / 2)
    assert env.get_normalized_score(7.0) == plain.get_normalized_score(7.0)


def test_a_terminal_step_and_no_time_limit():
    env = gym.make("hopper-medium-v2")
    env.seed(0)
    env.reset()
    done = False
    while not done:
        *_, done, info = env.step(env.action_space.high)
    assert "TimeLimit.truncated" not in info
    bare = gym.make("door-demo-v0").unwrapped
    bare.reset(seed=0)
    for _ in range(201):
        _, _, done, _ = bare.step(bare.action_space.low)
    assert not done and bare._max_episode_steps == 200


def test_attributes_through_wrappers_of_ones_own():
    env = Repeat(wrapped())
    env.reset(seed=0)
    assert env.door_body_id == env.unwrapped.door_body_id
    assert isinstance(env, gym.Env) and not hasattr(env, "no_such_thing")
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        ours, theirs = ([one.reset(seed=0), one.step(np.ones(28))] for one in (env, twin))
        np.testing.assert_equal(theirs, ours)
