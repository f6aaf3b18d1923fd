"""The environments are D4RL's: sizes, step limits, the pen that falls, and the scores of D4RL's expert policies."""

from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

import uwac

SIZES = {"hopper": (11, 3, 1000), "halfcheetah": (17, 6, 1000), "walker2d": (17, 6, 1000), "pen": (45, 24, 100)}
SIZES |= {"hammer": (46, 26, 200), "door": (39, 28, 200), "relocate": (39, 30, 200)}
POLICIES = Path(__file__).resolve().parent.parent.parent / "shared" / "policies"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """MuJoCo writes its notices on the walkers' models, MUJOCO_LOG.TXT, into the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_step_limits(script, name):
    """Observations, actions in [-1, 1], and an end by truncation at D4RL's step limit and not before it: every step puts
    the body or the object back to where an episode begins, so that nothing ends it earlier."""
    obs_dim, action_dim, max_steps = SIZES[name]
    envs = script.make_envs(f"{name}-expert", 1)
    assert envs.single_observation_space.shape == (obs_dim,)
    space = envs.single_action_space
    assert space.shape == (action_dim,) and (space.low == -1).all() and (space.high == 1).all()
    envs.reset(seed=0)
    for step in range(1, max_steps + 1):
        _, _, terminated, truncated, _ = envs.step(np.zeros((1, action_dim), np.float32))
        assert not terminated[0] and truncated[0] == (step == max_steps), step
        envs.envs[0].unwrapped.reset_model()
    envs.close()


def test_copies_are_seeded_one_after_another(script):
    """Episodes of one evaluation differ from each other and are the same in the next one with the same seed."""
    envs = script.make_envs("door-demo", 3)
    first, again = envs.reset(seed=5)[0], envs.reset(seed=5)[0]
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first[1:], script.make_envs("door-demo", 2).reset(seed=6)[0])
    assert len(np.unique(first, axis=0)) == 3


@pytest.mark.parametrize("height, ends", [(0.0749, True), (0.0751, False)])
def test_pen_episode_ends_below_75_mm(script, height, ends):
    """The wrapper on an environment that never ends by itself."""

    class Pen(gym.Env):
        observation_space = action_space = gym.spaces.Box(-1, 1, (1,))
        obj_body_id, data = 1, SimpleNamespace(xpos=np.array([[0, 0, 9.0], [0, 0, height], [0, 0, 9.0]]))

        def step(self, action):
            return action, 1.0, False, False, {}

    _, reward, terminated, truncated, _ = script.EndWherePenFalls(Pen()).step(np.zeros(1))
    assert (reward, terminated, truncated) == (1.0, ends, False)


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


def roll(name, episodes, act):
    """Returns of `episodes` episodes from reset seeds 0 on; act(obs, t) gives the actions."""
    envs = uwac.make_envs(f"{name}-expert", episodes)
    obs, _ = envs.reset(seed=0)
    returns, running, t = np.zeros(episodes), np.ones(episodes, bool), 0
    while running.any():
        obs, reward, terminated, truncated, _ = envs.step(act(obs, t))
        returns += reward * running
        running &= ~(terminated | truncated)
        t += 1
    envs.close()
    return returns


def expert(name, episodes):
    """D4RL's expert policy with its actions sampled; each episode has noise of its own (shared/datasets/README.md)."""
    p = np.load(POLICIES / f"{name}-expert.npz")
    noise = np.random.default_rng(0).normal(size=(episodes, 200, len(p["log_std"])))

    def act(obs, t):
        h = np.tanh((obs - p["in_shift"]) / (p["in_scale"] + 1e-8) @ p["w0"].T + p["b0"])
        h = np.tanh(h @ p["w1"].T + p["b1"])
        mean = (h @ p["w2"].T + p["b2"]) * p["out_scale"] + p["out_shift"]
        return (mean + np.exp(p["log_std"]) * noise[:, t]).clip(-1, 1)

    return act


@pytest.mark.skipif(not POLICIES.exists(), reason="needs D4RL's expert policies, shared/policies beside the repository")
@pytest.mark.parametrize(
    "name, score, episodes, their_episodes",
    [("door", 97.0, 20, 20), ("hammer", 103.0, 20, 20), ("relocate", 99.3, 20, 20), ("pen", 95.0, 100, 251)],
)
def test_d4rls_experts_score_what_they_should(name, score, episodes, their_episodes):
    """The scores are those of shared/datasets/README.md (pen's is its data set's, where a fallen pen ends an episode),
    met within three standard errors of the difference; both errors follow from the spread of our episodes."""
    scores = uwac.normalized_score(name, roll(name, episodes, expert(name, episodes)))
    error = scores.std(ddof=1) * (1 / episodes + 1 / their_episodes) ** 0.5
    assert abs(scores.mean() - score) < 3 * error


def test_random_actions_on_pen_return_what_they_should():
    """66.8 ± 17.1 over 100 episodes where a fallen pen ends the episode, measured elsewhere (D4RL's reference: 96.3);
    ours within three standard errors of the difference. Where a fallen pen ends nothing, our 100 gave -130."""
    rng = np.random.default_rng(0)
    returns = roll("pen", 100, lambda obs, t: rng.uniform(-1, 1, (100, 24)))
    assert abs(returns.mean() - 66.8) < 3 * np.hypot(returns.std(ddof=1) / 10, 17.1)
