"""Names of tasks, D4RL's reading of a file, and one clear line for data that cannot be used."""

import hashlib

import gymnasium as gym
import h5py
import numpy as np
import pytest
from conftest import ROOT


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


def convert(script, data, max_steps=100):
    return script.to_transitions(data, 3, 2, max_steps, "here")


def rows_kept(script, data, max_steps=100):
    """Which rows of steps() become transitions."""
    _, _, reward, _, _ = convert(script, data, max_steps)
    return (-reward).astype(int).tolist()


def test_timeouts_are_dropped_and_terminals_kept(script):
    """Three episodes: 0-2 ends by timeout, 3-5 by a terminal step, 6-8 with the file. Where a step
    is both, it is dropped."""
    data = steps(9, terminals=[5], timeouts=[2])
    kept = [0, 1, 3, 4, 5, 6, 7]
    assert rows_kept(script, data) == kept
    obs, action, reward, next_obs, done = convert(script, data)
    np.testing.assert_array_equal(obs, data["observations"][kept])
    np.testing.assert_array_equal(action, data["actions"][kept])
    np.testing.assert_array_equal(next_obs, obs + 1)
    assert done.tolist() == [0, 0, 0, 0, 1, 0, 0]
    for array in (obs, action, reward, next_obs, done):
        assert array.dtype == np.float32
    assert rows_kept(script, steps(5, terminals=[2], timeouts=[2])) == [0, 1, 3]


def test_without_timeouts_episodes_end_at_the_step_limit(script):
    """After a terminal step D4RL counts from one. Without a limit, terminals alone end them."""
    assert rows_kept(script, steps(8), max_steps=3) == [0, 1, 3, 4, 6]
    assert rows_kept(script, steps(8, terminals=[1]), max_steps=3) == [0, 1, 2, 4, 5]
    assert rows_kept(script, steps(8, terminals=[1]), max_steps=None) == [*range(7)]


def test_columns_lists_and_other_types_are_taken(script):
    plain = steps(9, terminals=[5], timeouts=[2])
    other = {name: array.astype(float) for name, array in plain.items()}
    other["observations"] = plain["observations"].tolist()
    other["rewards"] = plain["rewards"][:, None]
    other["timeouts"] = plain["timeouts"].astype(np.uint8)
    for array, expected in zip(convert(script, other), convert(script, plain), strict=True):
        np.testing.assert_array_equal(array, expected)


SPACE = gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 0.4]))


def test_actions_come_in_the_units_of_their_space(script):
    """Its bounds are -1 and 1 inside; what is beyond by rounding alone is clipped."""
    action = np.float32([[-2, 0], [2, 0.4], [0, 0.2], [1, 0.3], [2.00001, 0.1]])
    unit, clipped = script.to_unit_actions(action, SPACE, False, "here")
    np.testing.assert_allclose(unit, [[-1, -1], [1, 1], [0, 0], [0.5, 0.5], [1, -0.5]], atol=1e-6)
    assert (unit.dtype, clipped) == (np.float32, 0)


def test_actions_out_of_bounds(script):
    """An error that names the number, the farthest and its bounds; of D4RL's tasks clipped. Actions
    of -1 to 1, as D4RL's are, stay bit for bit."""
    action = np.float32([[-2, 0], [2.5, 0.4], [0, 0.8], [1, 0.3]])
    problem = r"here: 2 actions are out of bounds; the farthest is 0.8, whose bounds are \[0, 0.4\]"
    with pytest.raises(script.InputError, match=problem):
        script.to_unit_actions(action, SPACE, False, "here")
    unit, clipped = script.to_unit_actions(action, SPACE, True, "here")
    assert clipped == 2 and unit[1:3].tolist() == [[1, 1], [0, 1]]
    action = np.random.default_rng(0).uniform(-1, 1, (500, 2)).astype(np.float32)
    unit, clipped = script.to_unit_actions(action, gym.spaces.Box(-1, 1, (2,)), True, "here")
    assert clipped == 0 and unit.tobytes() == action.tobytes()


