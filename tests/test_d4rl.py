"""Tasks and environments are D4RL's: table, reference returns, episodes, steps; d4rl's imports."""

import csv
import hashlib
import importlib
import os
import subprocess
import sys
from types import ModuleType

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from conftest import ROOT, Point

import d4rl

GOLDEN = ROOT / "tests" / "golden"
HANDS = {  # what an episode begins with: array of the model, whose element, name in golden/
    "pen": [("body_quat", "target_obj_body_id", "desired_orien")],
    "hammer": [("body_pos", "target_body_id", "board_pos")],
    "door": [("body_pos", "door_body_id", "door_body_pos")],
    "relocate": [
        ("body_pos", "obj_body_id", "obj_pos"),
        ("site_pos", "target_obj_site_id", "target_pos"),
    ],
}


def test_the_table_of_tasks():
    """Addresses, SHA-256, step limits and scores of every task. Others have none."""
    with open(GOLDEN / "d4rl_infos.csv") as table:
        rows = list(csv.DictReader(table))
    assert {row["task"] for row in rows} == d4rl.DATASETS.keys() - {"door-demo-v0"}
    for row in rows:
        task = row["task"]
        file, sha256 = d4rl.DATASETS[task]
        assert (d4rl.SERVER + file, sha256) == (row["url"], row["sha256"])
        assert gym.spec(task).max_episode_steps == int(row["step_limit"])
        _, _, *returns = d4rl.TASKS[task.split("-")[0]]
        assert returns == [float(row["ref_min"]), float(row["ref_max"])]
        returns = np.array(returns)
        for name in (task, task.removesuffix("-v0")):
            assert d4rl.normalized_score(name, returns) == pytest.approx([0, 100])
            assert d4rl.get_normalized_score(name, returns) == pytest.approx([0, 1])
    assert d4rl.normalized_score("Pendulum-v1", -7.0) == -7
    with pytest.raises(KeyError):
        d4rl.get_normalized_score("Pendulum-v1", -7.0)
    revision = "b9e1985fe28a0d67418c99473874d6a837d6cf94"
    assert d4rl.MIRROR == f"https://huggingface.co/datasets/imone/D4RL/resolve/{revision}/"


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
    env = gym.make(f"{task}-v0")
    env.unwrapped._np_random = gym_generator()
    generator = gym_generator()
    size = env.action_space.shape
    total = 0.0
    for _ in range(100):
        env.reset()
        ended = False
        while not ended:
            action = generator.uniform(np.float32(-1), np.float32(1), size).astype(np.float32)
            _, reward, terminated, truncated, _ = env.step(action)
            total += reward
            ended = terminated or truncated
    _, _, random_return, _ = d4rl.TASKS[task]
    assert total / 100 == pytest.approx(random_return, rel=0, abs=2e-6)


