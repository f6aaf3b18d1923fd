"""What d4rl.qlearning_dataset makes of files and arrays, what it refuses, and actions' units; and
d4rl.download, where a local server plays D4RL's and the mirror, with their faults."""

import collections
import csv
import fcntl
import hashlib
import http.server
import pwd
import re
import resource
import threading
import time
import types
import warnings

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from conftest import ROOT, Point, write_hdf5
from hypothesis import given, settings
from hypothesis import strategies as st

import d4rl

pytestmark = pytest.mark.filterwarnings("error")  # none is given but where a test awaits it


def steps(n, terminals=(), timeouts=None):
    """n steps of D4RL's arrays in which every number tells its row."""
    rows = np.arange(n, dtype=np.float32)
    data = {
        "observations": rows[:, None] + [0, 0.25, 0.5],
        "actions": np.stack([rows, -rows], 1) / 1000,
        "rewards": -rows,
        "terminals": np.isin(rows, terminals),
    }
    if timeouts is not None:
        data["timeouts"] = np.isin(rows, timeouts)
    return data


def transitions(data, step_limit=5):
    return d4rl.qlearning_dataset(gym.make("Point-v0", max_episode_steps=step_limit), data)


def as_d4rls(path, monkeypatch, env_id="Point-v0"):
    """From now on this content is that of a file of D4RL's own."""
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(d4rl.DATASETS, env_id, ("another name.hdf5", sha256))
    return path


def of_the_original(data, step_limit):
    """Transitions of D4RL's own qlearning_dataset, restated: row, next row, terminal."""
    kept = []
    episode_step = 0
    for i in range(len(data["rewards"]) - 1):
        final = episode_step == step_limit - 1
        if "timeouts" in data:
            final = data["timeouts"][i]
        if final or data["terminals"][i]:
            episode_step = 0
        if not final:
            kept.append((i, i + 1, data["terminals"][i]))
            episode_step += 1
    return kept


def of_ones_own(data, step_limit, terminate_on_end):
    """The same of one's own data. The next row of None is of no account."""
    kept = []
    episode_step = 0
    for i in range(len(data["rewards"])):
        episode_step += 1
        final = data["timeouts"][i] if "timeouts" in data else episode_step == step_limit
        if final or data["terminals"][i]:
            episode_step = 0
        terminal = data["terminals"][i] or (terminate_on_end and final)
        if "next_observations" in data:
            kept.append((i, i + 7, terminal))
        elif terminal:
            kept.append((i, None, True))
        elif not final and i + 1 < len(data["rewards"]):
            kept.append((i, i + 1, False))
    return kept


@st.composite
def files(draw):
    """Steps of any episodes, in which every number tells its row; next_observations, that of 7 rows
    on; and the form in which arrays are given."""
    n = draw(st.integers(1, 25))
    flags = st.lists(st.booleans(), min_size=n, max_size=n).map(np.flatnonzero)
    data = steps(n, draw(flags), draw(st.none() | flags))
    if draw(st.booleans()):
        data["next_observations"] = data["observations"] + 7
    column = lambda array: array[:, None].astype(np.float16) if array.ndim == 1 else array
    forms = [np.asarray, np.ndarray.tolist, np.asfortranarray, column]
    form = draw(st.sampled_from(forms))
    return data, {name: form(array) for name, array in data.items()}


def check(ours, data, kept):
    names = ["observations", "actions", "rewards", "next_observations", "terminals"]
    assert list(ours) == names and all(ours[name].dtype == np.float32 for name in names)
    for name in names[:3]:
        expected = data[name][[i for i, *_ in kept]].astype(np.float32)
        np.testing.assert_array_equal(ours[name], expected, strict=True)
    for next_obs, (_, following, _) in zip(ours["next_observations"], kept, strict=True):
        assert following is None or (next_obs == following + np.array([0, 0.25, 0.5])).all()
    np.testing.assert_array_equal(ours["terminals"], [terminal for *_, terminal in kept])


@settings(derandomize=True, deadline=None, max_examples=300)
@given(files(), st.integers(1, 8), st.booleans())
def test_one_s_own_data_become_transitions_of_one_episode_each(file, step_limit, terminate_on_end):
    data, arrays = file
    env = gym.make("Point-v0", max_episode_steps=step_limit)
    kept = of_ones_own(data, step_limit, terminate_on_end)
    if not kept or (terminate_on_end and "next_observations" in data and "timeouts" not in data):
        with pytest.raises(ValueError, match="^dataset: (no transition|terminate_on_end needs)"):
            d4rl.qlearning_dataset(env, arrays, terminate_on_end)
    else:
        with warnings.catch_warnings(action="ignore"):  # some look wrong
            check(d4rl.qlearning_dataset(env, arrays, terminate_on_end), data, kept)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(files(), st.integers(1, 8))
def test_a_file_of_d4rls_gives_what_the_original_makes_of_it(tmp_path_factory, file, step_limit):
    """Also where the file's arrays are given, which remember it, as their copies do."""
    data, arrays = file
    path = write_hdf5(tmp_path_factory.mktemp("own") / "a.hdf5", arrays)
    kept = of_the_original(data, step_limit)
    with pytest.MonkeyPatch.context() as monkeypatch:
        as_d4rls(path, monkeypatch)
        read = d4rl.read(path)
        for one in (path, read, dict(read), {name: array.copy() for name, array in read.items()}):
            assert d4rl.describe(one)["d4rl"] is True
            if kept:
                check(transitions(one, step_limit), data, kept)
                continue
            with pytest.raises(ValueError, match=": no transition among"):
                transitions(one, step_limit)


