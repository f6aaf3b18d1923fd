"""Sizes and step limits of the environments. (test_d4rl.py: the numbers of D4RL's own.)"""

import pytest

import uwac

SIZES = {"hopper": (11, 3, 1000), "halfcheetah": (17, 6, 1000), "walker2d": (17, 6, 1000)}
SIZES |= {"pen": (45, 24, 100), "hammer": (46, 26, 200), "door": (39, 28, 200)}
SIZES |= {"relocate": (39, 30, 200)}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_step_limits(name, tmp_path, monkeypatch):
    """Observations, and actions in [-1, 1]."""
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves its notices in the current folder
    obs_dim, action_dim, max_steps = SIZES[name]
    envs = uwac.make_envs(f"{name}-expert", 1)
    assert envs.single_observation_space.shape == (obs_dim,)
    space = envs.single_action_space
    assert space.shape == (action_dim,) and (space.low == -1).all() and (space.high == 1).all()
    assert envs.envs[0].get_wrapper_attr("_max_episode_steps") == max_steps
    envs.close()
