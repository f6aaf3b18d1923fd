"""What d4rl.qlearning_dataset makes of files and arrays, what it refuses, and actions' units; and
d4rl.download, where a local server plays D4RL's and the mirror, with their faults."""

import collections
import copy
import csv
import fcntl
import hashlib
import http.server
import pickle
import pwd
import resource
import threading
import time
import types

import gymnasium as gym
import h5py
import numpy as np
import pytest
from conftest import ROOT, Point, write_hdf5

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


def rows_of_the_original(data, step_limit):
    """Which rows become transitions in D4RL's own qlearning_dataset, restated."""
    kept = []
    episode_step = 0
    for i in range(len(data["rewards"]) - 1):
        final = episode_step == step_limit - 1
        if "timeouts" in data:
            final = data["timeouts"][i]
        if final or data["terminals"][i]:
            episode_step = 0
        if not final:
            kept.append(i)
            episode_step += 1
    return np.array(kept)


@pytest.mark.parametrize("with_timeouts", [True, False])
def test_a_file_of_d4rls_gives_what_the_original_makes_of_it(with_timeouts, tmp_path, monkeypatch):
    """Also where the file's arrays are given, which remember it, as their copies do."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        n, step_limit = int(rng.integers(10, 60)), int(rng.integers(2, 9))
        terminals, timeouts = (np.flatnonzero(rng.random(n) < 0.15) for _ in range(2))
        data = steps(n, terminals, timeouts if with_timeouts else None)
        data["next_observations"] = rng.normal(size=(n, 3))
        path = as_d4rls(write_hdf5(tmp_path / "a.hdf5", data), monkeypatch)
        kept = rows_of_the_original(data, step_limit)
        expected = {name: data[name][kept] for name in ("observations", "actions", "rewards")}
        expected["next_observations"] = data["observations"][kept + 1]
        expected["terminals"] = data["terminals"][kept]
        arrays = d4rl.read(path)
        for given in (path, arrays, copy.deepcopy(arrays), pickle.loads(pickle.dumps(arrays))):
            ours = transitions(given, step_limit)
            assert list(ours) == list(expected) and d4rl.describe(given)["d4rl"] is True
            for name, array in expected.items():
                np.testing.assert_array_equal(ours[name], array.astype(np.float32), strict=True)


@pytest.mark.parametrize("change", [*d4rl.ARRAYS, "all", "replaced", "removed"])
def test_changed_arrays_are_no_longer_d4rls(change, tmp_path, monkeypatch):
    """What is said of a file holds for its unchanged arrays alone."""
    data = steps(20, terminals=[4, 11], timeouts=[3, 15])
    data["next_observations"] = data["observations"] + 7
    arrays = d4rl.read(as_d4rls(write_hdf5(tmp_path / "a.hdf5", data), monkeypatch))
    for name in [change] if change in arrays else arrays if change == "all" else []:
        arrays[name][[3, 4]] = arrays[name][[4, 3]]
    if change == "replaced":
        arrays["next_observations"] = data["observations"] + 1
    if change == "removed":
        del arrays["timeouts"]
    np.testing.assert_equal(transitions(arrays), transitions(dict(arrays)))
    assert len(transitions(arrays)["rewards"]) == 20
    assert d4rl.describe(arrays) == d4rl.describe(dict(arrays))
    arrays["rewards"][5] = np.nan
    with pytest.raises(ValueError, match="^dataset: rewards has 1 NaN"):
        transitions(arrays)


def test_transitions_are_taken_as_they_are(monkeypatch):
    """With their scale, which is that of `make`'s environments or the environment's own."""
    space = gym.spaces.Box(np.float32([-2, -1]), np.float32([2, 3]))
    monkeypatch.setattr(Point, "action_space", space)
    env = d4rl.make("Point-v0")
    data = steps(9, terminals=[4])
    scaled = d4rl.qlearning_dataset(env, data)
    np.testing.assert_allclose(scaled["actions"][3], [0.0015, -0.5015])
    np.testing.assert_equal(d4rl.qlearning_dataset(env, scaled), scaled)
    own = d4rl.qlearning_dataset(gym.make("Point-v0"), data)
    np.testing.assert_equal(d4rl.qlearning_dataset(env, own), scaled)
    with pytest.raises(ValueError, match="^dataset: scaled for an environment of d4rl.make, and <"):
        d4rl.qlearning_dataset(gym.make("Point-v0"), scaled)


@pytest.mark.parametrize("with_timeouts", [True, False])
def test_no_transition_crosses_episodes(with_timeouts):
    """Of one's own data, as lists or columns, an episode's last step is dropped unless terminal."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        lengths = rng.integers(1, 6, size=8)
        terminal = (lengths < 5) | (rng.random(8) < 0.5)
        last = lengths.cumsum() - 1
        data = steps(last[-1] + 1, last[terminal], last[lengths == 5] if with_timeouts else None)
        data["observations"] = data["observations"].tolist()
        data["rewards"] = data["rewards"][:, None].astype(np.float16)
        kept = np.setdiff1d(np.arange(last[-1] + 1), last[~terminal])
        ours = transitions(data)
        np.testing.assert_array_equal(-ours["rewards"], kept)
        np.testing.assert_array_equal(ours["terminals"], np.isin(kept, last[terminal]))
        within = ours["terminals"] == 0
        next_obs = ours["observations"] + 1
        np.testing.assert_array_equal(ours["next_observations"][within], next_obs[within])