@pytest.mark.parametrize("episode", [0, 1], ids=["random", "expert"])
@pytest.mark.parametrize("task", HANDS)
def test_an_episode_of_d4rls_is_the_same_here(task, episode):
    """Observations, rewards and the end, from the same start under the same actions."""
    prefix = f"{task}_{episode}_"
    arrays = np.load(GOLDEN / "d4rl_hands.npz")
    golden = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
    env = gym.make(f"{task}-v0")
    hand = env.unwrapped
    env.reset(seed=0)
    mujoco.mj_resetData(hand.model, hand.data)
    for array, element, name in HANDS[task]:
        getattr(hand.model, array)[getattr(hand, element)] = golden[name]
    hand.set_state(golden["qpos"], golden["qvel"])
    start = hand._get_obs()
    steps = [env.step(action) for action in golden["action"]]
    obs, rewards, terminated, truncated, _ = zip(*steps, strict=True)
    expected = golden["obs_every_10"]
    every_10 = [start, *obs][::10][: len(expected)]
    np.testing.assert_allclose(every_10, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(rewards, golden["reward"], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(np.logical_or(terminated, truncated), golden["done"])


@pytest.mark.parametrize("task", ["hopper", "walker2d", "halfcheetah"])
def test_a_walkers_step_is_that_of_d4rls_engine(task):
    arrays = np.load(GOLDEN / "walkers_mujoco210.npz")
    env = gym.make(f"{task}-v0")
    walker = env.unwrapped
    env.reset(seed=0)
    for i, action in enumerate(arrays[f"{task}_action"]):
        mujoco.mj_resetData(walker.model, walker.data)
        walker.set_state(arrays[f"{task}_qpos"][i], arrays[f"{task}_qvel"][i])
        obs, reward, terminated, _, _ = env.step(action)
        np.testing.assert_allclose(obs, arrays[f"{task}_next_obs"][i], rtol=0, atol=1e-9)
        assert reward == pytest.approx(arrays[f"{task}_reward"][i], rel=0, abs=1e-9)
        assert terminated == arrays[f"{task}_done"][i]


@pytest.mark.parametrize("package", ["gymnasium-robotics", "mujoco"])
def test_another_version_is_refused(package, monkeypatch):
    """Of which rewards have D4RL's sign already, or contacts differ."""
    monkeypatch.delitem(sys.modules, "d4rl.envs", raising=False)
    versions = {"gymnasium-robotics": "1.4.2", "mujoco": "3.2.6"}
    monkeypatch.setattr("importlib.metadata.version", (versions | {package: "9.9.9"}).get)
    with pytest.raises(ImportError, match=f"install {package}=={versions[package]}"):
        importlib.import_module("d4rl.envs")


def test_environments_that_cannot_be_used(monkeypatch):
    bad = {
        "antmaze-umaze-v0": "Of D4RL's tasks, this port has hopper, .*, relocate$",
        "a name": "Malformed environment ID",
        "CartPole-v1": r"must have vectors of numbers, not Discrete\(2\)",
    }
    for env_id, problem in bad.items():
        with pytest.raises(ValueError, match=f"^{env_id}: .*{problem}"):
            d4rl.make(env_id)
    with pytest.raises(ValueError, match="^Point-v0: needs a step limit: register it with max"):
        d4rl.make("Point-v0", max_episode_steps=-1)
    for high in ([9, 0], [9, np.inf], [9, np.finfo(np.float32).max], [[9, 9], [9, 9]]):
        space = gym.spaces.Box(-np.float32(high), np.float32(high))
        monkeypatch.setattr(Point, "action_space", space)
        with pytest.raises(ValueError, match="^Point-v0: (needs finite bounds|must have vectors)"):
            d4rl.make("Point-v0")


def test_d4rl_in_a_python_of_its_own(tmp_path):
    """An environment of one's own needs no MuJoCo. The docstring's six lines run, on the data set
    that lies here. No package warns of rewards or of -v4, and nothing is left."""
    usage = "\n".join(line[4:] for line in d4rl.__doc__.split("\n") if line.startswith("    "))
    program = f"""
import sys
heavy = {{"mujoco": None, "gymnasium_robotics": None, "torch": None}}  # refuse to be imported
sys.modules |= heavy
import d4rl
d4rl.make("Pendulum-v1")
for name in heavy:
    del sys.modules[name]
episode_return = 2880.5693087298737
{usage.replace("door-human", "door-demo")}
print(data["observations"].shape, round(score))
for task in d4rl.TASKS:
    env = d4rl.make(f"{{task}}-expert")
    env.reset(seed=0)
    env.step(env.action_space.sample())
"""
    command = [sys.executable, "-c", program]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("(4975, 39) 100\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_script_that_finds_the_original_d4rl_says_so(script, monkeypatch, refused):
    original = ModuleType("d4rl")
    original.__file__ = "site-packages/d4rl/__init__.py"
    monkeypatch.setitem(sys.modules, "d4rl", original)
    line = f"error: {original.__file__} is not the d4rl that comes with this script"
    assert refused("", script) == line