BAD = {
    "one number": ("rewards", 1.0, "rewards must be an array of numbers"),
    "text": ("rewards", ["1"] * 9, "rewards must be an array of numbers"),
    "shorter": ("timeouts", np.zeros(8), r"timeouts has shape \(8,\)"),
    "too few dimensions": ("actions", np.zeros(9), r"actions has shape \(9,\)"),
    "another size": ("actions", np.zeros((9, 3)), r"actions has shape \(9, 3\), .*\(9, 2\)"),
    "NaN": ("rewards", [0, 0, 0, 0, np.nan, 0, 0, 0, np.nan], "rewards has 2 NaN .* row 4"),
    "infinity": ("terminals", [0, 0, -np.inf] + [0] * 6, "terminals has 1 NaN .* row 2"),
    "timeouts only": ("timeouts", np.ones(9), "no usable transition among 9 steps"),
}


@pytest.mark.parametrize("name, array, problem", BAD.values(), ids=BAD)
def test_bad_arrays(script, name, array, problem):
    """One line, which begins with where they are from and says what is wrong."""
    with pytest.raises(script.InputError, match=f"^here: {problem}") as error:
        convert(script, steps(9) | {name: array})
    assert "\n" not in str(error.value)


def test_a_file_is_read_as_it_is_stored(script, tmp_path):
    """And where it is from: path, checksum, metadata. test_fuzz.py has damaged ones."""
    path = tmp_path / "a.hdf5"
    data = steps(9, terminals=[5], timeouts=[2])
    with h5py.File(path, "w") as file:
        for name, array in data.items():
            file[name] = array
        file["other"] = np.zeros(3)
        file.create_group("metadata").attrs.update({"environment": "X-v1", "steps": 9, "path": ""})
    arrays, source = script.read_file(path)
    assert arrays.keys() == data.keys()
    for name in data:
        assert arrays[name].dtype == data[name].dtype
        np.testing.assert_array_equal(arrays[name], data[name])
    expected = {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert source == expected | {"environment": "X-v1", "steps": "9", "d4rl": False}


def test_files_of_the_papers_27_tasks(script):
    """A few of each kind, by hand."""
    expected = {
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


def test_where_a_file_is_looked_for(script, tmp_path, monkeypatch):
    """In data/ beside the script, the cache, a rebuilt set there: the places are filled
    from the last to the first. Version 0 if none is given."""
    monkeypatch.setattr(script, "__file__", str(tmp_path / "script.py"))
    monkeypatch.delenv("D4RL_DATASET_DIR", raising=False)  # which test_download.py sets
    monkeypatch.setenv("HOME", str(tmp_path))
    name = "door-v0_demos_clipped.hdf5"
    cache = tmp_path / ".d4rl" / "datasets"
    for place in (cache / "door-human-rebuilt.hdf5", cache / name, tmp_path / "data" / name):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        for task in ("door-human", "door-human-v0"):
            assert script.find_dataset(task) == place


def test_door_demo_ships_with_the_project(script, tmp_path, monkeypatch):
    """A script alone in a folder says so and asks no server for it."""
    assert script.find_dataset("door-demo") == ROOT / "data" / "door-demo.hdf5"
    monkeypatch.setattr(script, "__file__", str(tmp_path / "script.py"))
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    problem = "door-demo.hdf5 ships with the project: .*--dataset-path"
    with pytest.raises(script.InputError, match=problem):
        script.find_dataset("door-demo")


def test_a_typo_gets_the_nearest_names(script):
    """And how to list all; an environment of one's own, the option for its data."""
    problem = "--env-id door-humam: no task of D4RL's; the nearest are door-human-v.*task_files"
    with pytest.raises(script.InputError, match=problem):
        script.find_dataset("door-humam")
    for task in ("Hopper-v4", "door-human-v2"):
        with pytest.raises(script.InputError, match="--env-id .* data of your own need --dataset"):
            script.find_dataset(task)
