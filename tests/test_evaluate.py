"""benchmark/measure/evaluate.py: who plays, and what stays of it."""

import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import Point, command_line, short

import bear
import uwac
from benchmark.measure import evaluate
from benchmark.variants import ensembles


def records(file="run/evaluation.json"):
    return {(one["policy"], one["candidates"]): one for one in json.loads(Path(file).read_text())}


@pytest.mark.parametrize("script", [bear, uwac, ensembles], ids=["bear", "uwac", "ensembles"])
def test_the_last_evaluation_again(points, script, monkeypatch, capsys):
    """An environment of one's own has no score, so that is the return."""
    args = short(script, num_seeds=2, seed=3, eval_episodes=4)
    main = getattr(script, "main", uwac.main)
    result = main(args, agent_type=script.Agent, update=script.update)
    last = result["history"][-1]
    capsys.readouterr()
    words = "run --episodes 4 --candidates 3 5 --policies best sample --seed"
    assert command_line(evaluate, f"{words} 3", monkeypatch) == 0
    again = {key: np.array(one["returns"]) for key, one in records().items()}
    assert list(again) == [("best", 3), ("best", 5), ("sample", 1)]
    assert again["best", 3].mean(1).tolist() == last["score"]  # the return
    assert again["sample", 1].mean(1).tolist() == last["score_sample"]
    assert (again["best", 3] != again["best", 5]).all()
    one, two = last["score"]
    numbers = f"return {(one + two) / 2:.1f} ± {abs(one - two) / 2:.1f}"
    where = f"run, {result['algorithm']} on Point-v0, 6 updates, best of 3, 2 agents x 4 episodes"
    assert capsys.readouterr().out.splitlines()[0] == f"{where}: {numbers}"
    assert command_line(evaluate, f"{words} 4", monkeypatch) == 0
    assert (np.array(records()["best", 3]["returns"]) != again["best", 3]).all()


def test_a_later_call_adds_to_what_is_there(points, monkeypatch, refused):
    """What goes wrong leaves what was there, and no environment open."""
    closed = []
    monkeypatch.setattr(Point, "close", lambda self: closed.append(1))
    uwac.main(short(uwac, num_seeds=2))
    closed.clear()
    assert command_line(evaluate, "run --episodes 2 --policies sample vae", monkeypatch) == 0
    assert len(closed) == 4
    first = records()
    assert command_line(evaluate, "run --episodes 2 --policies vae mean", monkeypatch) == 0
    assert command_line(evaluate, "run --episodes 1 --policies mean", monkeypatch) == 0
    before = Path("run/evaluation.json").read_bytes()
    found = [(one["policy"], one["episodes"], one["step"]) for one in json.loads(before)]
    assert found == [("sample", 2, 6), ("vae", 2, 6), ("mean", 2, 6), ("mean", 1, 6)]
    assert records().items() >= first.items()

    returns = iter([np.ones((2, 2)), np.full((2, 2), np.nan)])
    monkeypatch.setattr(uwac, "evaluate", lambda *args: next(returns, np.zeros((2, 2))))
    closed.clear()
    words = "run --episodes 2 --policies best sample --candidates 2"
    assert "error: run: a return in Point-v0 is not finite" in refused(words, evaluate)
    assert len(closed) == 4
    *others, last = json.loads(Path("run/evaluation.json").read_text())
    assert (others, last["policy"]) == (json.loads(before), "best")

    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError("No space left on device")))
    before = Path("run/evaluation.json").read_bytes()
    assert "error: No space left" in refused(words, evaluate)
    assert Path("run/evaluation.json").read_bytes() == before
