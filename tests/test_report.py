"""benchmark/report.py on results made by hand: numbers to the digit, what is averaged, figures."""

import csv
import json
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import report
from lib import curves, policies


def result(method="bear", seed=0, scores=(10.0, 20.0), warmup=100, env_id="door-human", **args):
    """One seed, an evaluation every 100 updates; Q targets are half of the scores, and a sample's
    scores a tenth."""
    args |= {"env_id": env_id, "seed": seed, "num_seeds": 1, "warmup_steps": warmup}
    history = []
    for i, score in enumerate(scores, 1):
        row = {"step": 100 * i, "seconds": 3600.0 * i, "score": [score], "target_q": [score / 2]}
        history.append(row | {"score_sample": [score / 10], "mmd": [0.1], "ood_auroc": [0.5]})
    args |= {"mmd_threshold": 0.07, "gamma": 0.99}
    found = {"algorithm": method.split("-")[0], "args": args, "history": history}
    found |= {"data": {"path": "a.hdf5"}, "transitions": 6704, "hardware": "CPU, 1 thread"}
    return found | ({} if method in ("bear", "uwac", "ensembles") else {"method": method})


def save(folder, *results):
    for i, one in enumerate(results):
        (folder / f"{i}.json").write_text(json.dumps(one))
    return report.Args(results=(folder,), folder=folder / "report")


def table(args, name):
    report.main(args)
    with open(args.folder / f"{name}.csv") as file:
        return list(csv.DictReader(file))


def evaluation(scores, step=200, policy="sample", candidates=1):
    """A record of evaluation.json, of scores (agents, episodes)."""
    found = {"step": step, "policy": policy, "candidates": candidates, "seed": 0}
    return found | {"scores": scores, "episodes": len(scores[0])}


@pytest.fixture(autouse=True)
def figures(monkeypatch):
    """Names of those that are drawn."""
    drawn = []

    def save(figure, path):
        plt.close(figure)
        drawn.append(path.name)

    for module in (curves, policies):
        monkeypatch.setattr(module, "save", save)
    return drawn


def test_numbers_of_a_row(tmp_path):
    """The mean of the last ten evaluations after the warm-up; of fewer than ten the last."""
    one = result(scores=[1, 2, 3, 4, 5, 6, 7, 8, 9, 30, 10, 11])
    two = result(seed=1, scores=[2.0 * i for i in range(12)])
    (row,) = table(save(tmp_path, one, two), "runs")
    assert row["method"] == "BEAR" and row["protocol"] == "1,200 updates, warm-up 100"
    numbers = {name: float(row[name] or "nan") for name in list(row)[4:]}
    assert numbers["seeds"] == 2 and numbers["evaluations"] == 10
    assert numbers["score"] == pytest.approx((9.3 + 13) / 2)
    assert numbers["score std"] == pytest.approx(3.7 / math.sqrt(2))
    assert numbers["sample"] == pytest.approx(numbers["score"] / 10)
    assert numbers["Q target"] == (5.5 + 11) / 2 and numbers["hours"] == 12
    for warmup, score, evaluations in ((200, "7.5", 10), (300, "12.0", 1), (1200, "12.0", 1)):
        again = save(tmp_path, *(result("uwac", i, range(1, 13), warmup) for i in (0, 1)))
        (row,) = table(again, "runs")
        assert row["score"] == score and float(row["evaluations"]) == evaluations
        assert ("(all in the warm-up)" in row["protocol"]) == (warmup == 1200)


def test_others_scores_and_aggregates_are_of_one_sample(tmp_path, figures):
    """Aggregates where both methods have three seeds of a task or more. A run's only evaluation
    makes no figure."""
    door = [result(method, i, [50.0]) for method in ("bear", "uwac") for i in range(3)]
    pen = [result(method, 0, [9.0], env_id="pen-expert") for method in ("bear", "uwac")]
    args = save(tmp_path, *door[:-1], *pen)
    (beside, _) = table(args, "beside")
    assert [beside[f"here: {name}"] for name in ("BEAR", "UWAC")] == ["5.0", "5.0"]
    assert (beside["paper: UWAC"], beside["paper: BC"]) == ("10.7", "0.5")
    assert not (args.folder / "aggregates.csv").exists() and not figures
    (row,) = table(save(tmp_path, *pen, *door), "aggregates")
    names = "data sets", "seeds of each", "IQM", "BEAR's IQM", "P(improvement)"
    assert [float(row[name]) for name in names] == [1, 3, 5, 5, 0.5]


def test_aggregates_by_hand():
    one, other = np.array([1.0, 3.0]), np.array([2.0, 3.0])
    assert report.interquartile_mean(np.array([1.0, 8, 3, 5]), np.array([2.0, 7, 4, 6])) == 4.5
    assert report.probability_of_improvement(one, other) == (0 + 0 + 1 + 0.5) / 4
    found = report.interval("mean", lambda a, b: float(np.mean([a, b])), [one, other])
    assert found == {"mean": 2.25, "mean low": 1.5, "mean high": 3}


