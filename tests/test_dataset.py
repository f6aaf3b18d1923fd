"""Names of tasks, D4RL's reading of a file, and one clear line for data that cannot be used."""

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
TASKS = ROOT.parent / "shared" / "paper" / "d4rl_tasks.json"
OBS_DIM, ACTION_DIM = 3, 2


def steps(n, terminals=(), timeouts=None, **changes):
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
    return data | changes


def write(path, data, **metadata):
    with h5py.File(path, "w") as file:
        for name, array in data.items():
            file[name] = array
        file.create_group("metadata").attrs.update(metadata)
    return path


def convert(script, data, max_steps=100):
    return script.to_transitions(data, OBS_DIM, ACTION_DIM, max_steps, "here")


def rows_kept(transitions):
    """Which rows of steps() there are."""
    return (-transitions["reward"]).astype(int).tolist()


def plain_loop(data, max_steps):
    """The semantics of d4rl.qlearning_dataset (terminate_on_end=False), a step at a time."""
    rows, count = [], 0  # count: steps so far in this episode, as D4RL counts them
    for i in range(len(data["rewards"]) - 1):
        ends_by_timeout = data["timeouts"][i] if "timeouts" in data else count == max_steps - 1
        if ends_by_timeout:
            count = 0
            continue
        if data["terminals"][i]:
            count = 0
        obs, next_obs = data["observations"][i : i + 2]
        done = float(data["terminals"][i])
        rows.append((obs, data["actions"][i], data["rewards"][i], next_obs, done))
        count += 1
    return [np.array(column, np.float32) for column in zip(*rows)]


# --- Transitions


def test_timeouts_are_dropped_and_terminals_kept(script):
    """Three episodes: 0-2 ends by timeout, 3-5 by a terminal step, 6-8 with the file."""
    data = convert(script, steps(9, terminals=[5], timeouts=[2]))
    assert rows_kept(data) == [0, 1, 3, 4, 5, 6, 7]
    assert data["done"].tolist() == [0, 0, 0, 0, 1, 0, 0]
    assert (data["next_obs"] == data["obs"] + 1).all()
    assert list(data) == ["obs", "action", "reward", "next_obs", "done"]
    assert {array.dtype for array in data.values()} == {np.dtype("float32")}


def test_a_step_that_is_terminal_and_timeout_is_dropped(script):
    assert rows_kept(convert(script, steps(5, terminals=[2], timeouts=[2]))) == [0, 1, 3]


def test_without_timeouts_episodes_end_at_the_step_limit(script):
    """After a terminal step D4RL counts from one. Without a limit, terminals alone end them."""
    assert rows_kept(convert(script, steps(8), max_steps=3)) == [0, 1, 3, 4, 6]
    assert rows_kept(convert(script, steps(8, terminals=[1]), max_steps=3)) == [0, 1, 2, 4, 5]
    assert rows_kept(convert(script, steps(8, terminals=[1]), max_steps=None)) == [*range(7)]


