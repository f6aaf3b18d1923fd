"""The seven environments are D4RL's: its reference scores, episodes, steps and experts' scores.

The files in golden/ hold numbers of D4RL's stack, gym 0.23.1, mujoco-py 2.1.2.14, MuJoCo 2.1.0:
d4rl_hands.npz      two whole episodes a hand, 0 of random actions and 1 of D4RL's expert
walkers_mujoco210.npz   300 single environment steps a walker, under random actions
"""

import hashlib
import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest

import uwac

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
POLICIES = ROOT.parent / "shared" / "policies"
HANDS = ["pen", "hammer", "door", "relocate"]
WALKERS = ["hopper", "walker2d", "halfcheetah"]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """MuJoCo writes its notices, MUJOCO_LOG.TXT, into the current folder."""
    monkeypatch.chdir(tmp_path)


def make_env(script, task):
    """One environment of a task, (env, its simulation)."""
    gym_id, max_steps, _, _ = script.ENVIRONMENTS[task]
    name = gym_id.replace("Adroit", "gymnasium_robotics:Adroit")  # as for gymnasium.make
    env = script.make_env(name, max_episode_steps=max_steps)
    return env, env.unwrapped


SIZES = {"hopper": (11, 3, 1000), "halfcheetah": (17, 6, 1000), "walker2d": (17, 6, 1000)}
SIZES |= {"pen": (45, 24, 100), "hammer": (46, 26, 200), "door": (39, 28, 200)}
SIZES |= {"relocate": (39, 30, 200)}


@pytest.mark.parametrize("task", SIZES)
def test_sizes_and_step_limits(task):
    """Observations, actions, which are in [-1, 1], and the most steps of an episode."""
    envs = uwac.make_envs(f"{task}-expert", 1)
    space = envs.single_action_space
    sizes = envs.single_observation_space.shape + space.shape
    assert (*sizes, envs.envs[0].get_wrapper_attr("_max_episode_steps")) == SIZES[task]
    assert (space.low == -1).all() and (space.high == 1).all()


def play(env, act):
    """Return of an episode under act(obs, step)."""
    obs, _ = env.reset()
    episode_return = 0.0
    step = 0
    ended = False
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(act(obs, step))
        episode_return += reward
        step += 1
        ended = terminated or truncated
    return episode_return


