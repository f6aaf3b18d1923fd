"""The scripts used from Python, in a notebook, on data of one's own."""

import json
import shutil

import nbclient
import nbformat
import numpy as np
from conftest import ROOT, short


def test_arrays_and_an_environment_of_ones_own(script, points):
    """Actions have its units, [-2, 2]; the score is the return. The policy acts: (N, D) for all
    seeds, or (S, N, D)."""
    points["actions"] = points["actions"] * 2
    result = script.main(short(script, dataset_path=None, num_seeds=2), dataset=points)
    assert result["transitions"] == 40
    for row in result["history"]:
        assert np.allclose(row["score"], row["return"]) and row["return"][0] > 0

    agent, _ = script.load_checkpoint("run")
    obs = points["observations"]
    action = agent.act(obs)
    assert action.shape == (2, 50, 2)
    assert 1 < np.abs(action).max() <= 2
    assert agent.act(np.stack([obs, obs])).shape == (2, 50, 2)
    mean = agent.act(obs, deterministic=True)
    assert np.allclose(agent.act(obs[7], deterministic=True), mean[:, 7])
    assert agent.act(obs[7]).shape == (2, 2)


def test_a_notebook_of_three_cells(tmp_path):
    """A copy of the script in an empty folder: train, with a bar; act; train again."""
    shutil.copy(ROOT / "uwac.py", tmp_path)
    settings = f"dataset_path='{ROOT}/data/door-demo.hdf5', "
    settings += "total_steps=4, eval_every=2, eval_episodes=1, batch_size=8, variance='analytic'"
    train = f"uwac.main(uwac.Args('door-demo', run_dir='run', {settings}))"
    act = "agent.act(uwac.np.zeros((5, 39)), num_candidates=3)"
    cells = [
        f"import uwac\nresult = {train}",
        f"agent, _ = uwac.load_checkpoint('run')\nprint({act}.shape)",
        "from dataclasses import replace\nlonger = replace(agent.args, resume='run', total_steps=6)",
        "result = uwac.main(longer)",
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
