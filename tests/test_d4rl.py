"""Tasks and environments are D4RL's: table, reference returns, episodes, steps and methods."""

import copy
import csv
import functools
import hashlib
import importlib
import os
import pickle
import re
import subprocess
import sys
import warnings

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from conftest import ROOT, Point, write_hdf5

import d4rl
from d4rl import old_gym

GOLDEN = ROOT / "tests" / "golden"
HANDS = ("pen", "hammer", "door", "relocate")


with open(GOLDEN / "d4rl_infos.csv") as table:
    INFOS = {row["task"]: row for row in csv.DictReader(table)}


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_the_table_of_tasks():
    """`d4rl:` is D4RL's; with another module an id is somebody's own."""
    assert INFOS.keys() == d4rl.DATASETS.keys() - {"door-demo-v0"}
    for task, row in INFOS.items():
        file, sha256 = d4rl.DATASETS[task]
        assert (d4rl.SERVER + file, sha256) == (row["url"], row["sha256"])
        assert gym.spec(task).max_episode_steps == int(row["step_limit"])
        returns = np.array([float(row["ref_min"]), float(row["ref_max"])])
        for name in (task, task.removesuffix("-v0")):
            for prefix in ("", "d4rl:"):
                assert d4rl.full_id(prefix + name) == task
                assert d4rl.normalized_score(prefix + name, returns) == pytest.approx([0, 100])
                assert d4rl.get_normalized_score(prefix + name, returns) == pytest.approx([0, 1])
            own = f"mine:{name}"
            assert d4rl.full_id(own) == own and d4rl.normalized_score(own, 7.0) == 7
            assert d4rl.task_of(prefix + name) == task.split("-")[0]
            assert d4rl.task_of(own) is None
            for function in (d4rl.download, d4rl.reference_returns):
                with pytest.raises(ValueError, match=f"^{own}: "):
                    function(own)
    assert d4rl.normalized_score("Pendulum-v1", -7.0) == -7
    assert d4rl.full_id("d4rl:Pendulum-v1") == "d4rl:Pendulum-v1"
    for task in d4rl.TASKS:
        assert d4rl.full_id(f"d4rl:{task}") == f"{task}-v0"
        assert d4rl.task_of(task) == task
    for env_id in ("metaworld:hammer-v2", "dmc:hopper-stand-v0", "Hopper-v5", "hopper-v3", "ant"):
        assert d4rl.task_of(env_id) is None


@pytest.mark.filterwarnings("ignore:.*(out of date|latest versioned)")
def test_ids_that_are_not_here():
    tasks = ".* hopper, halfcheetah, walker2d, pen, hammer, door, relocate$"
    elsewhere = (d4rl.HERE / "elsewhere.txt").read_text().split()
    families = {"ant", "antmaze", "bullet", "carla", "flow", "kitchen", "maze2d", "minigrid"}
    assert {env_id.split("-")[0] for env_id in elsewhere} == families | {"kitchen_relax"}
    for env_id in (*elsewhere, "ant-random", "maze2d-umaze"):
        score = functools.partial(d4rl.get_normalized_score, score=1.0)
        video = functools.partial(gym.make, render_mode="rgb_array")
        for function in (gym.make, video, d4rl.make, d4rl.download, score):
            with pytest.raises(ValueError, match=f"^{env_id}.*: {tasks}"):
                function(env_id)
    for kind in ("hopper-full-replay", "halfcheetah-full-replay", "walker2d-full-replay"):
        for function in (d4rl.make, d4rl.download, d4rl.full_id):
            with pytest.raises(ValueError, match=f"^{kind}: .*choose {kind}-v1 or {kind}-v2$"):
                function(kind)