@pytest.mark.parametrize("change", [*d4rl.ARRAYS, "all", "replaced", "removed"])
def test_changed_arrays_are_no_longer_d4rls(change, tmp_path, monkeypatch):
    """What is said of a file holds for its unchanged arrays alone."""
    data = steps(20, terminals=[4, 11], timeouts=[3, 15])
    data["next_observations"] = data["observations"] + 7
    arrays = d4rl.read(as_d4rls(write_hdf5(tmp_path / "a.hdf5", data), monkeypatch))
    for name in [change] if change in arrays else arrays if change == "all" else []:
        arrays[name][[3, 4]] = arrays[name][[4, 3]]
    if change == "replaced":
        arrays["next_observations"] = data["observations"] + 8
    if change == "removed":
        del arrays["timeouts"]
    assert len(transitions(arrays)["rewards"]) == 20
    assert d4rl.describe(arrays)["d4rl"] is False
    arrays["rewards"][5] = np.nan
    with pytest.raises(ValueError, match="^dataset: rewards has 1 NaN"):
        transitions(arrays)


@pytest.fixture
def wide(monkeypatch):
    """Bounds that are not 1."""
    space = gym.spaces.Box(np.float32([-2, -1]), np.float32([2, 3]))
    monkeypatch.setattr(Point, "action_space", space)


def test_transitions_stay_as_they_are_however_they_are_given_again(wide, tmp_path):
    """Also those of `make`'s environment, whose `unit` scales their actions once."""
    env = d4rl.make("Point-v0")
    data = steps(9, terminals=[4])
    own = d4rl.qlearning_dataset(gym.make("Point-v0"), data)
    np.testing.assert_array_equal(own["actions"], data["actions"][:8].astype(np.float32))
    np.savez(tmp_path / "a.npz", **own)
    copies = [own, dict(own), own | {}, np.load(tmp_path / "a.npz")]
    for copied in copies:
        np.testing.assert_equal(d4rl.qlearning_dataset(env, copied), own)
    part = {name: array[:3] for name, array in own.items()}
    np.testing.assert_equal(d4rl.qlearning_dataset(env, part), part)
    np.testing.assert_allclose(env.unit(own["actions"])[3], [0.0015, -0.5015])


@pytest.mark.parametrize("timeouts, last", [([7, 12], [2, 7, 12]), (None, [2, 7, 12])])
def test_terminate_on_end_in_a_file_of_d4rls(timeouts, last, tmp_path, monkeypatch):
    """On time, unlike where the last steps are dropped. D4RL's own use no next observations."""
    data = steps(14, [2], timeouts)
    more = {"next_observations": data["observations"] + 7}
    path = as_d4rls(write_hdf5(tmp_path / "a.hdf5", data | more), monkeypatch)
    ours = d4rl.qlearning_dataset(gym.make("Point-v0"), path, terminate_on_end=True)
    check(ours, data, [(i, i + 1, i in last) for i in range(13)])


def told(data, env_id="Point-v0"):
    """The texts of all warnings."""
    with warnings.catch_warnings(action="ignore"):  # of an environment that is out of date
        env = gym.make(env_id)
    with warnings.catch_warnings(record=True, action="always") as found:
        d4rl.qlearning_dataset(env, data)
    return [str(one.message) for one in found]


HEALTHY = steps(20, terminals=[4, 11], timeouts=[9, 16])
ROWS = np.arange(20)
EPISODE = np.searchsorted([4, 9, 11, 16], ROWS)
FOLLOWING = np.roll(HEALTHY["observations"], -1, axis=0)
ZEROS = {name: np.where(ROWS < 18, HEALTHY[name].T, 0).T for name in HEALTHY}
ENDS = np.isin(ROWS, [4, 9, 11, 16])
BY_LIMIT = steps(20, [4, 9, 14, 19], None)  # as gym's TimeLimit.truncated, which is no more, says
END = np.isin(ROWS, [4, 9, 14, 19])[:, None] * 0.5  # next observations there are not the next row's
DOUBTS = [
    (steps(9, timeouts=[6]), "7 steps without an end, more than the environment has"),
    (steps(6, timeouts=[]), "6 steps without an end, .*"),
    (HEALTHY | {"timeouts": 0 * ENDS, "next_observations": FOLLOWING}, "8 steps without .*"),
    (HEALTHY | {"next_observations": FOLLOWING}, "2 next_observations at timeouts are the next .*"),
    (ZEROS, "2 rows are zeros, as if never written"),
    (
        HEALTHY | {"observations": EPISODE[:, None] + np.zeros(3)},
        "15 observations equal the next .*",
    ),
    (HEALTHY | {"terminals": ENDS}, "each timeout is a terminal, too; terminals must be 0 .*"),
    (steps(20, [4, 9, 14, 19], None), "each timeout is a terminal, too; .*"),  # by the step limit
    (BY_LIMIT | {"timeouts": 0 * ROWS}, "each timeout is a terminal, too; .*"),
    (BY_LIMIT | {"next_observations": FOLLOWING + END}, "each timeout is a terminal, too; .*"),
    (
        steps(20, np.flatnonzero(~ENDS)),
        "16 of 20 steps are terminal; only an episode's last one .*",
    ),
    (steps(20, timeouts=[0, 5, 10, 15]), "time ends episodes of one step; timeouts mark .*"),
    (steps(9, timeouts=[3, 4, 7, 8]), "time ends episodes of one step; timeouts mark .*"),  # of 2
    (HEALTHY | {"rewards": ~np.roll(ENDS, 1)}, "the reward after each end is 0; leave out .*"),
    (HEALTHY | {"actions": HEALTHY["actions"] * ~ENDS[:, None]}, "the action of each end is 0; .*"),
    (HEALTHY | {"is_first": np.roll(ENDS, 1)}, "is_first is not read; terminals and timeouts .*"),
    (HEALTHY | {"dones": (ROWS[:, None] == 2) * 1.0}, "dones is not read; terminals and time.*"),
    (HEALTHY | {"next_obs": HEALTHY["observations"]}, "next_obs is not read; name it next_obs.*"),
]