def test_next_observations_make_each_row_a_transition():
    rows = np.random.default_rng(0).permutation(20)
    data = {name: array[rows] for name, array in steps(20, [4], timeouts=[9]).items()}
    data["next_observations"] = data["observations"] + 7
    for name, array in transitions(data).items():
        np.testing.assert_array_equal(array, data[name].astype(np.float32))


@pytest.mark.parametrize("original", [False, True], ids=["own", "D4RL's"])
@pytest.mark.parametrize("timeouts", [[7, 12], None], ids=["timeouts", "step limit"])
@pytest.mark.parametrize("with_next", [False, True], ids=["", "next_observations"])
def test_terminate_on_end_makes_an_episodes_last_step_terminal(
    original, timeouts, with_next, tmp_path, monkeypatch
):
    """D4RL's own count the steps of the limit from a terminal one on, and use no next ones."""
    data = steps(14, [2], timeouts)
    if with_next:
        data["next_observations"] = data["observations"] + 7
    path = write_hdf5(tmp_path / "a.hdf5", data)
    if original:
        as_d4rls(path, monkeypatch)
    ours = d4rl.qlearning_dataset(gym.make("Point-v0"), path, terminate_on_end=True)
    last = [2, 7, 12] if timeouts or not original else [2, 6, 11]
    used = with_next and not original
    np.testing.assert_array_equal(-ours["rewards"], range(14 if used else 13))  # 13's next: unknown
    np.testing.assert_array_equal(ours["terminals"].nonzero()[0], last)
    next_obs = ours["observations"] + (7 if used else 1)
    np.testing.assert_array_equal(ours["next_observations"], next_obs)


@pytest.mark.parametrize("more", [{}, {"next_observations": np.zeros((9, 3))}])
def test_timeouts_that_are_the_terminals_are_told(more):
    with pytest.warns(UserWarning, match="^dataset: timeouts equal terminals"):
        transitions(steps(9, terminals=[4, 8], timeouts=[4, 8]) | more)


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
    ("terminations", np.zeros(9), "terminations, .* must be named terminals, .* --minari"),
    ("truncations", np.zeros(9), ".*truncations must be named .*timeouts"),
    ("rewards", [[1, 2], [3]], r"must be arrays \(.*"),
    ("rewards", {"a group": np.zeros(9)}, "observations must be numbers of .* beside 1 rewards"),
]


@pytest.mark.parametrize("name, array, problem", BAD)
def test_bad_arrays(name, array, problem):
    with pytest.raises(ValueError, match=f"^dataset: {problem}"):
        transitions(steps(9) | {name: array})


def test_missing_and_empty_arrays():
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
    "h5py.File": lambda data, path: h5py.File(write_hdf5(path, data)),
}


@pytest.mark.parametrize("kind", MAPPINGS)
def test_arrays_in_any_mapping(kind, tmp_path):
    data = steps(30, terminals=[5], timeouts=[9])
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
    data = steps(9) | {"observations": np.zeros((9, 11)), "actions": actions}
    ours = d4rl.qlearning_dataset(gym.make("hopper-v0"), data)
    assert (ours["actions"] == actions[:8]).all()
    with pytest.warns(UserWarning, match="^dataset: 9 actions are out of bounds and were clipped"):
        ours = d4rl.qlearning_dataset(d4rl.make("hopper"), data)
    assert (ours["actions"] == [1, -1, 0.5]).all()


def test_files(tmp_path, monkeypatch):
    """~ is the home folder. Other arrays are not read, here 114 GiB that were never written."""
    monkeypatch.setenv("HOME", str(tmp_path))
    data = steps(30, terminals=[5], timeouts=[9])
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
    ("AdroitHandDoor-v1", "door-human-v1", False),
    ("door", "door-expert-v1", False),
    ("Hopper-v5", "hopper-medium-v2", False),
    ("mine:Point-v1", "Point-v0", False),
    ([7, 8], "Point-v0", False),  # no words
    (None, "Point-v0", False),
    (np.bytes_("Pointed-v0"), "Point-v0", True),
    ("halfcheetah", "walker2d-medium-v2", True),
    ("Walker2d-v4", "halfcheetah-v0", True),
    ("AdroitHandDoorSparse-v1", "door-v0", True),
    ("Pointed-v0", "Point-v0", True),
]


