"""Sizes and step limits of the environments, the pen that falls, and seeds. (test_d4rl.py: the
numbers of D4RL's own.)"""

import numpy as np
import pytest

SIZES = {"hopper": (11, 3, 1000), "halfcheetah": (17, 6, 1000), "walker2d": (17, 6, 1000)}
SIZES |= {"pen": (45, 24, 100), "hammer": (46, 26, 200), "door": (39, 28, 200)}
SIZES |= {"relocate": (39, 30, 200)}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """MuJoCo writes its notices on the walkers' models, MUJOCO_LOG.TXT, into the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_step_limits(script, name):
    """Observations, actions in [-1, 1], and an end by truncation at D4RL's step limit and not
    before it: every step puts the body or the object back to where an episode begins, so that
    nothing ends it earlier; films play at the environment's own speed."""
    obs_dim, action_dim, max_steps = SIZES[name]
    envs = script.make_envs(f"{name}-expert", 1)
    assert envs.single_observation_space.shape == (obs_dim,)
    assert envs.metadata["render_fps"] == pytest.approx(1 / envs.envs[0].unwrapped.dt)
    space = envs.single_action_space
    assert space.shape == (action_dim,) and (space.low == -1).all() and (space.high == 1).all()
    envs.reset(seed=0)
    for step in range(1, max_steps + 1):
        _, _, terminated, truncated, _ = envs.step(np.zeros((1, action_dim), np.float32))
        assert not terminated[0] and truncated[0] == (step == max_steps), step
        envs.envs[0].unwrapped.reset_model()
    envs.close()


def test_copies_are_seeded_one_after_another(script):
    """Episodes of an evaluation differ from each other and are the same again with its seed."""
    envs = script.make_envs("door-demo", 3)
    first, again = envs.reset(seed=5)[0], envs.reset(seed=5)[0]
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first[1:], script.make_envs("door-demo", 2).reset(seed=6)[0])
    assert len(np.unique(first, axis=0)) == 3


def test_a_pen_that_falls_ends_the_episode(script):
    """In the environment itself, under random actions: the first step below 75 mm is the last."""
    envs, rng = script.make_envs("pen-human", 1), np.random.default_rng(0)
    envs.reset(seed=0)
    pen = envs.envs[0].unwrapped
    for step in range(1, 100):
        _, _, terminated, truncated, _ = envs.step(rng.uniform(-1, 1, (1, 24)))
        assert terminated[0] == (pen.data.xpos[pen.obj_body_id][2] < 0.075) and not truncated[0]
        if terminated[0]:
            break
    assert 10 < step < 99