@pytest.mark.parametrize("data, doubt", DOUBTS)
def test_what_looks_right_and_may_not_be_is_said_in_one_line(data, doubt, tmp_path, monkeypatch):
    """But of a file of D4RL's own, which is as it is."""
    monkeypatch.setattr(d4rl, "READ", {})
    path = write_hdf5(tmp_path / "a.hdf5", data)
    for one, where in ((data, "dataset"), (path, path)):
        (line,) = told(one)
        assert re.fullmatch(f"{where}: {doubt}", line)
    assert told(as_d4rls(path, monkeypatch)) == []


NO_DOUBTS = [
    HEALTHY,
    steps(5, timeouts=[]),  # as long as an episode
    steps(12, [4], None),  # by the step limit
    steps(8, [4], None),  # a terminal in the last possible step
    HEALTHY | {"next_observations": HEALTHY["observations"] + 7},
    HEALTHY | {"dones": ENDS, "masks": ~ENDS, "valid": np.ones(20), "ids": ROWS, "scale": 1},
    HEALTHY
    | {"words": ["a"] * 20, "ragged": [[0], [0, 1]], "none": None, "images": np.ones((20, 9))},
    HEALTHY | {"rewards": ROWS % 5 == 3},  # mostly 0
    HEALTHY | {"actions": np.zeros((20, 2))},
    steps(9, terminals=[8], timeouts=[3, 8]),  # in one step
]


@pytest.mark.parametrize("data", NO_DOUBTS)
def test_what_is_right_gives_no_warning(data):
    assert told(data) == []


@pytest.mark.parametrize("largest, doubts", [(1, 1), (1.01, 0), (0.9, 0)])
def test_actions_that_are_scaled_already(wide, largest, doubts):
    """To [-1, 1], as other libraries' data are: warned of where the bounds are wider."""
    actions = np.outer(np.linspace(-0.5, largest, 20), [1, 1])
    assert len(told(HEALTHY | {"actions": actions})) == doubts


def test_a_demonstration_of_d4rls_tasks_may_be_longer_than_an_episode():
    for n, doubts in ((600, 0), (601, 1)):
        data = steps(n, timeouts=[n - 1])
        data["observations"] = np.tile(data["rewards"], (46, 1)).T
        data["actions"] = np.zeros((n, 26))
        assert len(told(data, "hammer-human-v0")) == doubts


OTHER_NAMES = ["episode_terminals", "timeout", "truncated", "truncations", "dones", "is_last"]


@pytest.mark.parametrize("name", [*OTHER_NAMES, "terminations"])
def test_ends_under_another_librarys_name(name, tmp_path):
    data = steps(12, [4]) | {name: np.isin(np.arange(12), [2, 4, 7])}
    path = write_hdf5(tmp_path / "a.hdf5", data)
    for one, where in ((data, "dataset"), (path, path)):
        with pytest.raises(
            ValueError, match=f"^{where}: {name}: D4RL's names are terminals .*time"
        ):
            transitions(one)


NAN = [0, 0, 0, 0, np.nan, 0, 0, 0, np.nan]
BAD = [
    ("observations", np.zeros((3, 9)), r"observations .* \(9, 3\), not float64 of shape \(3, 9\)"),
    ("rewards", 1.0, r"observations .* \(1, 3\), not float64 of shape \(9, 3\) beside 1 rewards"),
    ("rewards", np.zeros(9, complex), "rewards must be numbers of .* not complex128"),
    ("timeouts", np.zeros(8), r"timeouts must be .* \(9,\), not float64 of shape \(8,\)"),
    ("next_observations", np.zeros((9, 2)), r"next_observations .* \(9, 3\), not .* \(9, 2\)"),
    ("rewards", NAN, "rewards has 2 NaN or infinite numbers, the first in row 4"),
    ("terminals", [0, 0, -np.inf] + [0] * 6, "terminals has 1 NaN .* row 2"),
    ("observations", np.full((9, 3), d4rl.FLOAT32_MAX), "observations has 27 NaN .* row 0"),
    ("actions", [[0, 0]] * 7 + [[0, 2.1], [-3, 0]], r"2 actions are out of Box\(.* row 7"),
    ("timeouts", np.ones(9), "no transition among 9 steps"),
    ("rewards", np.ma.masked_equal(np.arange(9.0), 3), "rewards have masked numbers: fill them"),
    ("rewards", [[1, 2], [3]], r"must be arrays \(.*"),
    ("rewards", {"a group": np.zeros(9)}, "observations must be numbers of .* beside 1 rewards"),
]


