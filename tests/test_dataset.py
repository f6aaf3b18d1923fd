"""Names of tasks, D4RL's reading of a file, and one clear line for every file and argument that cannot be used."""

import dataclasses
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import uwac

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
    }
    data["terminals"] = np.isin(rows, terminals)
    if timeouts is not None:
        data["timeouts"] = np.isin(rows, timeouts)
    return {name: array for name, array in (data | changes).items() if array is not None}


def write(path, data):
    with h5py.File(path, "w") as file:
        for name, array in data.items():
            file[name] = array
    return path


def load(script, path, data, max_steps=100):
    return script.load_dataset(write(path, data), OBS_DIM, ACTION_DIM, max_steps)


def rows_kept(dataset):
    """Which rows of steps() a data set holds."""
    return (-dataset["reward"]).astype(int).tolist()


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
        rows.append((data["observations"][i], data["actions"][i], data["rewards"][i], data["observations"][i + 1]))
        rows[-1] += (float(data["terminals"][i]),)
        count += 1
    return [np.array(column, np.float32) for column in zip(*rows)]


# --- A file that can be used


def test_timeouts_are_dropped_and_terminals_kept(script, tmp_path):
    """Three episodes: 0-2 ends by timeout, 3-5 by a terminal step, 6-8 with the file."""
    data = load(script, tmp_path / "a.hdf5", steps(9, terminals=[5], timeouts=[2]))
    assert rows_kept(data) == [0, 1, 3, 4, 5, 6, 7]
    assert data["done"].tolist() == [0, 0, 0, 0, 1, 0, 0]
    assert (data["next_obs"] == data["obs"] + 1).all()
    assert [*data] == ["obs", "action", "reward", "next_obs", "done"]
    assert {array.dtype for array in data.values()} == {np.dtype("float32")}
    assert [array.shape[1:] for array in data.values()] == [(OBS_DIM,), (ACTION_DIM,), (), (OBS_DIM,), ()]


def test_a_step_that_is_terminal_and_timeout_is_dropped(script, tmp_path):
    assert rows_kept(load(script, tmp_path / "a.hdf5", steps(5, terminals=[2], timeouts=[2]))) == [0, 1, 3]


def test_without_timeouts_episodes_end_at_the_step_limit(script, tmp_path):
    assert rows_kept(load(script, tmp_path / "a.hdf5", steps(8), max_steps=3)) == [0, 1, 3, 4, 6]


