"""benchmark/variants/bc.py: behaviour cloning."""

import json
from pathlib import Path

import numpy as np
import pytest

import d4rl
import uwac
from benchmark.variants import bc


def test_a_clone_of_the_data(points, monkeypatch):
    data = d4rl.read(d4rl.download("door-demo"))
    score = d4rl.normalized_score("door-demo", data["rewards"].reshape(25, 200).sum(1).mean())
    data["actions"] = np.full_like(data["actions"], 0.6)
    monkeypatch.setattr(d4rl, "read", lambda path: data)
    played = []

    def evaluation(agent, envs, seed, num):
        played.append(agent.act(data["observations"][None, :9].repeat(2, 0), num))
        return np.array([[d4rl.TASKS["door"][2]], [d4rl.TASKS["door"][3]]])

    monkeypatch.setattr(uwac, "evaluate", evaluation)
    bc.main(bc.Args("door-demo", num_seeds=2, total_steps=400, eval_every=250, eval_episodes=1))
    result = json.loads(Path("runs/bc/door-demo.json").read_text())
    assert result["data_score"] == pytest.approx(score)
    assert result["history"][1] == {"step": 400, "scores": [[0], [100]]}
    errors = np.abs(np.array(played) - 0.6).mean((2, 3))  # (evaluations, S)
    assert (errors[1] < errors[0]).all() and errors[1].max() < 0.02
    with pytest.raises(ValueError, match=r"runs/bc/door-demo.json exists: move it away"):
        bc.main(bc.Args("door-demo", total_steps=1))
    assert json.loads(Path("runs/bc/door-demo.json").read_text()) == result
