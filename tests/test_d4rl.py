"""Tasks and environments are D4RL's: table, reference returns, episodes, steps; d4rl's imports.

The files in golden/ hold numbers of D4RL's:
d4rl_infos.csv          each task's address, reference returns (d4rl/infos.py) and SHA-256
d4rl_hands.npz          two episodes a hand in its own stack (gym 0.23.1, mujoco-py 2.1.2.14), 0 of
                        random actions and 1 of D4RL's expert
walkers_mujoco210.npz   300 single steps a walker in its engine, MuJoCo 2.1.0, under random actions
"""

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
from conftest import ROOT

import d4rl

GOLDEN = ROOT / "tests" / "golden"
HANDS = ["pen", "hammer", "door", "relocate"]
STEP_LIMITS = {"hopper": 1000, "halfcheetah": 1000, "walker2d": 1000}
STEP_LIMITS |= {"pen": 100, "hammer": 200, "door": 200, "relocate": 200}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """MuJoCo writes its notices, MUJOCO_LOG.TXT, into the current folder."""
    monkeypatch.chdir(tmp_path)


def test_the_table_of_tasks():
    """Addresses, SHA-256, step limits and reference returns of every task."""
    with open(GOLDEN / "d4rl_infos.csv") as table:
        rows = list(csv.DictReader(table))
    assert {row["task"] for row in rows} == d4rl.DATASETS.keys() - {"door-demo-v0"}
    for row in rows:
        file, sha256 = d4rl.DATASETS[row["task"]]
        assert (d4rl.SERVER + file, sha256) == (row["url"], row["sha256"])
        name = row["task"].split("-")[0]
        _, step_limit, *returns = d4rl.TASKS[name]
        assert returns == [float(row["ref_min"]), float(row["ref_max"])]
        assert gym.spec(row["task"]).max_episode_steps == step_limit == STEP_LIMITS[name]
    revision = "b9e1985fe28a0d67418c99473874d6a837d6cf94"
    assert d4rl.MIRROR == f"https://huggingface.co/datasets/imone/D4RL/resolve/{revision}/"


def test_scores():
    """Of returns of any shape; outside D4RL's tasks there is none."""
    returns = np.array([[-56.512833], [2880.5693087298737]])
    for task in ("door-v0", "door-human", "door-cloned-v1", "door-demo-v0"):
        assert d4rl.normalized_score(task, returns) == pytest.approx(np.array([[0], [100]]))
        assert d4rl.get_normalized_score(task, returns) == pytest.approx(np.array([[0], [1]]))
    assert d4rl.normalized_score("Pendulum-v1", returns) is returns
    with pytest.raises(KeyError):
        d4rl.get_normalized_score("Pendulum-v1", returns)


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
def test_an_episode_of_d4rls_is_the_same_here(task, episode):
    """Observations, rewards and the end, from the same start under the same actions."""
    prefix = f"{task}_{episode}_"
    arrays = np.load(GOLDEN / "d4rl_hands.npz")
    golden = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
    env = gym.make(f"{task}-v0")
    env.reset(seed=0)
    set_start(task, env.unwrapped, golden)
    observations = [env.unwrapped._get_obs()]
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


def test_gymnasium_robotics_own_environments_stay_as_they_are():
    env = gym.make("gymnasium_robotics:AdroitHandDoorSparse-v1")
    env.reset(seed=0)
    assert env.step(env.action_space.sample())[1] == -0.1


def test_another_gymnasium_robotics_is_refused(monkeypatch):
    """Later ones have D4RL's sign in their rewards, and would have it taken off twice."""
    monkeypatch.delitem(sys.modules, "d4rl.envs", raising=False)
    monkeypatch.setattr("importlib.metadata.version", lambda package: "1.4.3")
    with pytest.raises(ImportError, match="install gymnasium-robotics==1.4.2"):
        importlib.import_module("d4rl.envs")


BAD = {
    "antmaze-umaze-v0": "Of D4RL's tasks, this port has hopper, .*, relocate$",
    "door-humam": "Did you mean: `door-human`",
    "door-human-v2": r"provides versioned environments: \[ `v0`, `v1` \]",
    "a name": "Malformed environment ID",
    "CartPole-v1": r"vectors of numbers, not Discrete\(2\)",
    "Endless-v0": "step limit: register it with max_episode_steps",
    "Unbounded-v0": "finite bounds of each action, not Box",
    "Huge-v0": "finite bounds of each action, not Box",
    "Fixed-v0": "finite bounds of each action, not Box",
    "Picture-v0": "vectors of numbers, not Box",
}