@pytest.mark.parametrize("name, array, problem", BAD)
def test_bad_arrays(name, array, problem):
    with pytest.raises(ValueError, match=f"^dataset: {problem}"):
        transitions(steps(9) | {name: array})


def test_missing_and_empty_arrays(tmp_path):
    """Of a file those that are there are named."""
    path = write_hdf5(tmp_path / "a.hdf5", {"obs": np.zeros(9), "infos/qpos": np.zeros(9)})
    with pytest.raises(
        ValueError, match=f"^{path}: cannot be read .*none of .*actions.* among infos, obs"
    ):
        transitions(path)
    path = write_hdf5(tmp_path / "b.hdf5", {"rewards": np.zeros(9), "obs": np.zeros((9, 3))})
    with pytest.raises(ValueError, match=f"^{path}: .*, terminals missing among obs, rewards$"):
        transitions(path)
    with pytest.raises(ValueError, match="^dataset: actions, terminals missing"):
        transitions({"observations": np.zeros((9, 3)), "rewards": np.zeros(9)})
    with pytest.raises(ValueError, match="^dataset: actions, observations, rewards, terminals "):
        transitions({})
    with pytest.raises(ValueError, match="^dataset: no transition among 0 steps"):
        transitions(steps(0))


MAPPINGS = {
    "UserDict": lambda data, path: collections.UserDict(data),
    "proxy": lambda data, path: types.MappingProxyType(data),
    "np.load": lambda data, path: np.savez(path, **data) or np.load(path),
    "tensors": lambda data, path: {name: torch.as_tensor(array) for name, array in data.items()},
    "h5py.File": lambda data, path: h5py.File(write_hdf5(path, data)),
}


@pytest.mark.parametrize("kind", MAPPINGS)
def test_arrays_in_any_mapping(kind, tmp_path):
    data = steps(14, terminals=[4], timeouts=[9])
    given = MAPPINGS[kind](data, tmp_path / "a.npz")
    np.testing.assert_equal(transitions(given), transitions(data))
    assert d4rl.describe(given) == d4rl.describe(data)
    if kind == "h5py.File":
        given.close()
        with pytest.raises(ValueError, match="^dataset: .* missing$"):
            transitions(given)


@pytest.mark.parametrize("given", [7, b"a.hdf5", [steps(9)], np.zeros(9)], ids=str)
def test_what_is_neither_a_path_nor_arrays(given):
    with pytest.raises(ValueError, match="^dataset: must be a path or a dict of arrays "):
        transitions(given)


def test_d4rls_demonstrations_may_be_out_of_bounds():
    actions = np.tile([1.5, -1.5, 0.5], (9, 1))
    data = steps(9) | {"observations": np.eye(9, 11), "actions": actions}
    ours = d4rl.qlearning_dataset(gym.make("hopper-v0"), data)
    assert (ours["actions"] == actions[:8]).all()
    with pytest.warns(UserWarning, match="^9 actions are out of bounds and were clipped"):
        assert (d4rl.make("hopper").unit(actions) == [1, -1, 0.5]).all()


def test_columns_of_a_file_are_flat(tmp_path):
    """As the original has them, for whoever reads them beside `qlearning_dataset`."""
    data = steps(9, [4], [8])
    columns = {name: array.reshape(9, -1) for name, array in data.items()}
    arrays = d4rl.read(write_hdf5(tmp_path / "a.hdf5", columns))
    for name, array in data.items():
        np.testing.assert_array_equal(arrays[name], array, strict=name != "rewards")


@pytest.mark.parametrize("kind", ["virtual", "external", "link"])
def test_a_file_whose_arrays_lie_in_another(kind, tmp_path):
    """It stays as it is when they change."""
    other = write_hdf5(tmp_path / "b.hdf5", steps(9))
    path = write_hdf5(tmp_path / "a.hdf5", steps(9))
    with h5py.File(path, "a") as file:
        rewards = file.pop("rewards")
        if kind == "virtual":
            layout = h5py.VirtualLayout(rewards.shape, rewards.dtype)
            layout[:] = h5py.VirtualSource(other, "rewards", rewards.shape)
            file.create_virtual_dataset("rewards", layout)
        if kind == "external":
            (tmp_path / "c").write_bytes(bytes(36))
            file.create_dataset("rewards", (9,), "f4", external=[(tmp_path / "c", 0, 36)])
        if kind == "link":
            file["rewards"] = h5py.ExternalLink(other, "rewards")
    with pytest.raises(ValueError, match=f"^{path}: .*its arrays lie in other files"):
        transitions(path)