def test_after_a_terminal_step_d4rl_counts_from_one(script, tmp_path):
    """The episode that begins at row 2 is cut a step early: at row 3, where three steps would reach to row 4."""
    data = load(script, tmp_path / "a.hdf5", steps(8, terminals=[1]), max_steps=3)
    assert rows_kept(data) == [0, 1, 2, 4, 5]
    assert data["done"].tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("with_timeouts", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_random_files_load_as_in_d4rl(script, tmp_path, seed, with_timeouts):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(50, 400))
    data = {"observations": rng.normal(size=(n, OBS_DIM)), "actions": rng.uniform(-1, 1, (n, ACTION_DIM))}
    data |= {"rewards": rng.normal(size=n), "terminals": rng.random(n) < 0.1}
    data |= {"timeouts": rng.random(n) < 0.1} if with_timeouts else {}
    loaded = load(script, tmp_path / "a.hdf5", data, max_steps=int(rng.integers(2, 12)) if with_timeouts else 7)
    for mine, theirs in zip(loaded.values(), plain_loop(data, 7), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_columns_and_other_types_are_taken(script, tmp_path):
    """(n, 1) columns, float64, integers for flags."""
    plain = steps(9, terminals=[5], timeouts=[2])
    other = plain | {name: plain[name][:, None].astype(np.float64) for name in ("rewards", "terminals")}
    other["timeouts"] = plain["timeouts"][:, None].astype(np.uint8)
    one, two = (load(script, tmp_path / f"{i}.hdf5", data) for i, data in enumerate((plain, other)))
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


def test_actions_outside_the_range_are_clipped_and_counted(script, tmp_path, capsys):
    data = steps(9)
    data["actions"][[1, 4]] = [[1.5, -3.0], [0.5, 1.0001]]
    loaded = load(script, tmp_path / "a.hdf5", data)
    assert loaded["action"][1].tolist() == [1, -1] and loaded["action"][4].tolist() == [0.5, 1]
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "a.hdf5: 2 of 9 actions" in error
    load(script, tmp_path / "b.hdf5", steps(9))
    assert capsys.readouterr().err == ""


# --- A file that cannot


def with_value(name, row, value):
    data = steps(9)
    data[name] = data[name].astype(np.float32)
    data[name][row] = value
    return data


BAD = {
    "missing array": (steps(9, rewards=None), "rewards"),
    "text": (steps(9, actions=np.array([[b"left", b"up"]] * 9)), "actions is not an array of numbers"),
    "shorter": (steps(9, rewards=np.zeros(8)), r"rewards has shape \(8,\)"),
    "longer timeouts": (
        steps(9, timeouts=[], terminals=[]) | {"timeouts": np.zeros(10)},
        r"timeouts has shape \(10,\)",
    ),
    "too many dimensions": (steps(9, rewards=np.zeros((9, 2))), r"rewards has shape \(9, 2\)"),
    "too few dimensions": (steps(9, actions=np.zeros(9)), r"actions has shape \(9,\)"),
    "a number": (steps(9, observations=np.float32(1)), r"observations has shape \(\)"),
    "observations of another size": (steps(9, observations=np.zeros((9, 4))), r"observations .*\(9, 4\).*\(9, 3\)"),
    "actions of another size": (steps(9, actions=np.zeros((9, 3))), r"actions .*\(9, 3\).*\(9, 2\)"),
    "NaN": (with_value("observations", [4, 7], np.nan), "observations has 6 NaN or infinite .* row 4"),
    "infinity": (with_value("rewards", 8, -np.inf), "rewards has 1 NaN or infinite .* row 8"),
    "NaN flag": (with_value("terminals", 2, np.nan), "terminals has 1 NaN or infinite .* row 2"),
    "timeouts only": (steps(9, timeouts=range(9)), "no usable transition"),
    "one step": (steps(1), "no usable transition"),
    "no step": (steps(0), "no usable transition"),
}


@pytest.mark.parametrize("data, problem", BAD.values(), ids=BAD)
def test_bad_arrays(script, tmp_path, data, problem):
    """One line, which begins with the file and says what is wrong."""
    path = tmp_path / "bad.hdf5"
    with pytest.raises(script.InputError, match=problem) as error:
        load(script, path, data)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


def test_bad_files(script, tmp_path):
    """Not HDF5, empty, cut short, and a group where an array should be."""
    path = write(tmp_path / "whole.hdf5", steps(1000))
    for name, content in {"text": b"observations,actions\n", "empty": b"", "cut": path.read_bytes()[:9000]}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(script.InputError, match=f"{name}: "):
            script.load_dataset(tmp_path / name, OBS_DIM, ACTION_DIM, 100)
    with h5py.File(path, "a") as file:
        del file["actions"]
        file.create_group("actions")
    with pytest.raises(script.InputError, match="whole.hdf5: "):
        script.load_dataset(path, OBS_DIM, ACTION_DIM, 100)


# --- Tasks


def paper_tasks():
    kinds = ("random", "medium", "medium-replay", "medium-expert", "expert")
    gym = [f"{name}-{kind}" for name in ("hopper", "halfcheetah", "walker2d") for kind in kinds]
    return gym, [f"{n}-{k}" for n in ("pen", "hammer", "door", "relocate") for k in ("human", "cloned", "expert")]


def test_the_papers_27_tasks_with_their_versions(script):
    gym, adroit = paper_tasks()
    assert len(gym + adroit) == 27
    names = {f"{task}-v{v}" for task in gym for v in (0, 1, 2)} | {f"{task}-v{v}" for task in adroit for v in (0, 1)}
    assert set(script.task_files()) - {"door-demo"} == names


def test_files_of_the_tasks(script):
    """A few of each kind by hand; all 69 rows of D4RL's own table are in the next test, where that table is at hand."""
    expected = {
        "hopper-random-v0": "gym_mujoco/hopper_random.hdf5",
        "hopper-medium-replay-v0": "gym_mujoco/hopper_mixed.hdf5",
        "walker2d-medium-replay-v0": "gym_mujoco/walker_mixed.hdf5",
        "halfcheetah-medium-replay-v1": "gym_mujoco_v1/halfcheetah_medium_replay-v1.hdf5",
        "hopper-medium-expert-v2": "gym_mujoco_v2/hopper_medium_expert-v2.hdf5",
        "pen-human-v0": "hand_dapg/pen-v0_demos_clipped.hdf5",
        "hammer-cloned-v0": "hand_dapg/hammer-demos-v0-bc-combined.hdf5",
        "door-expert-v0": "hand_dapg/door-v0_expert_clipped.hdf5",
        "relocate-human-v1": "hand_dapg_v1/relocate-human-v1.hdf5",
        "door-cloned-v1": "hand_dapg_v1/door-cloned-v1.hdf5",
    }
    files = script.task_files()
    assert {task: files[task] for task in expected} == expected


def test_scores_of_reference_returns(script):
    """D4RL's returns of a random and an expert policy score 0 and 100, whatever the task's version; arrays keep shape."""
    for task, low, high in (
        ("hopper-medium", -20.272305, 3234.3), ("halfcheetah-expert-v2", -280.178953, 12135.0),
        ("walker2d-random-v1", 1.629008, 4592.3), ("pen-human", 96.262799, 3076.8331017826877),
        ("hammer-cloned-v0", -274.856578, 12794.134825156867), ("door-demo", -56.512833, 2880.5693087298737),
        ("relocate-expert-v1", -6.425911, 4233.877797728884),
    ):  # fmt: skip
        returns = np.array([[low, high], [(low + high) / 2, 2 * high - low]])
        np.testing.assert_allclose(script.normalized_score(task, returns), [[0, 100], [50, 200]], atol=1e-9)


@pytest.mark.skipif(
    not TASKS.exists(), reason="needs D4RL's own table, shared/paper/d4rl_tasks.json beside the repository"
)
def test_all_rows_of_d4rls_table(script):
    table = json.loads(TASKS.read_text())
    assert len(table) == 69
    assert {task: row["path"] for task, row in table.items()} == {
        task: file for task, file in script.task_files().items() if task != "door-demo"
    }
    for task, row in table.items():
        assert script.normalized_score(task, np.array([row["ref_min"], row["ref_max"]])) == pytest.approx([0, 100])


def test_where_a_file_is_looked_for(script, tmp_path, monkeypatch):
    """--dataset-path before data/ beside the script before the cache; the version is 0 where none is given."""
    monkeypatch.setattr(script, "__file__", str(tmp_path / "project" / "script.py"))
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "cache"))
    name = "door-v0_demos_clipped.hdf5"
    places = [tmp_path / "cache" / name, tmp_path / "project" / "data" / name, tmp_path / "own.hdf5"]
    for place, given in zip(places, (None, None, str(places[2]))):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        for task in ("door-human", "door-human-v0"):
            assert script.find_dataset(task, given)[0] == place
    monkeypatch.delenv("D4RL_DATASET_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / ".d4rl" / "datasets" / "pen-expert-v1.hdf5"
    home.parent.mkdir(parents=True)
    home.touch()
    assert script.find_dataset("pen-expert-v1", None)[0] == home


def test_a_missing_file(script, tmp_path, monkeypatch):
    """Where it will be, and its address at D4RL; test_download.py fetches. A path that is given must be there."""
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    address = "http://rail.eecs.berkeley.edu/datasets/offline_rl/gym_mujoco/hopper_mixed.hdf5"
    assert script.find_dataset("hopper-medium-replay", None) == (tmp_path / "hopper_mixed.hdf5", address)
    with pytest.raises(script.InputError, match="nowhere.hdf5"):
        script.find_dataset("door-human", str(tmp_path / "nowhere.hdf5"))


@pytest.mark.parametrize("task, near", [("door-humna", "door-human"), ("hoper-medium-v2", "hopper-medium-v2")])
def test_an_unknown_task_gets_the_nearest_names(script, task, near):
    with pytest.raises(script.InputError, match=rf"{task}.*\b{near}\b"):
        script.find_dataset(task, None)


@pytest.mark.parametrize("task", ["chess", "door", "door-human-v2", "hopper-human", "hopper-medium-v3"])
def test_an_unknown_task_is_refused(script, task):
    with pytest.raises(script.InputError, match=f"--env-id {task}: "):
        script.find_dataset(task, None)


# --- Arguments


def numeric(script):
    return [field for field in dataclasses.fields(script.Args) if field.type in (int, float)]


def test_numbers_below_their_range(script):
    """Every numeric argument refuses -1; every count but those that may be 0 refuses 0."""
    assert len(numeric(script)) >= 20
    for field in numeric(script):
        flag = "--" + field.name.replace("_", "-")
        with pytest.raises(script.InputError, match=f"{flag} -1"):
            script.Args(**{field.name: field.type(-1)})
        if field.type is int and field.name not in ("seed", "warmup_steps"):
            with pytest.raises(script.InputError, match=f"{flag} 0"):
                script.Args(**{field.name: 0})
        if field.type is float:
            for value in (float("nan"), float("inf")):
                with pytest.raises(script.InputError, match=flag):
                    script.Args(**{field.name: value})


def test_numbers_above_their_range(script):
    above = {"gamma": 1.001, "tau": 1.001, "lmbda": 1.001, "seed": 2**32}
    above |= {"dropout": 1.0, "passes": 1} if script is uwac else {}
    for name, value in above.items():
        with pytest.raises(script.InputError, match=f"--{name} "):
            script.Args(**{name: value})


def test_numbers_at_the_edge_of_their_range(script):
    edges = {"gamma": 1.0, "tau": 1.0, "lmbda": 0.0, "warmup_steps": 0, "seed": 2**32 - 1, "num_seeds": 1}
    edges |= {"dropout": 0.0, "passes": 2} if script is uwac else {}
    args = script.Args(**edges)
    assert {name: getattr(args, name) for name in edges} == edges


def test_defaults_that_depend_on_the_task(script):
    """Laplacian kernel on hopper and walker2d (BEAR's author); spectral norm on Adroit (paper, section 4.5)."""
    for task, kernel, adroit in (
        ("hopper-medium", "laplacian", False), ("walker2d-expert-v2", "laplacian", False),
        ("halfcheetah-random", "gaussian", False), ("door-human", "gaussian", True), ("pen-cloned", "gaussian", True),
        ("hammer-expert", "gaussian", True), ("relocate-human-v1", "gaussian", True), ("door-demo", "gaussian", True),
    ):  # fmt: skip
        assert script.Args(env_id=task).mmd_kernel == kernel
        if script is uwac:
            assert script.Args(env_id=task).spectral_norm is adroit
            assert script.Args(env_id=task, spectral_norm=not adroit).spectral_norm is not adroit
    assert script.Args(env_id="hopper-medium", mmd_kernel="gaussian").mmd_kernel == "gaussian"


# --- The command line


def error_line(stderr):
    """The one line that the user gets; Gymnasium-Robotics may have printed a notice on import before."""
    lines = [line for line in stderr.splitlines() if not line.startswith("AdroitHand")]
    assert len(lines) == 1 and lines[0].startswith("error: "), stderr
    return lines[0]


@pytest.mark.parametrize(
    "words, says",
    [
        (["--env-id", "door-demo", "--dataset-path", "bad.hdf5"], "bad.hdf5: "),
        (["--env-id", "pen-human", "--dataset-path", "door.hdf5"], r"door.hdf5: observations .*\(50, 39\).*\(50, 45\)"),
        (["--env-id", "door-human", "--dataset-url", "http://127.0.0.1:9/x"], "door-demo"),
        (["--env-id", "dor-human"], "door-human"),
        (["--env-id", "door-demo", "--total-steps", "-5"], "--total-steps -5"),
        (["--env-id", "door-demo", "--num-seeds", "0"], "--num-seeds 0"),
        (["--evaluate", "nothing-here"], "nothing-here"),
    ],
)
def test_command_line_says_what_is_wrong_and_writes_nothing(script, words, says, tmp_path, monkeypatch, capsys):
    """The script as __main__ in this process, which saves the imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    Path("bad.hdf5").write_text("not HDF5")
    door = {"observations": np.zeros((50, 39)), "actions": np.zeros((50, 28))}
    write("door.hdf5", door | {"rewards": np.zeros(50), "terminals": np.zeros(50)})
    monkeypatch.setattr(sys, "argv", [script.__file__, *words])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(script.__file__, run_name="__main__")
    assert end.value.code == 2
    assert re.search(says, error_line(capsys.readouterr().err))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.hdf5", "door.hdf5"]


def test_command_line_in_a_process_of_its_own(script, tmp_path):
    data = steps(9, observations=np.full((9, 39), np.nan), actions=np.zeros((9, 28)))
    write(tmp_path / "nan.hdf5", data)
    command = [sys.executable, script.__file__, "--env-id", "door-demo", "--dataset-path", "nan.hdf5"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "nan.hdf5: observations has 351 NaN" in error_line(done.stderr)
    assert not (tmp_path / "runs").exists()


def test_dropout_of_1_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["uwac.py", "--env-id", "door-demo", "--dropout", "1"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(uwac.__file__, run_name="__main__")
    assert end.value.code == 2 and "--dropout 1" in error_line(capsys.readouterr().err)