def gym_generator():
    """A generator as gym up to 0.21 seeded it for seed 0."""
    number = int.from_bytes(hashlib.sha512(b"0").digest()[:8], "little")
    generator = np.random.RandomState()
    generator.seed([number % 2**32, number // 2**32])
    return generator


@pytest.mark.parametrize("task", HANDS)
def test_d4rls_reference_script_gives_d4rls_numbers(task):
    """The return that D4RL scores with 0 is the mean of 100 episodes of random actions, in its
    scripts/reference_scores/generate_ref_min_score.py: here to all six decimals."""
    env, hand = make_env(uwac, task)
    hand._np_random = gym_generator()
    generator = gym_generator()
    low = env.action_space.low.astype(np.float32)
    high = env.action_space.high.astype(np.float32)

    def act(obs, step):
        return generator.uniform(low, high, low.shape).astype(np.float32)

    returns = [play(env, act) for _ in range(100)]
    random_return = uwac.ENVIRONMENTS[task][2]
    assert np.mean(returns) == pytest.approx(random_return, rel=0, abs=2e-6)


def set_start(task, hand, golden):
    """Bring the simulation to where an episode of D4RL's began."""
    mujoco.mj_resetData(hand.model, hand.data)
    if task == "pen":
        hand.model.body_quat[hand.target_obj_body_id] = golden["desired_orien"]
    elif task == "hammer":
        hand.model.body_pos[hand.target_body_id] = golden["board_pos"]
    elif task == "door":
        hand.model.body_pos[hand.door_body_id] = golden["door_body_pos"]
    else:
        hand.model.body_pos[hand.obj_body_id] = golden["obj_pos"]
        hand.model.site_pos[hand.target_obj_site_id] = golden["target_pos"]
    hand.set_state(golden["qpos"], golden["qvel"])


@pytest.mark.parametrize("episode", [0, 1], ids=["random", "expert"])
@pytest.mark.parametrize("task", HANDS)
def test_an_episode_of_d4rls_is_the_same_here(script, task, episode):
    """Observations, rewards and the end, from the same start under the same actions."""
    prefix = f"{task}_{episode}_"
    arrays = np.load(GOLDEN / "d4rl_hands.npz")
    golden = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
    env, hand = make_env(script, task)
    env.reset(seed=0)
    set_start(task, hand, golden)
    observations = [hand._get_obs()]
    rewards = []
    ends = []
    for action in golden["action"]:
        obs, reward, terminated, truncated, _ = env.step(action)
        observations.append(obs)
        rewards.append(reward)
        ends.append(terminated or truncated)
    expected = golden["obs_every_10"]
    every_10 = observations[::10][: len(expected)]
    np.testing.assert_allclose(every_10, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(rewards, golden["reward"], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(ends, golden["done"])


@pytest.mark.parametrize("task", WALKERS)
def test_a_walkers_step_is_that_of_d4rls_engine(script, task):
    arrays = np.load(GOLDEN / "walkers_mujoco210.npz")
    env, walker = make_env(script, task)
    env.reset(seed=0)
    for i, action in enumerate(arrays[f"{task}_action"]):
        mujoco.mj_resetData(walker.model, walker.data)
        walker.set_state(arrays[f"{task}_qpos"][i], arrays[f"{task}_qvel"][i])
        obs, reward, terminated, _, _ = env.step(action)
        np.testing.assert_allclose(obs, arrays[f"{task}_next_obs"][i], rtol=0, atol=1e-9)
        assert reward == pytest.approx(arrays[f"{task}_reward"][i], rel=0, abs=1e-9)
        assert terminated == arrays[f"{task}_done"][i]


def expert(task):
    """D4RL's expert: act(obs, step) samples its normal distribution."""
    net = np.load(POLICIES / f"{task}-expert.npz")
    net = {name: net[name].astype(np.float64) for name in net}
    generator = np.random.default_rng(0)

    def act(obs, step):
        hidden = (obs - net["in_shift"]) / (net["in_scale"] + 1e-8)
        hidden = np.tanh(net["w0"] @ hidden + net["b0"])
        hidden = np.tanh(net["w1"] @ hidden + net["b1"])
        mean = (net["w2"] @ hidden + net["b2"]) * net["out_scale"] + net["out_shift"]
        noise = np.exp(net["log_std"]) * generator.standard_normal(len(mean))
        return np.clip(mean + noise, -1, 1)

    return act


@pytest.mark.skipif(not POLICIES.exists(), reason="needs ../shared/policies, D4RL's experts")
@pytest.mark.parametrize(
    "task, score, standard_error",
    [("pen", 106.3, 3.5), ("hammer", 97.4, 2.7), ("door", 102.3, 0.6), ("relocate", 102.8, 1.0)],
)
def test_d4rls_experts_score_what_they_do_in_its_engine(task, score, standard_error):
    """100 episodes here and 300 in MuJoCo 2.1.0, within three standard errors of the difference."""
    env, _ = make_env(uwac, task)
    env.reset(seed=0)
    act = expert(task)
    returns = np.array([play(env, act) for _ in range(100)])
    scores = uwac.normalized_score(task, returns)
    ours = scores.std(ddof=1) / 10
    assert abs(scores.mean() - score) < 3 * np.hypot(ours, standard_error)


def test_another_gymnasium_robotics_is_refused(script, monkeypatch):
    """Later ones have D4RL's sign in their rewards, and would have it taken off twice."""
    monkeypatch.setattr(script, "version", lambda package: "1.4.3")
    with pytest.raises(script.InputError, match="install gymnasium-robotics==1.4.2"):
        script.make_env("gymnasium_robotics:AdroitHandDoor-v1")
    script.make_env("Hopper-v4")


def test_nothing_stray_is_printed_or_left(script, tmp_path):
    """By the packages, whose warnings on rewards and on -v4 are dealt with."""
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import {script.__name__} as script
for task in script.ENVIRONMENTS:
    envs = script.make_envs(task + "-expert", 2)
    envs.reset(seed=0)
    envs.step(envs.action_space.sample())
    envs.close()
print("done")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert list(tmp_path.iterdir()) == []