def test_files(tmp_path, monkeypatch):
    """~ is the home folder. Other arrays are not read, here 114 GiB that were never written."""
    monkeypatch.setenv("HOME", str(tmp_path))
    data = steps(14, terminals=[4], timeouts=[9])
    path = write_hdf5(tmp_path / "a.hdf5", data | {"metadata/algorithm": "SAC"})
    with h5py.File(path, "a") as file:
        file.create_dataset("images", (10**7, 64, 64, 3), "uint8", chunks=(1, 64, 64, 3))
    assert d4rl.read(path).keys() == data.keys()
    np.testing.assert_equal(transitions("~/a.hdf5"), transitions(data))
    assert d4rl.describe(data | {"images": np.zeros((9, 64))}) == d4rl.describe(data)
    whole = path.read_bytes()
    sha256 = hashlib.sha256(whole).hexdigest()
    assert d4rl.describe("~/a.hdf5") == {"path": str(path), "sha256": sha256, "d4rl": False}
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match=f"^{path}: cannot be locked; .*HDF5_USE_FILE"):
            transitions(path)
    for content in (b"", b"<!DOCTYPE html>" + bytes(2000), whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"^{path}: cannot be read as HDF5 "):
            transitions(path)
    for missing in ("~/b.hdf5", "~no-such-user/b.hdf5", ""):
        with pytest.raises(ValueError, match=": no such file$"):
            transitions(missing)


@pytest.mark.parametrize("group", ["episode_0/observations", *(f"{n}/a" for n in d4rl.ARRAYS)])
def test_minaris_groups_are_no_arrays(group, tmp_path):
    name, _ = group.split("/")
    data = {other: array for other, array in steps(9).items() if other != name}
    path = write_hdf5(tmp_path / "a.hdf5", data | {group: np.zeros(9)})
    with pytest.raises(ValueError, match=f"^{path}: .*{name} is a group, .*Minari.* --minari"):
        transitions(path)


MADE_IN = [  # environment in a file's metadata, that of its use, whether the two differ
    ("AdroitHandDoor-v1", "door-human-v1", True),  # other rewards
    ("door", "door-expert-v1", False),
    ("Hopper-v4", "hopper-medium-v2", True),  # another mass
    ("Hopper-v4", "Hopper-v4", False),
    ("mine:Point-v0", "Point-v0", False),
    ([7, 8], "Point-v0", False),  # no words
    (None, "Point-v0", False),
    (np.bytes_("Pointed-v0"), "Point-v0", True),
    ("halfcheetah", "walker2d-medium-v2", True),
    ("Walker2d-v4", "halfcheetah-v0", True),
    ("AdroitHandDoorSparse-v1", "door-v0", True),
    ("Hopper-v5", "Hopper-v4", True),
    ("Hopper-v5", "hopper-medium-v2", True),
    ("mine:hopper-v0", "hopper-v0", True),
    ("hopper-full-replay", "Point-v0", True),  # no version 0
]


def file_for(env_id, path):
    env = gym.make(env_id)
    data = steps(9)
    data["observations"] = np.tile(data["rewards"], (*env.observation_space.shape, 1)).T
    data["actions"] = np.zeros((9, *env.action_space.shape))
    return write_hdf5(path, data)