@pytest.mark.parametrize("made_in, env_id, told", MADE_IN)
def test_a_file_that_names_another_environment(made_in, env_id, told, tmp_path, monkeypatch):
    env = d4rl.make(env_id)
    data = steps(9) | {"observations": np.zeros((9, *env.observation_space.shape))}
    data["actions"] = np.zeros((9, *env.action_space.shape))
    path = write_hdf5(tmp_path / "a.hdf5", data)
    with h5py.File(path, "a") as file:
        file.create_group("metadata").attrs.update({"environment": made_in} if made_in else {})
    if not told:
        d4rl.qlearning_dataset(env, path)
        as_d4rls(path, monkeypatch, made_in := "ant-medium-v0")  # D4RL's own do not name it
    name = made_in.decode() if isinstance(made_in, bytes) else made_in
    with pytest.warns(UserWarning, match=f"^{path}: made in {name}, and used for {env_id}$"):
        d4rl.qlearning_dataset(env, path)


def test_time_that_never_ran_out_is_said(tmp_path, monkeypatch):
    """Two episodes are joined there, but in a file of D4RL's own, which is as it is."""
    transitions(steps(5, timeouts=[]))  # as long as an episode
    transitions(steps(9, terminals=[4], timeouts=[]))
    transitions(steps(9, timeouts=[6]))  # longer, as D4RL's demonstrations are
    whole = steps(6, timeouts=[])
    transitions(whole | {"next_observations": whole["observations"]})
    transitions(as_d4rls(write_hdf5(tmp_path / "a.hdf5", whole), monkeypatch))
    with pytest.warns(UserWarning, match="^dataset: 6 steps without a timeout, more than Point-v0"):
        transitions(whole)


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
    unit = d4rl.qlearning_dataset(env, data)["actions"]
    assert unit.dtype == np.float32
    np.testing.assert_allclose(unit, np.linspace([-1, -1], [1, 1], 201), rtol=0, atol=1e-6)
    for action in [*unit, np.float32([-1.5, 1.5])]:
        env.step(action)
    assert all(space.contains(action) for action in Point.played)
    rounding = 0 if kind == "D4RL's" else 1e-7
    assert (abs(np.array(Point.played[:201], float) - actions) <= rounding * width).all()
    np.testing.assert_array_equal(Point.played[201], [space.low[0], space.high[1]])
    data["actions"] = actions + 1e-4 * width
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
    assert str(error.value).splitlines() == lines
    assert list(tmp_path.iterdir()) == []
    play(server, monkeypatch, fault, "200")
    path = d4rl.download("door-human")
    assert path.read_bytes() == DEMO and list(tmp_path.iterdir()) == [path]


def test_without_a_checksum_only_d4rls_server_is_asked(server, tmp_path, monkeypatch):
    """What is not HDF5 is not kept."""
    play(server, monkeypatch, "wrong", "200")
    file, _ = d4rl.DATASETS["relocate-human-v0"]
    server.has |= {f"d4rl/{file}", f"mirror/{file.split('/')[1]}"}
    with pytest.raises(OSError, match="not HDF5"):
        d4rl.download("relocate-human")
    assert len(server.asked) == 1 and list(tmp_path.iterdir()) == []


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
    for path, env_id in ((cache / NAME, "door-human"), (tmp_path / d4rl.DEMO, "door-demo")):
        path.write_bytes(DEMO)
        assert d4rl.download(env_id) == path
        path.write_bytes(DEMO + b"x")
        with pytest.raises(ValueError, match=f"^{path}: not D4RL's file .*; move it away$"):
            d4rl.download(env_id)
    with pytest.raises(ValueError, match="^door: no data of it; give --dataset-path. Sets: "):
        d4rl.download("door")
    assert len(server.asked) == 1 and capsys.readouterr().out == ""


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


def test_an_episode_that_begins_with_integers_and_gives_rewards_in_arrays():
    """The policy sees what the environment shows, and the return is a number."""

    class Odd(Point):
        def reset(self, seed=None, options=None):
            self.at = 0.0
            return np.zeros(3, int), {}

        def step(self, action):
            self.at += 0.4
            return np.full(3, self.at, np.float32), np.ones(1), False, self.at > 1, {}

    seen = []
    act = lambda obs: seen.append(obs[0, 0]) or np.zeros((1, 2))
    assert d4rl.play(act, [d4rl.UnitActions(Odd())], 0).tolist() == [3]
    np.testing.assert_allclose(seen, [0, 0.4, 0.8], rtol=1e-6)
