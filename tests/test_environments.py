"""Sizes, step limits and seeds of the environments. (test_d4rl.py: the numbers of D4RL's own.)"""

import numpy as np
import pytest

import uwac

SIZES = {"hopper": (11, 3, 1000), "halfcheetah": (17, 6, 1000), "walker2d": (17, 6, 1000)}
SIZES |= {"pen": (45, 24, 100), "hammer": (46, 26, 200), "door": (39, 28, 200)}
SIZES |= {"relocate": (39, 30, 200)}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """MuJoCo writes its notices on the walkers' models, MUJOCO_LOG.TXT, into the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_step_limits(name):
    """Observations, actions in [-1, 1], and films at the environment's own speed."""
    obs_dim, action_dim, max_steps = SIZES[name]
    envs = uwac.make_envs(f"{name}-expert", 1)
    assert envs.single_observation_space.shape == (obs_dim,)
    assert envs.metadata["render_fps"] == pytest.approx(1 / envs.envs[0].unwrapped.dt)
    space = envs.single_action_space
    assert space.shape == (action_dim,) and (space.low == -1).all() and (space.high == 1).all()
    assert envs.envs[0].get_wrapper_attr("_max_episode_steps") == max_steps
    envs.close()


def test_copies_are_seeded_one_after_another():
    """Episodes of an evaluation differ from each other and are the same again with its seed."""
    envs = uwac.make_envs("door-demo", 3)
    first, again = envs.reset(seed=5)[0], envs.reset(seed=5)[0]
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first[1:], uwac.make_envs("door-demo", 2).reset(seed=6)[0])
    assert len(np.unique(first, axis=0)) == 3