@pytest.mark.parametrize("made_in, env_id, differs", MADE_IN)
def test_a_file_that_names_another_environment(made_in, env_id, differs, tmp_path):
    with warnings.catch_warnings(action="ignore"):  # of Hopper-v4
        path = file_for(env_id, tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file.create_group("metadata").attrs.update({"environment": made_in} if made_in else {})
    name = made_in.decode() if isinstance(made_in, bytes) else made_in
    line = f"{path}: made in {name}, and used for {env_id}"
    assert told(path, env_id) == [line] * differs


def test_a_file_of_d4rls_that_is_another_data_set(tmp_path, monkeypatch):
    """A file of two names is both, and an environment without data takes any of its task's."""
    path = file_for("door-v0", tmp_path / "a.hdf5")
    for name in ("door-human-v0", "door-human-longhorizon-v0"):
        as_d4rls(path, monkeypatch, name)
    for env_id in ("door-human-v0", "door-human-longhorizon-v0", "door-v0"):
        assert told(path, env_id) == []
    for env_id in ("door-human-v1", "door-expert-v0"):
        (line,) = told(path, env_id)
        assert re.fullmatch(f"{path}: made in door-human.*-v0, and used for {env_id}", line)


def test_an_open_file_of_d4rls_is_as_its_path(tmp_path, monkeypatch):
    more = {"next_observations": steps(14)["observations"] + 7}
    path = as_d4rls(write_hdf5(tmp_path / "a.hdf5", steps(14, [2], [7]) | more), monkeypatch)
    monkeypatch.setattr(d4rl, "READ", {})
    with h5py.File(path) as file:
        ours = transitions(file)
        assert d4rl.describe(file)["d4rl"] is True
    np.testing.assert_equal(ours, transitions(path))


@pytest.mark.parametrize("name", [d4rl.DEMO, "door-human-rebuilt.hdf5"])
def test_files_that_ship_here_are_of_doors_and_not_d4rls(name):
    env = d4rl.make("door-human-v1")
    assert len(d4rl.qlearning_dataset(env, d4rl.HERE / name)["rewards"]) > 4000
    assert d4rl.describe(d4rl.HERE / name)["d4rl"] is False


def test_wrappers(monkeypatch):
    """The one of `make` is found within others, and the time limit without its own wrapper."""
    data = steps(13)
    inner = d4rl.make("Point-v0")
    expected = d4rl.qlearning_dataset(inner, data)
    ours = d4rl.qlearning_dataset(gym.wrappers.RecordEpisodeStatistics(inner), data)
    np.testing.assert_equal(ours, expected)
    env = gym.make("Point-v0")
    with pytest.raises(ValueError, match="^RescaleAction changes the actions"):
        d4rl.qlearning_dataset(gym.wrappers.RescaleAction(env, -1, 1), data)
    bare = d4rl.qlearning_dataset(env.unwrapped, data)
    np.testing.assert_equal(bare, d4rl.qlearning_dataset(env, data))
    assert len(bare["rewards"]) == 10
    monkeypatch.setattr(gym.registry["Point-v0"], "max_episode_steps", None)
    for _ in range(2):
        with pytest.raises(ValueError, match="^Point-v0: has no step limit, and the data no time"):
            d4rl.qlearning_dataset(env.unwrapped, data)
        monkeypatch.delitem(gym.registry, "Point-v0", raising=False)


SPACES = {
    "int8": gym.spaces.Box(-100, 100, (2,), np.int8),  # its width is beyond int8
    "uint8": gym.spaces.Box(55, 255, (2,), np.uint8),  # the sum of its bounds is beyond uint8
    "float32": gym.spaces.Box(np.float32([-0.9, -2]), np.float32([0.3, 7])),
    "float64": gym.spaces.Box(np.array([-9.6, 0]), np.array([6.5, 1e5]), dtype=np.float64),
    "D4RL's": gym.spaces.Box(-1, 1, (2,)),
    "narrow": gym.spaces.Box(-1e-3, 1e-3, (2,)),
    "far": gym.spaces.Box(np.array([1e4, -7e5]) / 3, np.array([2e4, 7e5]) / 3, dtype=np.float64),
}


@pytest.mark.parametrize("kind", SPACES)
def test_actions_have_their_spaces_units_and_type(kind, monkeypatch):
    """Also where float32 arithmetic says 0.30000004, or float64's 6.500000000000001."""
    space = SPACES[kind]
    width = space.high.astype(float) - space.low
    actions = np.linspace(space.low, space.high, 201, dtype=space.dtype)
    monkeypatch.setattr(Point, "action_space", space)
    monkeypatch.setattr(Point, "played", [])
    env = d4rl.make("Point-v0")
    assert env.action_space == gym.spaces.Box(-1, 1, (2,))
    env.reset()
    data = steps(201) | {"actions": actions, "next_observations": np.zeros((201, 3))}
    unit = env.unit(d4rl.qlearning_dataset(env, data)["actions"])
    assert unit.dtype == np.float32
    np.testing.assert_allclose(unit, np.linspace([-1, -1], [1, 1], 201), rtol=0, atol=1e-6)
    for action in [*unit, np.float32([-1.5, 1.5])]:
        env.step(action)
    assert all(space.contains(action) for action in Point.played)
    rounding = 0 if kind == "D4RL's" else 1e-7
    assert (abs(np.array(Point.played[:201], float) - actions) <= rounding * width).all()
    np.testing.assert_array_equal(Point.played[201], [space.low[0], space.high[1]])
    data["actions"] = actions + 1e-4 * width
    with pytest.warns(UserWarning, match="^1 actions are out of bounds and were clipped"):
        env.unit(data["actions"])
    with pytest.raises(ValueError, match=r"1 actions are out of Box\(.*, the first in row 200"):
        d4rl.qlearning_dataset(env, data)


DEMO = (ROOT / "d4rl" / "door-demo.hdf5").read_bytes()
SHA256 = hashlib.sha256(DEMO).hexdigest()
FILE = "hand_dapg/door-v0_demos_clipped.hdf5"
NAME = "door-v0_demos_clipped.hdf5"
FAULTS = {
    "404": "404",
    "stalls": "ConnectionError",
    "cut": "ChunkedEncodingError",
    "wrong": "wrong SHA-256",
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        _, kind, file = self.path.split("/", 2)
        self.server.asked.append(self.path)
        self.send_response(404 if kind == "404" or file not in self.server.has else 200)
        self.send_header("Content-Length", str(len(DEMO)))
        self.end_headers()
        self.wfile.write(bytes(1000) if kind == "wrong" else DEMO[:1000])
        if kind == "stalls":
            time.sleep(1)
        if kind != "cut":
            self.wfile.write(DEMO[1000:])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Has the demo as door-human's file, for which it is right. Nothing is shipped."""
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    monkeypatch.setattr(d4rl, "HERE", tmp_path)
    monkeypatch.setattr(d4rl, "SERVER_TIMEOUT", 0.5)
    monkeypatch.setitem(d4rl.DATASETS, "door-human-v0", (FILE, SHA256))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *error: None  # where a client was killed
        server.asked = []
        server.has = {f"d4rl/{FILE}", f"mirror/{NAME}"}
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        yield server
        server.shutdown()


def play(server, monkeypatch, of_d4rl, of_mirror):
    """D4RL's server and the mirror answer as these kinds say."""
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(d4rl, "SERVER", f"{address}/{of_d4rl}/d4rl/")
    monkeypatch.setattr(d4rl, "MIRROR", f"{address}/{of_mirror}/mirror/")


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(server, tmp_path, monkeypatch, fault):
    """Where neither has the file, two lines say why and what to do; else the mirror has it."""
    play(server, monkeypatch, fault, fault)
    host = f"127.0.0.1:{server.server_port}"
    with pytest.raises(OSError) as error:
        d4rl.download("door-human")
    why = f"{host}: {FAULTS[fault]}"
    put = f"Put {NAME}, or a substitute as door-human-rebuilt.hdf5, into {tmp_path}"
    lines = [f"door-human: no {NAME} ({why}, {why}).", f"{put} (D4RL_DATASET_DIR)."]
    how = "To make one: python benchmark/make_dataset.py --help"
    assert str(error.value).splitlines() == [*lines, how]
    assert list(tmp_path.iterdir()) == []
    play(server, monkeypatch, fault, "200")
    path = d4rl.download("door-human")
    assert path.read_bytes() == DEMO and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "env_id, words",
    [
        ("walker2d-medium", "--policy walker2d-medium --out {}/walker2d-medium-rebuilt.hdf5"),
        (
            "hopper-medium-expert-v2",
            "--policy hopper-medium hopper-expert --out {}/hopper-medium-e",
        ),
        ("hopper-medium-replay", "--help"),
    ],
)
def test_who_has_no_file_is_told_what_makes_a_substitute(
    env_id, words, server, tmp_path, monkeypatch
):
    play(server, monkeypatch, "404", "404")
    with pytest.raises(OSError) as error:
        d4rl.download(env_id)
    line = str(error.value).splitlines()[-1]
    make = "To make one: python benchmark/make_dataset.py "
    assert line.startswith(make + words.format(tmp_path))


def test_what_ships_and_is_missing(server, tmp_path):
    """The copied package without its data. No server has it."""
    with pytest.raises(OSError, match=f"^{tmp_path / d4rl.DEMO}: missing; the project has it"):
        d4rl.download("door-demo")
    assert server.asked == []


@pytest.mark.parametrize(
    "env_id, hint",
    [
        ("dor-human", "did you mean door-human-v[01]\\? tasks: hopper, "),
        ("hopper-mediun-v0", "did you mean hopper-medium-v0\\? tasks: hopper, "),
        ("hammer", "tasks: hopper, .* relocate$"),
        ("ant-expert-v0", "tasks: hopper, .* relocate$"),  # not pen-expert
        ("Pendulum-v1", "tasks: hopper, .* relocate$"),
    ],
)
def test_an_id_without_data(env_id, hint):
    with pytest.raises(ValueError, match=f"^{env_id}: no data of it; give --dataset-path; {hint}"):
        d4rl.download(env_id)


def test_without_a_checksum_only_d4rls_server_is_asked(server, tmp_path, monkeypatch):
    """What is not HDF5 is not kept."""
    play(server, monkeypatch, "wrong", "200")
    file, _ = d4rl.DATASETS["relocate-human-v0"]
    server.has |= {f"d4rl/{file}", f"mirror/{file.split('/')[1]}"}
    with pytest.raises(OSError, match="not HDF5"):
        d4rl.download("relocate-human")
    assert len(server.asked) == 1 and list(tmp_path.iterdir()) == []
    monkeypatch.setattr(h5py, "is_hdf5", lambda path: path.unlink())  # as another process may
    with pytest.raises(OSError, match="not HDF5"):
        d4rl.download("relocate-human")


def test_where_a_file_is_looked_for(server, tmp_path, monkeypatch, capsys):
    """From the last place to the first: shipped, the server, the user's substitute, the cache."""
    shipped = tmp_path / "door-human-rebuilt.hdf5"
    shipped.write_bytes(DEMO)
    cache = tmp_path / ".d4rl" / "datasets"
    monkeypatch.delenv("D4RL_DATASET_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    play(server, monkeypatch, "404", "404")
    for env_id in ("door-human", "door-human-longhorizon"):
        assert d4rl.download(env_id) == shipped
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"{env_id}: no door-v0_") and line.endswith(f"instead: {shipped}")
    server.asked.clear()
    play(server, monkeypatch, "200", "200")
    for env_id in ("door-human", "door-human-v0"):
        assert d4rl.download(env_id) == cache / NAME
    assert server.asked == [f"/200/d4rl/{FILE}"]
    assert d4rl.describe(cache / NAME)["d4rl"] is True
    (cache / NAME).unlink()
    rebuilt = cache / "door-human-rebuilt.hdf5"
    rebuilt.write_bytes(DEMO + b"x")
    assert d4rl.download("door-human") == rebuilt
    assert capsys.readouterr().out == f"door-human: a substitute: {rebuilt}\n"
    for path, env_id in ((cache / NAME, "door-human"), (tmp_path / d4rl.DEMO, "door-demo")):
        path.write_bytes(DEMO)
        assert d4rl.download(env_id) == path
        path.write_bytes(DEMO + b"x")
        with pytest.raises(ValueError, match=f"^{path}: not D4RL's file .*; move it away$"):
            d4rl.download(env_id)
    assert len(server.asked) == 1 and capsys.readouterr().out == ""


def test_an_address_that_cannot_be_asked_is_not_a_wrong_file(server, monkeypatch):
    """As where a proxy's kind is not supported; requests calls that a ValueError, too."""
    for name in ("SERVER", "MIRROR"):
        monkeypatch.setattr(d4rl, name, "socks5://a.server/")
    with pytest.raises(OSError, match="a.server: InvalidSchema, a.server: InvalidSchema"):
        d4rl.download("door-human")


@pytest.mark.parametrize("fault, problem", [("a file", "Not a directory"), ("full", "too large")])
def test_a_cache_that_cannot_be_written(server, tmp_path, monkeypatch, fault, problem):
    """No server is blamed, and no substitute taken."""
    (tmp_path / "door-human-rebuilt.hdf5").write_bytes(DEMO)
    cache = tmp_path / "cache"
    monkeypatch.setenv("D4RL_DATASET_DIR", str(cache))
    play(server, monkeypatch, "200", "200")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if fault == "a file":
        cache.touch()
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(DEMO) // 2, limits[1]))
    other = "D4RL_DATASET_DIR names another folder"
    try:
        with pytest.raises(OSError, match=f"^{cache / NAME}: .*{problem}.*; {other}$"):
            d4rl.download("door-human")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert fault == "a file" or list(cache.iterdir()) == []


@pytest.mark.parametrize("folder", ["", "~no-such-user/data"])
def test_without_a_home(folder, monkeypatch):
    """Nor an entry of the user's in the system's list."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.setenv("D4RL_DATASET_DIR", folder)
    assert d4rl.download("door-demo") == ROOT / "d4rl" / "door-demo.hdf5"
    with pytest.raises(OSError, match="^~.*: there is no such home; D4RL_DATASET_DIR "):
        d4rl.download("door-human")


def test_the_names_of_all_files(tmp_path, monkeypatch):
    """A substitute has its task's name with a version other than 0; a name makes no file D4RL's."""
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    with open(ROOT / "tests" / "golden" / "d4rl_infos.csv") as table:
        rows = list(csv.DictReader(table))
    rebuilt = {}
    for row in rows:
        name = row["task"].replace("-longhorizon", "").replace("-v0", "")
        rebuilt[row["task"]] = tmp_path / f"{name}-rebuilt.hdf5"
    for path in rebuilt.values():
        path.touch()
    for task, path in rebuilt.items():
        assert d4rl.download(task) == path
    for row in rows:
        path = tmp_path / row["url"].split("/")[-1]
        path.write_bytes(b"another")
        assert d4rl.describe(path)["d4rl"] is False
        if not row["sha256"]:
            assert d4rl.download(row["task"]) == path
            continue
        with pytest.raises(ValueError, match="not D4RL's file of this name, by its SHA-256"):
            d4rl.download(row["task"])
        with monkeypatch.context() as patch:
            patch.setattr(d4rl, "file_hash", lambda path, sha256=row["sha256"]: sha256)
            assert d4rl.download(row["task"]) == path
            assert d4rl.describe(path)["d4rl"] is True


def test_seconds_to_connect_and_between_two_parts(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(d4rl, "HTTPDownloader", lambda **settings: asked.append(settings))
    monkeypatch.setattr(d4rl, "retrieve", lambda *_, **__: (tmp_path / "a").write_bytes(b""))
    d4rl.fetch("a", "", tmp_path / "a")
    assert asked[0]["timeout"] == (5, 20)


@pytest.mark.parametrize("name", ["terminals", "timeouts"])
def test_flags_are_0_or_1(name):
    arrays = {"observations": np.zeros((4, 3)), "actions": np.zeros((4, 2)), "rewards": np.zeros(4)}
    arrays |= {"terminals": np.zeros(4), name: np.array([0, 1, -1, 0])}
    with pytest.raises(ValueError, match=f"dataset: {name} must be 0 or 1 in each step"):
        d4rl.qlearning_dataset(d4rl.make("Point-v0"), arrays)


class Odd(Point):
    """Begins with integers, says to have integers, has one buffer for all steps, gives rewards in
    arrays."""

    observation_space = gym.spaces.Box(0, 255, (3,), np.uint8)

    def reset(self, seed=None, options=None):
        self.buffer = np.zeros(3, np.float32)
        return np.full(3, seed), {}

    def step(self, action):
        self.buffer += 0.4
        return self.buffer, np.ones(1), False, self.buffer[0] > 1, {}


def test_an_odd_environment_is_played_as_it_is():
    """The policy sees what each environment shows, and a return is a number."""
    seen = []
    act = lambda obs: seen.append(obs.copy()) or np.zeros((2, 2))
    envs = [d4rl.UnitActions(Odd()), d4rl.UnitActions(Odd())]
    assert d4rl.play(act, envs, 7).tolist() == [3, 3]
    np.testing.assert_array_equal(seen[0], [[7] * 3, [8] * 3])
    np.testing.assert_allclose(seen[1:], np.float32([[[0.4] * 3] * 2, [[0.8] * 3] * 2]))