@pytest.mark.parametrize("with_timeouts", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_random_data_as_in_d4rl(script, seed, with_timeouts):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(50, 400))
    data = {
        "observations": rng.normal(size=(n, OBS_DIM)),
        "actions": rng.uniform(-1, 1, (n, ACTION_DIM)),
        "rewards": rng.normal(size=n),
        "terminals": rng.random(n) < 0.1,
    }
    if with_timeouts:
        data["timeouts"] = rng.random(n) < 0.1
    for mine, theirs in zip(convert(script, data, 7).values(), plain_loop(data, 7), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_columns_lists_and_other_types_are_taken(script):
    """(n, 1) columns, float64, integers for flags, lists."""
    plain = steps(9, terminals=[5], timeouts=[2])
    other = plain | {name: plain[name][:, None].astype(float) for name in ("rewards", "terminals")}
    other["timeouts"] = plain["timeouts"].astype(np.uint8)
    other["observations"] = plain["observations"].tolist()
    one, two = convert(script, plain), convert(script, other)
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


def test_actions_outside_the_range_are_clipped_and_counted(script, capsys):
    data = steps(9)
    data["actions"][[1, 4]] = [[1.5, -3.0], [0.5, 1.0001]]
    action = convert(script, data)["action"]
    assert action[1].tolist() == [1, -1] and action[4].tolist() == [0.5, 1]
    assert re.fullmatch("here: 2 of 9 actions .*\n", capsys.readouterr().err)
    convert(script, steps(9))
    assert capsys.readouterr().err == ""


def with_value(name, row, value):
    data = steps(9)
    data[name] = data[name].astype(np.float32)
    data[name][row] = value
    return data


BAD = {
    "no arrays": ({}, "observations"),
    "text": (steps(9, actions=[["left", "up"]] * 9), "actions"),
    "text that is a number": (steps(9, rewards=["1"] * 9), "rewards"),
    "complex": (steps(9, rewards=np.ones(9, complex)), "rewards"),
    "ragged": (steps(9, observations=[[1], [2, 3]]), "observations"),
    "nothing": (steps(9, terminals=[]) | {"terminals": None}, "terminals"),
    "shorter": (steps(9, rewards=np.zeros(8)), r"observations has shape \(9, 3\)"),
    "longer timeouts": (steps(9) | {"timeouts": np.zeros(10)}, r"timeouts has shape \(10,\)"),
    "too many dimensions": (steps(9, rewards=np.zeros((9, 2))), r"rewards has shape \(9, 2\)"),
    "too few dimensions": (steps(9, actions=np.zeros(9)), r"actions has shape \(9,\)"),
    "a number": (steps(9, observations=1.0), r"observations has shape \(\)"),
    "another size": (steps(9, actions=np.zeros((9, 3))), r"actions .*\(9, 3\).*\(9, 2\)"),
    "NaN": (with_value("observations", [4, 7], np.nan), "observations has 6 NaN .* row 4"),
    "infinity": (with_value("rewards", 8, -np.inf), "rewards has 1 NaN or infinite .* row 8"),
    "NaN flag": (with_value("terminals", 2, np.nan), "terminals has 1 NaN or infinite .* row 2"),
    "timeouts only": (steps(9, timeouts=range(9)), "no usable transition"),
    "one step": (steps(1), "no usable transition"),
    "no step": (steps(0), "no usable transition"),
}


@pytest.mark.parametrize("data, problem", BAD.values(), ids=BAD)
def test_bad_arrays(script, data, problem):
    """One line, which begins with where they are from and says what is wrong."""
    with pytest.raises(script.InputError, match=f"^here: .*{problem}") as error:
        convert(script, data)
    assert "\n" not in str(error.value)


# --- Files


def test_a_file_is_read_as_it_is_stored(script, tmp_path):
    data = steps(9, terminals=[5], timeouts=[2])
    path = write(tmp_path / "a.hdf5", data | {"other": np.zeros(3)}, environment="X-v1", steps=9)
    arrays, metadata = script.read_file(path)
    assert arrays.keys() == data.keys()
    for name in data:
        assert arrays[name].dtype == data[name].dtype
        np.testing.assert_array_equal(arrays[name], data[name])
    assert metadata == {"environment": "X-v1", "steps": "9"}


def test_files_of_another_kind(script, tmp_path):
    """Each is named as what it is not."""
    whole = write(tmp_path / "whole.hdf5", steps(1000))
    np.savez(tmp_path / "numpy.npz", **steps(9))
    (tmp_path / "text").write_bytes(b"observations,actions\n")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "cut").write_bytes(whole.read_bytes()[:9000])
    rest = steps(9)
    del rest["rewards"]
    write(tmp_path / "no rewards", rest)
    for name in ("numpy.npz", "text", "empty", "cut", "no rewards"):
        with pytest.raises(script.InputError, match=f"{name}: not an HDF5 file in D4RL's format"):
            script.read_file(tmp_path / name)
    for name in (".", "nowhere"):
        with pytest.raises(script.InputError, match="not an HDF5 file"):
            script.read_file(tmp_path / name)


# --- Tasks


def test_files_of_the_papers_27_tasks(script):
    """A few of each kind by hand; D4RL's own table is in the next test, where it is at hand."""
    expected = {
        "hopper-random-v0": "gym_mujoco/hopper_random.hdf5",
        "hopper-medium-replay-v0": "gym_mujoco/hopper_mixed.hdf5",
        "walker2d-medium-replay-v0": "gym_mujoco/walker_mixed.hdf5",
        "walker2d-medium-v0": "gym_mujoco/walker2d_medium.hdf5",
        "halfcheetah-medium-replay-v1": "gym_mujoco_v1/halfcheetah_medium_replay-v1.hdf5",
        "hopper-medium-expert-v2": "gym_mujoco_v2/hopper_medium_expert-v2.hdf5",
        "pen-human-v0": "hand_dapg/pen-v0_demos_clipped.hdf5",
        "hammer-cloned-v0": "hand_dapg/hammer-demos-v0-bc-combined.hdf5",
        "door-expert-v0": "hand_dapg/door-v0_expert_clipped.hdf5",
        "relocate-human-v1": "hand_dapg_v1/relocate-human-v1.hdf5",
    }
    files = script.task_files()
    assert {task: files[task] for task in expected} == expected
    assert len(files) == 15 * 3 + 12 * 2 + 1