def test_what_differs_is_never_averaged(tmp_path):
    """Length, warm-up, precision, size of evaluations, data, and versions of an environment; but
    a task without a version is D4RL's v0."""
    args = save(
        tmp_path,
        result(),
        result(seed=1, scores=[10.0, 40.0], env_id="door-human-v0"),
        result(seed=2, scores=[50.0]),
        result(scores=[5.0, 60.0], warmup=200),
        result(scores=[5.0, 70.0], matmul_precision="medium"),
        result(scores=[5.0, 75.0], eval_every=100),
        result(scores=[5.0, 90.0]) | {"data": {"path": "a.hdf5", "sha256": "0123456789"}},
        result(scores=[5.0, 95.0], env_id="door-human-v1"),
        result(scores=[5.0], env_id="Pay-v4"),
        result(scores=[500.0], env_id="Pay-v5"),
    )
    rows = {float(row["score"]): row for row in table(args, "runs")}
    assert sorted(rows) == [5, 30, 50, 60, 70, 75, 90, 95, 500]
    assert rows[70]["protocol"] == "200 updates, warm-up 100, matmul precision medium"
    assert rows[90]["data"] == "a.hdf5, 6,704 transitions, sha256 01234567"
    tasks = {rows[score]["task"] for score in (30, 95, 500)}
    assert tasks == {"door-human", "door-human-v1", "Pay-v5"}


@pytest.mark.parametrize("label, method, args", [
    ("BEAR", "bear", {"mmd_kernel": "gaussian"}),
    ("UWAC", "uwac", {"beta": 1.6, "weighting": "variance", "spectral_norm": True}),
    ("UWAC, beta 0.8, weighting std", "uwac", {"beta": 0.8, "weighting": "std"}),
    ("UWAC (weights by std), beta 2.5", "uwac-std", {"beta": 2.5, "weighting": "std"}),
    ("ensembles, members rem", "ensembles", {"members": "rem"}),
])  # fmt: skip
def test_a_row_names_what_is_not_the_methods_default(label, method, args):
    """Also where it is the only one; what a method's name says is not said again."""
    assert report.label(result(method, **args)) == label


def test_copies_are_one_run_and_what_is_left_out_is_named(tmp_path, capsys):
    """Of a run and its copy at an earlier update the longer counts, and the policies of both."""
    for steps in (1, 2):
        copy = tmp_path / f"run-{steps}00"
        copy.mkdir()
        (copy / "result.json").write_text(json.dumps(result(scores=[10.0, 20.0][:steps])))
        found = [evaluation([[1.0 * steps, 3.0 * steps]], step=100 * steps)]
        (copy / "evaluation.json").write_text(json.dumps(found))
    args = report.Args(results=(tmp_path,), folder=tmp_path / "report")
    (row,) = table(args, "runs")
    assert row["score"] == "20.0" and row["seeds"] == "1" and not capsys.readouterr().err
    policies = [(row["updates"], row["score"], row["error"]) for row in table(args, "policies")]
    assert policies == [("100", "2.0", "1.0"), ("200", "4.0", "2.0")]
    (tmp_path / "run-100" / "evaluation.json").write_text("[{")
    (row,) = table(save(tmp_path, result(scores=[5.0]), result(scores=[]), {}), "runs")
    assert row["score"] == "20.0"
    new, nothing, damaged, other = capsys.readouterr().err.splitlines()
    assert "1.json: left out, not a result (ValueError('not evaluated yet" in new
    assert "2.json: left out, not a result (KeyError" in nothing
    assert "run-100/evaluation.json: damaged, move it away" in damaged
    assert "run-200/result.json: another has its arguments and seed" in other


def test_scores_of_policies(tmp_path, monkeypatch):
    """One agent: error over episodes. Several, here in a stack and in two runs: over agents. Of
    several evaluations the one of the most episodes; none twice."""
    lines = {}
    monkeypatch.setattr(curves, "mark", lambda axes, value, name: lines.update({name: value}))
    one = result("uwac") | {"policies": [evaluation([[1.0, 2.0, 6.0]], policy="vae")]}
    one["policies"].append(evaluation([[50.0, 70.0]], step=100, policy="vae"))
    shared = evaluation([[1.0, 2.0, 6.0], [9.0, 9.0, 9.0]], policy="vae")  # the first is UWAC's
    two = result() | {"policies": [shared, *[evaluation([[1.0, 3.0], [2.0, 4.0]])] * 2]}
    two["policies"] += [evaluation([[90.0], [95.0]])]
    three = result(seed=1) | {"policies": [evaluation([[5.0, 5.0]])]}
    args = save(tmp_path, one, two, three)
    rows = {row["method"]: row for row in table(args, "policies") if row["updates"] == "200"}
    assert len(rows) == 2 and float(rows["UWAC"]["score"]) == 3
    assert float(rows["UWAC"]["error"]) == pytest.approx(math.sqrt(7 / 3))
    assert float(rows["BEAR"]["score"]) == pytest.approx(10 / 3) and rows["BEAR"]["agents"] == "3"
    assert float(rows["BEAR"]["error"]) == pytest.approx(np.std([2, 3, 5], ddof=1) / math.sqrt(3))
    (beside,) = table(args, "beside")
    assert float(beside["here: BC, the VAE's decoder"]) == lines["BC, the VAE's decoder"] == 6