class Still(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,))

    def __init__(self, bound=1.0, size=(1,)):
        self.action_space = gym.spaces.Box(-np.float32(bound), np.float32(bound), size)


@pytest.mark.parametrize("env_id, problem", BAD.items())
def test_environments_that_cannot_be_used(env_id, problem, monkeypatch):
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    gym.register("Endless-v0", Still)
    limit = {"max_episode_steps": 5}
    gym.register("Unbounded-v0", Still, **limit, kwargs={"bound": np.inf})
    gym.register("Huge-v0", Still, **limit, kwargs={"bound": np.finfo(np.float32).max})
    gym.register("Fixed-v0", Still, **limit, kwargs={"bound": 0})
    gym.register("Picture-v0", Still, **limit, kwargs={"size": (2, 2)})
    with pytest.raises(ValueError, match=f"^{env_id}: .*{problem}"):
        d4rl.make(env_id)


def python(*words, folder, path=ROOT):
    """What a Python of its own prints in a folder."""
    variables = os.environ | {"PYTHONPATH": str(path)}
    command = [sys.executable, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(
        command, cwd=folder, env=variables, text=True, check=False, **pipes
    ).stdout


def test_nothing_stray_is_printed_or_left(tmp_path):
    """By the packages, whose warnings on rewards and on -v4 are dealt with."""
    program = """
import d4rl
for task in d4rl.TASKS:
    env = d4rl.make(f"{task}-expert")
    env.reset(seed=0)
    env.step(env.action_space.sample())
print("done")
"""
    assert python("-c", program, folder=tmp_path) == "done\n"
    assert list(tmp_path.iterdir()) == []


def test_an_environment_of_ones_own_needs_no_mujoco(tmp_path):
    program = """
import sys
sys.modules |= {"mujoco": None, "gymnasium_robotics": None, "torch": None}  # refuses to import
import d4rl
print(d4rl.make("Pendulum-v1").spec.id)
"""
    assert python("-c", program, folder=tmp_path) == "Pendulum-v1\n"


def test_beside_the_original_the_scripts_take_ours(tmp_path, monkeypatch):
    """Or say which they took."""
    (tmp_path / "d4rl").mkdir()
    (tmp_path / "d4rl" / "__init__.py").write_text("raise RuntimeError('the original')")
    assert "--env-id" in python(ROOT / "uwac.py", "--help", folder=tmp_path, path=tmp_path)
    original = ModuleType("d4rl")
    original.__file__ = "site-packages/d4rl/__init__.py"
    monkeypatch.setitem(sys.modules, "d4rl", original)
    for name in ("bear", "uwac"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        with pytest.raises(ImportError, match=f"^{original.__file__} is not the d4rl that comes"):
            importlib.import_module(name)


def test_the_docstrings_six_lines(tmp_path):
    """On the data set that lies here, with the expert's return."""
    lines = [line[4:] for line in d4rl.__doc__.splitlines() if line.startswith("    ")]
    lines.insert(0, "episode_return = 2880.5693087298737")
    lines.append("print(data['observations'].shape, round(score))")
    program = "\n".join(lines).replace("door-human", "door-demo")
    assert python("-c", program, folder=tmp_path) == "(4975, 39) 100\n"


def test_another_librarys_behaviour_cloning():
    """d3rlpy's learns the actions of door-demo: the error is far below their variance."""
    d3rlpy = pytest.importorskip("d3rlpy")
    data = d4rl.qlearning_dataset(gym.make("door-demo-v0"))
    obs = data["observations"]
    follows = (data["next_observations"][:-1] == obs[1:]).all(1)
    timeouts = np.append(~follows, True)  # where an episode ends
    columns = (obs, data["actions"], data["rewards"], data["terminals"], timeouts)
    d3rlpy.seed(0)
    bc = d3rlpy.algos.BCConfig().create()
    bc.fit(d3rlpy.dataset.MDPDataset(*columns), 1000, 1000, show_progress=False)
    error = np.square(bc.predict(obs) - data["actions"]).mean()
    assert error < 0.2 * data["actions"].var(0).mean()
