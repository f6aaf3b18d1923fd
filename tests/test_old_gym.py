"""d4rl/old_gym.py: programs written for gym 0.21 find what they use, and the same numbers."""

import copy
import pickle

import gymnasium
import numpy as np
import pytest

import d4rl
from d4rl import old_gym as gym


def halve(state):
    return state / 2


def negate(reward):
    return -reward


class Repeat(gym.Wrapper):
    """A wrapper as those programs have them."""

    def step(self, action):
        self.env.step(action)
        obs, reward, done, info = self.env.step(action)
        return obs, reward, done, info


def wrapped():
    env = gym.wrappers.TransformObservation(gym.make("door-demo-v0"), halve)
    return gym.wrappers.TransformReward(env, negate)


def test_the_calls_of_an_offline_program():
    """As CORL's programs make them: seed, data, episodes of four-tuples, score. Numbers are
    Gymnasium's for the same seeds."""
    plain = gymnasium.make("door-demo-v0")
    env = wrapped()
    np.testing.assert_equal(d4rl.qlearning_dataset(env), d4rl.qlearning_dataset(plain))
    np.testing.assert_equal(gym.make("door-demo-v0").get_dataset(), plain.get_dataset())
    env.seed(3)
    env.action_space.seed(3)
    plain.action_space.seed(3)
    assert float(env.action_space.high[0]) == 1 and env.observation_space.shape == (39,)
    first = []
    for episode in range(2):  # the second goes on with the generator that the seed began
        state, done = env.reset(), False
        obs, _ = plain.reset(seed=None if episode else 3)
        np.testing.assert_array_equal(state, obs / 2)
        first.append(state)
        total, steps = 0.0, 0
        while not done:
            state, reward, done, info = env.step(env.action_space.sample())
            obs, expected, *_ = plain.step(plain.action_space.sample())
            np.testing.assert_array_equal(state, obs / 2)
            assert reward == -expected
            total += reward
            steps += 1
        assert steps == env._max_episode_steps == 200 and info["TimeLimit.truncated"] is True
        score = (total + 56.512833) / (2880.5693087298737 + 56.512833)
        assert env.get_normalized_score(total) == pytest.approx(score)
    assert (first[0] != first[1]).any()
    env.seed(3)
    np.testing.assert_array_equal(env.reset(), first[0])
    np.testing.assert_array_equal(env.reset(seed=3), first[0])


def test_a_terminal_step_and_no_time_limit():
    """An end of the task is no truncation. `unwrapped` has no limit, and four-tuples, too."""
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
    door = env.unwrapped.door_body_id
    assert env.door_body_id == door and env.spec.id == "door-demo-v0"
    assert isinstance(env, gym.Env) and not hasattr(env, "no_such_thing")
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        twin.reset(seed=0)
        env.reset(seed=0)
        ours, theirs = env.step(env.action_space.high), twin.step(env.action_space.high)
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1:3] == theirs[1:3] and twin.ref_min_score == -56.512833
    *_, done, _ = [env.step(env.action_space.high) for _ in range(99)][-1]
    assert done  # after 200 steps, two at once
