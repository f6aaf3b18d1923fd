"""The scripts used from Python, in a notebook, on data of one's own."""

import json
import shutil

import gymnasium as gym
import nbclient
import nbformat
import numpy as np
from conftest import ROOT, short


def test_data_of_a_random_policy_in_pendulum(script, tmp_path, monkeypatch):
    """Its actions, [-2, 2], are scaled to [-1, 1]; the score is the return. The policy acts:
    (N, D) for all seeds, or (S, N, D)."""
    monkeypatch.chdir(tmp_path)
    env = gym.make("Pendulum-v1")
    rng = np.random.default_rng(0)
    rows = []
    obs, _ = env.reset(seed=0)
    for _ in range(300):
        action = rng.uniform(-1, 1, 1)
        next_obs, reward, terminated, truncated, _ = env.step(2 * action)
        rows.append((obs, action, reward, terminated, truncated))
        obs = env.reset()[0] if truncated else next_obs
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    dataset = dict(zip(names, map(np.array, zip(*rows))))
    changes = {"env_id": "Pendulum-v1", "dataset_path": None, "num_seeds": 2}
    result = script.main(short(script, **changes), dataset=dataset)
    assert result["transitions"] == 298
    for row in result["history"]:
        assert np.allclose(row["score"], row["return"]) and -2000 < row["return"][0] < 0

    agent, _ = script.load_checkpoint("run")
    obs = dataset["observations"]
    action = agent.act(obs)
    assert action.shape == (2, 300, 1)
    assert np.abs(action).max() <= 1 and action.std() > 0
    assert agent.act(np.stack([obs, obs])).shape == (2, 300, 1)


def test_a_notebook_of_three_cells(tmp_path):
    """A copy of the script in an empty folder: train, with a bar; act; train again."""
    shutil.copy(ROOT / "uwac.py", tmp_path)
    data = ROOT / "data" / "door-demo.hdf5"
    settings = "total_steps=4, eval_every=2, eval_episodes=1, eval_candidates=3, batch_size=8, "
    settings += "variance='analytic', num_candidates=2, num_mmd_samples=2"
    train = f"uwac.main(uwac.Args('door-demo', {str(data)!r}, run_dir='run', {settings}))"
    act = "agent.act(uwac.np.zeros((5, 39)), num_candidates=3)"
    cells = [
        f"import uwac\nresult = {train}",
        f"agent, _ = uwac.load_checkpoint('run')\nprint({act}.shape)",
        "result = uwac.main(uwac.Args(resume='run', total_steps=6))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": tmp_path}}).execute()
    shown = []
    for cell in notebook.cells:
        streams = {"stdout": "", "stderr": ""}
        for output in cell.outputs:
            streams[output.get("name", "stdout")] += output.get("text", "")
        shown.append(streams)
    assert "4/4" in shown[0]["stderr"] and "updates/s" in shown[0]["stderr"]  # the bar
    assert "4/4 [" in shown[0]["stdout"] and "mmd " in shown[0]["stdout"]  # the lines
    assert shown[1]["stdout"] == "(1, 5, 28)\n"
    history = json.loads((tmp_path / "run" / "result.json").read_text())["history"]
    assert [row["step"] for row in history] == [2, 4, 6]