@pytest.mark.parametrize("env_id", ["hopper-v0", "door-human-v1"])
def test_a_module_of_ones_own_registers_an_id_of_d4rls(env_id, tmp_path, monkeypatch):
    """Its environment plays, and takes nothing from D4RL; who is not sure which one plays errs."""
    register = f"gymnasium.register({env_id!r}, conftest.Point, max_episode_steps=7)"
    (tmp_path / "mine.py").write_text(f"import conftest, gymnasium\n{register}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "mine", None)  # so that it is removed
    del sys.modules["mine"]
    d4rls = gym.registry[env_id]
    monkeypatch.setitem(gym.registry, env_id, d4rls)
    with pytest.warns(UserWarning, match="Overriding environment"):
        env = d4rl.make(f"mine:{env_id}")
    assert isinstance(env.unwrapped, Point) and d4rl.step_limit_of(env) == 7
    arrays = {"observations": np.zeros((2, 3)), "actions": np.zeros((2, 2))}
    arrays |= {"rewards": np.zeros(2), "terminals": np.zeros(2)}
    assert len(d4rl.qlearning_dataset(env, arrays)["rewards"]) == 1
    arrays["actions"] += 9
    one_of_its_own = "conftest:" + env_id
    for data, problem in ((None, f"^{one_of_its_own}: no data"), (arrays, "2 actions are out")):
        with pytest.raises(ValueError, match=problem):
            d4rl.qlearning_dataset(env, data)
    with pytest.raises(ValueError, match=f"^d4rl:{env_id}: {env_id} is .*Point.* here; give yours"):
        d4rl.make(f"d4rl:{env_id}")
    gym.registry[env_id] = d4rls  # as where `mine` was imported before d4rl
    with pytest.raises(ValueError, match=f"^mine:{env_id}: {env_id} is d4rl.envs:.* here; give"):
        d4rl.make(f"mine:{env_id}")
    assert d4rl.make(f"d4rl:{env_id}").spec.id == env_id


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize("env_id", [f"{task}-expert-v0" for task in d4rl.TASKS])
def test_the_environments_methods(env_id, tmp_path, monkeypatch):
    if env_id.split("-")[0] in HANDS:
        env_id = env_id.replace("expert", "human-longhorizon")
    row = INFOS[env_id]
    low, high = float(row["ref_min"]), float(row["ref_max"])
    expected = {"observations": np.ones((2, 3)), "terminals": np.zeros(2, bool)}
    path = write_hdf5(tmp_path / "a.hdf5", expected | {"infos/qpos": np.zeros(2)})
    asked = []
    monkeypatch.setattr(d4rl, "download", lambda env_id: asked.append(env_id) or path)
    env = gym.make(env_id)
    limit = int(row["step_limit"])
    again = gym.make(env.spec, max_episode_steps=7)
    for one, one_limit in ((env, limit), (env.unwrapped, limit), (again, 7)):
        assert one._max_episode_steps == one_limit
        assert (one.ref_min_score, one.ref_max_score) == (low, high)
        assert one.get_normalized_score(np.array([low, high])) == pytest.approx([0, 1])
        np.testing.assert_equal(dict(one.get_dataset(path)), expected)
        assert asked == []
        np.testing.assert_equal(dict(one.get_dataset()), expected)
        assert asked.pop() == env_id
    bare = env.unwrapped
    bare.spec = None  # as without gym.make
    uses = [d4rl.qlearning_dataset, type(bare).get_dataset, type(bare)._max_episode_steps.fget]
    uses += [type(bare).ref_min_score.fget, type(bare).ref_max_score.fget]
    for use in (*uses, functools.partial(type(bare).get_normalized_score, score=1.0)):
        with pytest.raises(ValueError, match=": has no id; register it, and make it with gym.make"):
            use(bare)


@pytest.mark.parametrize("task", HANDS)
def test_d4rls_reference_script_gives_d4rls_numbers(task):
    """The return that D4RL scores with 0 is the mean of 100 episodes of random actions, in its
    scripts/reference_scores/generate_ref_min_score.py: here to all six decimals."""
    env = old_gym.make(f"{task}-v0")
    seed = np.frombuffer(hashlib.sha512(b"0").digest()[:8], "<u4")  # as gym up to 0.21 had it of 0
    env.unwrapped.env._np_random = np.random.RandomState(seed)
    generator = np.random.RandomState(seed)
    total = 0.0
    for _ in range(100):
        env.reset()
        done = False
        while not done:
            action = generator.uniform(-1, 1, env.action_space.shape).astype(np.float32)
            _, reward, done, _ = env.step(action)
            total += reward
    assert total / 100 == pytest.approx(d4rl.TASKS[task][2], rel=0, abs=2e-6)


@pytest.mark.parametrize("episode", [0, 1], ids=["random", "expert"])
@pytest.mark.parametrize("task", HANDS)
def test_an_episode_of_d4rls_is_the_same_here(task, episode):
    prefix = f"{task}_{episode}_"
    arrays = np.load(GOLDEN / "d4rl_hands.npz")
    golden = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
    env = gym.make(f"{task}-v0")
    hand = env.unwrapped
    env.reset(seed=0)
    mujoco.mj_resetData(hand.model, hand.data)
    hand.set_env_state({name: golden[name] for name in hand._state_space})
    start = hand._get_obs()
    steps = [env.step(action) for action in golden["action"]]
    obs, rewards, terminated, truncated, _ = zip(*steps, strict=True)
    expected = golden["obs_every_10"]
    every_10 = [start, *obs][::10][: len(expected)]
    np.testing.assert_allclose(every_10, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(rewards, golden["reward"], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(np.logical_or(terminated, truncated), golden["done"])


@pytest.mark.parametrize("task", HANDS)
def test_the_sparse_reward_of_gymnasium_robotics_stays_as_it_is(task):
    """D4RL has none."""
    theirs = f"gymnasium_robotics:AdroitHand{task.capitalize()}-v1"
    rewards = []
    for env_id in (f"{task}-v0", theirs):
        env = gym.make(env_id, reward_type="sparse")
        env.reset(seed=0)
        rewards.append(env.step(env.action_space.low)[1])
    assert rewards[0] == rewards[1]


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


@pytest.mark.parametrize("task", ["hopper", "walker2d", "halfcheetah"])
def test_a_walkers_actions_are_clipped_and_it_can_be_copied(task):
    steps = []
    env = d4rl.make(task, reset_noise_scale=0.2)
    start, _ = env.reset(seed=0)
    assert (start != gym.make(f"{task}-v0").reset(seed=0)[0]).any()
    for one in (env, env.unwrapped, copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        for action in (1, 3):
            one.reset(seed=0)
            with warnings.catch_warnings(action="ignore"):  # of the action
                steps.append(one.step(np.full(one.action_space.shape, action, np.float32)))
    for step in steps[1:]:
        np.testing.assert_equal(step, steps[0])


def test_mujoco_with_another_version_or_without_its_renderer(monkeypatch):
    monkeypatch.delitem(sys.modules, "d4rl.envs", raising=False)
    versions = {"gymnasium-robotics": "1.4.2", "mujoco": "3.2.6"}
    for package, wanted in versions.items():
        monkeypatch.setattr("importlib.metadata.version", (versions | {package: "9.9.9"}).get)
        with pytest.raises(ImportError, match=f"install {package}=={wanted}"):
            importlib.import_module("d4rl.envs")
    monkeypatch.setitem(sys.modules, "mujoco", None)
    monkeypatch.setenv("MUJOCO_GL", "none")
    with pytest.raises(ImportError, match="^MuJoCo cannot be imported with MUJOCO_GL=none: "):
        d4rl.make("door")


def test_environments_that_cannot_be_used(monkeypatch):
    bad = {
        "door-humann-v0": "Did you mean: `door-human`",
        "a name": "Malformed environment ID",
        "CartPole-v1": r"must have vectors of numbers, not Discrete\(2\)",
    }
    for env_id, problem in bad.items():
        with pytest.raises(ValueError, match=f"^{env_id}: .*{problem}"):
            d4rl.make(env_id)
    with pytest.raises(ValueError, match="^Point-v0: needs a step limit: register it with max"):
        d4rl.make("Point-v0", max_episode_steps=-1)
    for high in ([9, 0], [9, np.inf], [9, d4rl.FLOAT32_MAX / 2], [[9, 9], [9, 9]]):
        space = gym.spaces.Box(-np.float32(high), np.float32(high))
        monkeypatch.setattr(Point, "action_space", space)
        with pytest.raises(ValueError, match="^Point-v0: (needs finite bounds|must have vectors)"):
            d4rl.make("Point-v0")


RESETS = {  # the environment's, and what is said
    "without seed": (lambda self: None, r"reset\(seed=0\) fails: TypeError"),
    "of gym 0.21": (lambda self, seed, options=None: np.zeros(3), r"reset\(seed=0\) fails: Val"),
    "another shape": (lambda self, seed, options=None: (np.zeros(4), {}), r"reset gives \(4,\)"),
}


@pytest.mark.filterwarnings("ignore:.*WARN")  # Gymnasium says it, too
@pytest.mark.parametrize("kind", RESETS)
def test_a_reset_that_would_fail_after_hours(kind, monkeypatch):
    reset, problem = RESETS[kind]
    monkeypatch.setattr(Point, "reset", reset)
    with pytest.raises(ValueError, match=f"^Point-v0: {problem}"):
        d4rl.make("Point-v0")


def test_an_environment_that_draws_other_numbers_than_its_own(monkeypatch):
    """No evaluation of it can be repeated."""
    draw = lambda self, seed, options=None: (np.random.normal(size=3).astype(np.float32), {})
    monkeypatch.setattr(Point, "reset", draw)
    with pytest.warns(UserWarning, match=r"^Point-v0: reset\(seed=0\) gives two observations"):
        d4rl.make("Point-v0")


@pytest.mark.filterwarnings("ignore:.*WARN")
def test_an_observation_that_is_not_finite(monkeypatch):
    nan = np.full(3, np.nan)
    for method, gives in (("step", (nan, 0, False, True, {})), ("reset", (nan, {}))):
        env = d4rl.make("Point-v0")
        monkeypatch.setattr(Point, method, lambda self, *_, gives=gives, **__: gives)
        with pytest.raises(FloatingPointError, match="Point.*: an observation is not finite"):
            d4rl.play(lambda obs: np.zeros((1, 2)), [env], seed=0)


class HalfActions(old_gym.ActionWrapper):
    def action(self, action):
        return action / 2


def test_old_gym_has_the_calls_of_an_offline_program():
    """As CORL's programs make them, through wrappers, which pass on no methods of Python's own."""
    plain = gym.make("door-demo-v0", max_episode_steps=30)
    env = HalfActions(old_gym.Wrapper(old_gym.make("door-demo-v0", max_episode_steps=30)))
    env = old_gym.wrappers.TransformObservation(env, np.negative)
    env = old_gym.wrappers.TransformReward(env, np.square)
    assert env.door_body_id == plain.unwrapped.door_body_id
    assert isinstance(env, old_gym.Env) and not hasattr(env, "no_such_thing")
    np.testing.assert_equal(d4rl.qlearning_dataset(env), d4rl.qlearning_dataset(plain))
    np.testing.assert_equal(env.get_dataset(), plain.get_dataset())
    assert env.get_normalized_score(7.0) == plain.get_normalized_score(7.0)
    for one in (copy.deepcopy(env), pickle.loads(pickle.dumps(env)), env):
        assert one.seed(3) == [3]
        one.action_space.seed(3)
        plain.action_space.seed(3)
        for seed in (3, None):  # the second episode goes on with the generator that the seed began
            state, done = one.reset(), False
            obs, _ = plain.reset(seed=seed)
            np.testing.assert_array_equal(state, -obs)
            while not done:
                state, reward, done, info = one.step(one.action_space.sample())
                obs, expected, _, truncated, _ = plain.step(plain.action_space.sample() / 2)
                np.testing.assert_array_equal(state, -obs)
                assert (reward, done) == (np.square(expected), truncated)
            assert info["TimeLimit.truncated"] is True
        np.testing.assert_array_equal(one.reset(seed=3), -plain.reset(seed=3)[0])
    for one in (env, env.env.env.env.env):
        one.env.__array__ = None
        assert not hasattr(one, "__array__")
        assert not hasattr(type(one).__new__(type(one)), "a name")  # while a copy is made
    assert old_gym.__version__.split(".") < ["0", "22"]  # 0.22 to 0.26 changed reset and step


def test_old_gym_seeds_what_is_unwrapped_too():
    env = old_gym.make("door-v0")
    env.unwrapped.seed(3)
    first = env.reset()
    env.seed(3)
    np.testing.assert_array_equal(env.reset(), first)
    assert (env.reset() != first).any()


def test_old_gym_says_how_an_episode_ended():
    steps = 1000
    for expected in (None, False):  # it falls before the limit, and in the very step of the limit
        env = old_gym.make("hopper-medium-v2", max_episode_steps=steps)
        env.reset(seed=0)
        steps, done = 0, False
        while not done:
            *_, done, info = env.step(env.action_space.high)
            steps += 1
        assert info.get("TimeLimit.truncated") is expected
    bare = old_gym.make("door-demo-v0").unwrapped
    bare.reset(seed=0)
    for _ in range(201):
        _, _, done, _ = bare.step(bare.action_space.low)
    assert not done and bare._max_episode_steps == 200


def test_d4rl_in_a_python_of_its_own(tmp_path):
    """An environment of one's own needs no MuJoCo; no package warns of rewards or of -v4."""
    page = (d4rl.HERE / "README.md").read_text()
    usage, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = f"""
import sys
heavy = {{"mujoco": None, "gymnasium_robotics": None, "torch": None}}  # refuse to be imported
sys.modules |= heavy
import d4rl
d4rl.make("Pendulum-v1")
for name in heavy:
    del sys.modules[name]
{usage}
for task in d4rl.TASKS:
    env = d4rl.make(f"{{task}}-expert")
    env.reset(seed=0)
    env.step(env.action_space.sample())
import warnings
with warnings.catch_warnings(record=True) as told:
    gym.make("Hopper-v4")
assert len(told) == 1  # Gymnasium's, which is not D4RL's to hide
"""
    settings = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "text": True}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, check=True, **settings)
    transitions, score = done.stdout.split()
    assert int(transitions) == 4975 and abs(float(score)) < 3 and done.stderr == ""
    assert list(tmp_path.iterdir()) == []
