"""benchmark/evaluate.py and report.py on runs; bc.py."""

import csv
import json
from pathlib import Path

import bc
import ensembles
import evaluate
import numpy as np
import pytest
import report
import torch
from conftest import Point, command_line, short, zeroed

import bear
import d4rl
import uwac

pytestmark = pytest.mark.usefixtures("points")


def records(file="run/evaluation.json"):
    return {(one["policy"], one["candidates"]): one for one in json.loads(Path(file).read_text())}


@pytest.mark.parametrize("script", [bear, uwac, ensembles], ids=["bear", "uwac", "ensembles"])
def test_the_last_evaluation_again(script, monkeypatch, capsys):
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
    assert again["best", 3].mean(1).tolist() == last["return"]
    assert again["sample", 1].mean(1).tolist() == last["score_sample"]  # the score is the return
    assert (again["best", 3] != again["best", 5]).all()
    one, two = last["return"]
    numbers = f"return {(one + two) / 2:.1f} ± {abs(one - two) / 2:.1f}"
    where = f"run, {result['algorithm']} on Point-v0, 6 updates, best of 3, 2 agents x 4 episodes"
    assert capsys.readouterr().out.splitlines()[0] == f"{where}: {numbers}"
    assert command_line(evaluate, f"{words} 4", monkeypatch) == 0
    assert (np.array(records()["best", 3]["returns"]) != again["best", 3]).all()


def test_policies_of_known_networks(monkeypatch):
    """The actor's mean is 0.5 with a std of exp(-2), the VAE's action 50, all before the tanh."""
    monkeypatch.setattr(evaluate, "AT_ONCE", 7)
    agent = uwac.Agent(short(uwac, num_seeds=2), 3, 2)
    zeroed(agent.actor, agent.vae.decoder)
    with torch.no_grad():
        agent.actor.layers[2].bias[:] = torch.tensor([0.5, 0.5, -2, -2])
        agent.vae.decoder.layers[2].bias.fill_(50)
    obs = np.zeros((2, 40, 3))
    mean, vae, sample = (evaluate.act(agent, who, obs, 1) for who in ("mean", "vae", "sample"))
    assert mean == pytest.approx(np.full((2, 40, 2), np.tanh(0.5)))
    assert (vae == 1).all()
    samples = np.arctanh(sample)
    assert (samples.mean(), samples.std()) == pytest.approx((0.5, np.exp(-2)), rel=0.2)
    assert len(np.unique(samples)) == 160  # no piece twice


def test_a_later_call_adds_to_what_is_there(monkeypatch, refused):
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

    def full(path, new_name):
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    before = Path("run/evaluation.json").read_bytes()
    assert "error: No space left" in refused(words, evaluate)
    assert Path("run/evaluation.json").read_bytes() == before


def test_a_report_of_a_run(monkeypatch):
    result = uwac.main(short(uwac))
    assert command_line(evaluate, "run --episodes 2 --policies vae", monkeypatch) == 0
    assert command_line(report, "run --metrics target_q weight --latex", monkeypatch) == 0
    with open("runs/report/runs.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["method"].startswith("UWAC, passes 2, batch size 8, ")
    assert float(row["Q target"]) == result["history"][-1]["target_q"][0]
    found = sorted(file.name for file in Path("runs/report").iterdir())
    pictures = "01-Point-v0-policies", "01-Point-v0-target_q-weight"
    files = [f"{name}.{end}" for name in pictures for end in ("pdf", "png")]
    files += ["policies.csv", "policies.tex", "report.md", "runs.csv", "runs.tex"]
    assert found == [*files, "written_by_report.json"]
    text = Path("runs/report/runs.tex").read_text()
    assert text.startswith("\\begin{tabular}") and row["method"] in text


def test_a_clone_of_the_data(monkeypatch):
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
