"""The scripts used from Python, in a notebook, on data of one's own."""

import json
import shutil
import threading
from pathlib import Path

import gymnasium as gym
import nbclient
import nbformat
import numpy as np
import pytest
from conftest import ROOT, short

import uwac


@pytest.fixture(autouse=True)
def arrays(points):
    return points


def test_twice_in_a_process_and_in_a_thread(script):
    """The same arguments, the same numbers."""
    results = [script.main(short(script, run_dir="one")), script.main(short(script, run_dir="two"))]

    def run():
        results.append(script.main(short(script, run_dir="three")))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    histories = []
    for result in results:
        for row in result["history"]:
            del row["seconds"]
        histories.append(result["history"])
    assert len(histories) == 3 and histories[0] == histories[1] == histories[2]


def test_data_of_a_random_policy_in_pendulum(script):
    """Its actions, [-2, 2], are scaled to [-1, 1]; the score is the return, and says so."""
    envs = gym.make("Pendulum-v1")
    rows, (obs, _) = [], envs.reset(seed=0)
    for _ in range(300):
        action = np.random.default_rng(len(rows)).uniform(-1, 1, 1)
        next_obs, reward, terminated, truncated, _ = envs.step(2 * action)
        rows.append((obs, action, reward, terminated, truncated))
        obs = envs.reset()[0] if truncated else next_obs
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    dataset = dict(zip(names, map(np.array, zip(*rows))))
    changes = {"env_id": "Pendulum-v1", "dataset_path": None, "eval_episodes": 2}
    result = script.main(short(script, **changes, run_dir="run"), dataset=dataset)
    assert result["transitions"] == 298
    assert result["score"] == "raw return"
    for row in result["history"]:
        assert row["score"] == row["return"] and -2000 < row["return"][0] < 0

    agent, saved = script.load_checkpoint("run")
    action = agent.act(dataset["observations"])
    assert saved["step"] == 6 and action.shape == (1, 300, 1)
    assert np.abs(action).max() <= 1 and action.std() > 0


def without(arrays, name):
    return {key: array for key, array in arrays.items() if key != name}


WRONG = {
    "actions": np.zeros((50, 7)),
    "terminals": np.zeros(49),
    "observations": np.full((50, 3), np.nan),
    "rewards": np.array(["a"] * 50),
}


@pytest.mark.parametrize("name", [None, *WRONG])
def test_wrong_arrays(script, arrays, name):
    """Missing, of a wrong shape or length, not finite, text."""
    wrong = {"rewards": arrays["rewards"]} if name is None else arrays | {name: WRONG[name]}
    with pytest.raises(script.InputError, match="arrays from Python: ") as error:
        script.main(short(script), dataset=wrong)
    assert "\n" not in str(error.value) and not Path("runs").exists()


class Odd(gym.Env):
    """Observations that are no vector."""

    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, space, render_mode=None):
        self.observation_space = space


SPACES = [gym.spaces.Discrete(3), gym.spaces.Dict({}), gym.spaces.Box(0, 255, (8, 8))]


@pytest.mark.parametrize("space", SPACES)
def test_observations_must_be_vectors(script, arrays, space):
    gym.register("Odd-v0", lambda render_mode=None: Odd(space))
    with pytest.raises(script.InputError, match="Odd-v0"):
        script.main(short(script, env_id="Odd-v0"), dataset=arrays)


WRONG_ARGS = [("variance", "typo"), ("weighting", "typo"), ("mmd_kernel", "typo"), ("seed", 1.5)]
WRONG_ARGS += [("gamma", 2), ("gamma", "0.9"), ("batch_size", "8"), ("tau", float("nan"))]
WRONG_ARGS += [("total_steps", 0), ("log_every", 0), ("dropout", 1.0), ("dataset_path", 3)]


@pytest.mark.parametrize("name, value", WRONG_ARGS)
def test_wrong_arguments(name, value):
    with pytest.raises(uwac.InputError, match=f"--{name.replace('_', '-')} "):
        uwac.Args(**{name: value})


def test_an_integer_where_a_float_is_meant():
    args = uwac.Args(gamma=1, beta=2)
    assert (args.gamma, args.beta) == (1, 2)
    with pytest.raises(uwac.InputError, match="--dropout 1"):
        uwac.Args(dropout=1)


def test_act(script):
    """(N, D) for all seeds, or (S, N, D); the more candidates, the larger Q1."""
    script.main(short(script, run_dir="run", num_seeds=2, total_steps=1))
    agent, _ = script.load_checkpoint("run")
    obs = np.random.default_rng(0).normal(size=(40, 3))
    found = []
    for num in (1, 50):
        action = agent.act(obs, num_candidates=num)
        assert action.shape == (2, 40, 2) and np.abs(action).max() <= 1
        tensors = (script.torch.as_tensor(x, dtype=script.torch.float32) for x in (obs, action))
        obs_tensor, action = (x.to(script.DEVICE).expand(2, 40, -1) for x in tensors)
        found.append(agent.critic(obs_tensor, action)[0].mean().item())
    assert found[0] < found[1]
    assert agent.act(np.stack([obs, obs])).shape == (2, 40, 2)


def test_a_notebook_of_three_cells(tmp_path):
    """A copy of the script in an empty folder: train, with a bar; act; train again."""
    shutil.copy(ROOT / "uwac.py", tmp_path)
    data = ROOT / "data" / "door-demo.hdf5"
    settings = "total_steps=4, eval_every=2, eval_episodes=1, eval_candidates=3, batch_size=8, "
    settings += "variance='analytic', num_candidates=2, num_mmd_samples=2"
    train = f"args = uwac.Args('door-demo', {str(data)!r}, run_dir='one', {settings})\n"
    cells = [
        f"import uwac\n{train}result = uwac.main(args)",
        "agent, saved = uwac.load_checkpoint('one')\n"
        "print(agent.act(uwac.np.zeros((5, 39)), num_candidates=3).shape)",
        "result = uwac.main(uwac.replace(args, run_dir='two', seed=1))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    done = nbclient.NotebookClient(notebook, resources={"metadata": {"path": tmp_path}}).execute()
    shown = []
    for cell in done.cells:
        streams = {"stdout": "", "stderr": ""}
        for output in cell.outputs:
            streams[output.get("name", "stdout")] += output.get("text", "")
        shown.append(streams)
    for cell in (shown[0], shown[2]):
        assert "4/4" in cell["stderr"] and "updates/s" in cell["stderr"]  # the bar
        assert "step 2: " in cell["stdout"] and "step 4: " in cell["stdout"]
    assert shown[1]["stdout"] == "(1, 5, 28)\n"
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two")]
    assert results[0]["history"][0]["mmd"] != results[1]["history"][0]["mmd"]