@pytest.mark.skipif(not TASKS.exists(), reason="needs D4RL's table, shared/paper/d4rl_tasks.json")
def test_all_rows_of_d4rls_table(script):
    table = json.loads(TASKS.read_text())
    files = script.task_files()
    assert files.keys() == table.keys() | {"door-demo"}
    for task, row in table.items():
        assert files[task] == row["path"]
        references = np.array([row["ref_min"], row["ref_max"]])
        assert script.normalized_score(task, references) == pytest.approx([0, 100])


def test_scores(script):
    """0 for D4RL's random policy, 100 for its expert; shapes stay; raw returns elsewhere."""
    low, high = -56.512833, 2880.5693087298737
    returns = np.array([[low, high], [(low + high) / 2, 2 * high - low]])
    scores = script.normalized_score("door-cloned-v1", returns)
    np.testing.assert_allclose(scores, [[0, 100], [50, 200]], atol=1e-9)
    np.testing.assert_array_equal(script.normalized_score("Pendulum-v1", returns), returns)


def test_where_a_file_is_looked_for(script, tmp_path, monkeypatch):
    """dataset_path, data/ beside the script, the cache, a rebuilt set there; version 0 if none."""
    monkeypatch.setattr(script, "__file__", str(tmp_path / "project" / "script.py"))
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "cache"))
    name = "door-v0_demos_clipped.hdf5"
    rebuilt = tmp_path / "cache" / "door-human-rebuilt.hdf5"
    places = [rebuilt, tmp_path / "cache" / name, tmp_path / "project" / "data" / name]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        assert script.find_dataset("door-human", None) == place
        if place is not rebuilt:
            assert script.find_dataset("door-human-v0", None) == place
    assert script.find_dataset("door-human", "own.hdf5") == Path("own.hdf5")
    monkeypatch.delenv("D4RL_DATASET_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / ".d4rl" / "datasets" / "pen-expert-v1.hdf5"
    home.parent.mkdir(parents=True)
    home.touch()
    assert script.find_dataset("pen-expert-v1", None) == home


def test_a_version_is_never_taken_from_a_rebuilt_set(script, tmp_path, monkeypatch):
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    monkeypatch.setattr(script, "D4RL", "http://127.0.0.1:9/")
    (tmp_path / "door-human-rebuilt.hdf5").touch()
    with pytest.raises(script.InputError, match="cannot be fetched"):
        script.find_dataset("door-human-v0", None)


def test_door_demo_ships_with_the_project(script, tmp_path, monkeypatch):
    """A script alone in a folder says so and asks no server for it."""
    assert script.find_dataset("door-demo", None) == ROOT / "data" / "door-demo.hdf5"
    monkeypatch.setattr(script, "__file__", str(tmp_path / "script.py"))
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    with pytest.raises(script.InputError, match="door-demo.hdf5 ships with the project: .*--dataset-path"):
        script.find_dataset("door-demo", None)


@pytest.mark.parametrize("task", ["Hopper-v4", "DOOR-DEMO", "antmaze-umaze-v0", "", "door-human-v2"])
def test_an_unknown_task_gets_the_list_of_what_there_is(script, task):
    with pytest.raises(script.InputError, match=f"--env-id '{task}': no such task") as error:
        script.find_dataset(task, None)
    named = re.findall(r"[\w-]+", str(error.value))
    for part in {part for name in script.task_files() for part in re.split("-", name, maxsplit=1)}:
        assert part in named or f"-{re.sub('-v.', '', part)}" in named or part == "demo"


def test_any_registered_environment_with_a_file_of_ones_own(script):
    assert script.find_dataset("Pendulum-v1", "own.hdf5") == Path("own.hdf5")
    with pytest.raises(script.InputError, match="no such task"):
        script.find_dataset("Pendulum-v17", "own.hdf5")
