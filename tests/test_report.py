"""benchmark/report.py on results made by hand: numbers to the digit, what is averaged, figures."""

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("seaborn", reason="benchmark/requirements.txt is not installed")
import curves
import report
import who_plays
from conftest import ROOT, short
from matplotlib.image import imread
from published import others_scores

import uwac


def result(method="bear", seed=0, scores=(10.0, 20.0), warmup=100, task="door-human-v1", **args):
    """One seed, an evaluation every 100 updates; Q targets are half of the scores, and a sample's
    scores a tenth."""
    args |= {"env_id": task, "seed": seed, "num_seeds": 1, "warmup_steps": warmup}
    args |= {"mmd_threshold": 0.07, "gamma": 0.99}
    history = []
    for i, score in enumerate(scores, 1):
        row = {"step": 100 * i, "seconds": 3600.0 * i, "score": [score], "target_q": [score / 2]}
        row |= {"score_sample": [score / 10], "mmd": [0.1], "ood_auroc": [0.5]}
        history.append(row)
    found = {"algorithm": "bear", "method": method, "args": args, "history": history}
    found |= {"data": {"path": "a.hdf5"}, "transitions": 6704, "hardware": "CPU, 1 thread"}
    return found


def save(folder, *results):
    for i, one in enumerate(results):
        (folder / f"{i}.json").write_text(json.dumps(one))
    return report.Args(results=(folder,), folder=folder / "report")


def table(args, name):
    report.main(args)
    with open(args.folder / f"{name}.csv") as file:
        return list(csv.DictReader(file))


def evaluation(scores, step=200, policy="sample", candidates=1, **changes):
    """A record of evaluation.json, of scores (agents, episodes)."""
    found = {"step": step, "policy": policy, "candidates": candidates, "seed": 0}
    found |= {"matmul_precision": "highest", "scores": scores, "episodes": len(scores[0])}
    return found | changes


def test_numbers_of_a_row_and_size_of_the_figure(tmp_path):
    """Twelve evaluations of two seeds, the first in the warm-up: the mean of the last ten."""
    one = result(scores=[1, 2, 3, 4, 5, 6, 7, 8, 9, 30, 10, 11]) | {"peak_mb": 650.0}
    two = result(seed=1, scores=[2.0 * i for i in range(12)]) | {"peak_mb": 700.0}
    args = save(tmp_path, one, two)
    (row,) = table(args, "runs")
    assert row["method"] == "BEAR" and row["protocol"] == "1,200 updates, warm-up 100"
    numbers = {name: float(row[name] or "nan") for name in list(row)[4:]}
    assert numbers["seeds"] == 2 and numbers["evaluations"] == 10
    assert numbers["score"] == pytest.approx((9.3 + 13) / 2)
    assert numbers["score std"] == pytest.approx(3.7 / math.sqrt(2))
    assert numbers["sample"] == pytest.approx(numbers["score"] / 10)
    assert numbers["Q target"] == (5.5 + 11) / 2 and numbers["highest Q target"] == (15 + 11) / 2
    assert numbers["hours"] == 12 and numbers["MB"] == 675
    text = (args.folder / "report.md").read_text()
    assert "the last ten evaluations after the warm-up, or the" in text
    picture = args.folder / "01-door-human-target_q-score-score_sample.png"
    assert picture.with_suffix(".pdf").exists() and f"({picture.name})" in text
    assert imread(picture).shape[1] > 900


@pytest.mark.parametrize("warmup, score, evaluations", [
    (200, 7.5, 10),  # evaluations 3 to 12
    (300, 12, 1),  # nine after the warm-up: the last alone
    (1200, 12, 1),
])  # fmt: skip
def test_one_rule_in_every_table(warmup, score, evaluations, tmp_path):
    """The mean of the last ten evaluations after the warm-up; of fewer than ten the last."""
    scores = range(1, 13)
    bear, uwac = (result(name, warmup=warmup, scores=scores) for name in ("bear", "uwac"))
    args = save(tmp_path, bear, uwac)
    row, _ = table(args, "runs")
    assert float(row["score"]) == score and float(row["evaluations"]) == evaluations
    assert ("(all in the warm-up)" in row["protocol"]) == (warmup == 1200)
    (beside,) = table(args, "beside")
    assert float(beside["here: BEAR"]) == float(beside["here: UWAC"]) == score
    assert (beside["paper: UWAC"], beside["paper: BC"], beside["CORL: BC"]) == (
        "10.7",
        "0.5",
        "2.34",
    )
    (aggregate,) = table(args, "aggregates")
    assert float(aggregate["IQM"]) == score and aggregate["P(improvement)"] == "0.5"
    assert aggregate["seeds of each"] == "1" and aggregate["IQM low"] == ""  # no interval


def test_protocols_are_never_averaged(tmp_path):
    """Length, warm-up, precision, size of evaluations and data each make a row of their own."""
    args = save(
        tmp_path,
        result(),
        result(seed=1, scores=[10.0, 40.0]),
        result(seed=1, scores=[50.0]),
        result(scores=[5.0, 60.0], warmup=200),
        result(scores=[5.0, 70.0], matmul_precision="medium"),
        result(scores=[5.0, 80.0]) | {"transitions": 5},
        result(scores=[5.0, 90.0]) | {"data": {"path": "a.hdf5", "sha256": "0123456789"}},
        result(scores=[5.0, 95.0], eval_candidates=1),
    )
    rows = {float(row["score"]): row for row in table(args, "runs")}
    assert sorted(rows) == [30, 60, 70, 80, 90, 95]
    assert rows[70]["protocol"] == "200 updates, warm-up 100, matmul precision medium"
    assert rows[95]["protocol"] == "200 updates, warm-up 100, eval candidates 1"
    assert rows[90]["data"] == "a.hdf5, 6,704 transitions, sha256 01234567"
    assert rows[30]["seeds"] == "2"
    assert len(list(args.folder.glob("*.png"))) == 6  # lines of different lengths share a figure


def test_a_sweep_is_labelled_by_what_differs(tmp_path):
    """Three betas, one of two seeds, beside bear and two kinds of ensembles; gamma is the same."""
    betas = [result("uwac", beta=beta, scores=[beta]) for beta in (0.8, 1.6, 2.5)]
    betas.append(result("uwac", beta=2.5, seed=1, scores=[3.5]))
    members = [result("ensembles", members=kind) for kind in ("ensemble", "rem")]
    args = save(tmp_path, *betas, result(scores=[9.0]), *members)
    rows = {row["method"]: row for row in table(args, "runs")}
    labels = ["BEAR", *(f"UWAC, beta {beta}" for beta in (0.8, 1.6, 2.5))]
    assert set(rows) == {*labels, "ensembles, members ensemble", "ensembles, members rem"}
    assert rows["UWAC, beta 2.5"]["seeds"] == "2" and rows["UWAC, beta 2.5"]["score"] == "3.0"
    named = save(tmp_path, result(None, exp_name="mine", algorithm="bear"))
    named = named.results[0] / "0.json"
    named.write_text(named.read_text().replace('"method": null, ', ""))
    assert report.read(named)["name"] == "mine"


def test_copies_at_earlier_updates_are_one_run(tmp_path, capsys):
    """The longest counts, and the policies of all; another result with the run's arguments and
    seed is named. A file that is no result is left out, with a line."""
    for steps in (1, 2):
        copy = tmp_path / f"run-{steps}00"
        copy.mkdir()
        scores = [10.0, 20.0][:steps]
        (copy / "result.json").write_text(json.dumps(result(scores=scores)))
        found = [evaluation([[1.0 * steps, 3.0 * steps]], step=100 * steps)]
        (copy / "evaluation.json").write_text(json.dumps(found))
    args = report.Args(results=(tmp_path,), folder=tmp_path / "report")
    (row,) = table(args, "runs")
    assert row["score"] == "20.0" and row["seeds"] == "1" and not capsys.readouterr().err
    policies = [(row["updates"], row["score"], row["error"]) for row in table(args, "policies")]
    assert policies == [("100", "2.0", "1.0"), ("200", "4.0", "2.0")]
    (tmp_path / "other.json").write_text(json.dumps(result(scores=[5.0, 6.0])))
    (tmp_path / "something.json").write_text("{}")
    assert len(table(args, "runs")) == 1
    errors = capsys.readouterr().err.splitlines()
    assert re.search("run-100/result.json: another has its arguments and seed", errors[0])
    assert re.search("something.json: left out, not a result .KeyError", errors[-1])


def test_scores_of_policies(tmp_path):
    """One agent: error over episodes. Several, here in a stack and in two runs: over agents. Of
    several evaluations the one of the most episodes; at full precision; none twice."""
    one = result("uwac") | {"policies": [evaluation([[1.0, 2.0, 6.0]], policy="vae")]}
    two = result() | {"policies": [evaluation([[1.0, 3.0], [2.0, 4.0]])] * 2}
    again = evaluation([[90.0], [95.0]])
    blurred = evaluation([[9.0, 9.0], [9.0, 9.0]], matmul_precision="medium")
    two["policies"] += [again, blurred]
    three = result(seed=1) | {"policies": [evaluation([[5.0, 5.0]])]}
    args = save(tmp_path, one, two, three)
    rows = {row["method"]: row for row in table(args, "policies")}
    assert len(rows) == 2
    assert float(rows["UWAC"]["score"]) == 3
    assert float(rows["UWAC"]["error"]) == pytest.approx(math.sqrt(7 / 3))
    assert float(rows["BEAR"]["score"]) == pytest.approx(10 / 3) and rows["BEAR"]["agents"] == "3"
    assert float(rows["BEAR"]["error"]) == pytest.approx(np.std([2, 3, 5], ddof=1) / math.sqrt(3))
    (beside,) = table(args, "beside")
    assert float(beside["here: BC"]) == 3
    assert imread(args.folder / "01-door-human-policies.png").shape[1] > 800


def test_panels_are_wide_and_show_what_to_compare_with(tmp_path, monkeypatch):
    """350 pixels at least; the paper's scores, chance, the threshold and what Q may be worth lie
    inside the panels; the warm-up is grey; both policies' panels share their scores."""
    figures = {}
    keep = lambda figure, path: figures.setdefault(path.name, figure)
    monkeypatch.setattr(curves, "save", keep)
    monkeypatch.setattr(who_plays, "save", keep)
    policies = [evaluation([[1.0, 2.0]], 100), evaluation([[3.0, 4.0]], policy="best")]
    both = [result(name) | {"policies": policies} for name in ("bear", "uwac")]
    for one in both:
        one["data"]["mean_reward"] = 0.5
    args = save(tmp_path, *both)
    args.metrics = ("target_q", "score", "mmd", "ood_auroc", "score_sample")
    report.main(args)
    (of_policies,) = [figure for name, figure in figures.items() if "policies" in name]
    (of_metrics,) = [figure for name, figure in figures.items() if "score" in name]
    marked = []
    for axes in (*of_metrics.axes, *of_policies.axes):
        assert axes.get_window_extent().width * 100 / axes.figure.dpi >= 350
        assert axes.get_xlim()[0] == 0 and any("warm-up" in one.get_text() for one in axes.texts)
        low, high = axes.get_ylim()
        marks = {one.get_text(): one.get_position()[1] for one in axes.texts[:-1]}
        assert all(low <= value <= high for value in marks.values())
        marked.append(marks)
    paper = {"paper: UWAC": 10.7, "paper: BEAR": -0.3}
    worth = {"mean reward of the data / (1 - γ)": pytest.approx(50)}
    auroc = {"chance": 0.5, "paper, on walker2d-expert": 0.845}
    assert marked[:5] == [worth, paper, {"threshold": 0.07}, auroc, paper]
    assert marked[5:] == [{"paper: BEAR": -0.3}, {"paper: UWAC": 10.7}]
    assert [axes.get_title() for axes in of_policies.axes] == ["BEAR", "UWAC"]
    assert len({axes.get_ylim() for axes in of_policies.axes}) == 1
    (legend,) = of_metrics.legends
    assert [text.get_text() for text in legend.get_texts()] == ["BEAR", "UWAC"]


def test_a_band_covers_all_seeds_on_a_logarithmic_axis(tmp_path, monkeypatch):
    """Q targets of 50 and of 1e9 at the same update: both are in the band, and nothing below."""
    figures = {}
    monkeypatch.setattr(curves, "save", lambda figure, path: figures.setdefault(path, figure))
    args = save(tmp_path, result(scores=[2.0, 100.0]), result(seed=1, scores=[4.0, 2e9]))
    args.metrics = ("target_q",)
    report.main(args)
    (figure,) = figures.values()
    (axes,) = figure.axes
    (band,) = (one for one in axes.collections if len(one.get_paths()[0].vertices) > 4)
    low, high = band.get_paths()[0].vertices[:, 1].min(), band.get_paths()[0].vertices[:, 1].max()
    assert axes.get_yscale() == "log" and (low, high) == (1, 1e9)


def test_nothing_to_report_on(tmp_path, capsys):
    args = report.Args(results=(tmp_path,), folder=tmp_path / "report")
    for results, metrics, message in (
        ((), ("score",), "no results in"),
        ((result(),), ("MB",), "--metrics MB: there are mmd, ood"),
    ):
        save(tmp_path, *results)
        args.metrics = metrics
        with pytest.raises(SystemExit) as end:
            report.main(args)
        (line,) = capsys.readouterr().err.splitlines()
        assert end.value.code == 2 and message in line


def test_aggregates_compare_with_bear_where_both_were_run(tmp_path):
    door = result(scores=[1.0]), result("uwac", scores=[5.0]), result("uwac", 1, scores=[9.0, 9.0])
    pen = [result(method, task="pen-expert", scores=[3.0]) for method in ("bear", "uwac")]
    (row,) = table(save(tmp_path, *door, *pen), "aggregates")
    names = "data sets", "seeds of each", "IQM", "BEAR's IQM", "P(improvement)"
    assert [float(row[name]) for name in names] == [2, 1, 4, 2, 0.75]
    assert report.interquartile_mean(np.array([1.0, 8, 3, 5]), np.array([2.0, 7, 4, 6])) == 4.5
    scores = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    found = report.interval("mean", lambda a, b: float(np.mean([a, b])), scores)
    assert found == {"mean": 2.5, "mean low": 2, "mean high": 3}


def test_a_run_folder_and_files_of_earlier_commits(points, tmp_path):
    """Also the folder that has run folders inside."""
    last = uwac.main(short(uwac, num_seeds=2, total_steps=7))["history"][-1]
    for results in (Path("run"), Path()):
        args = report.Args(results=(results,), folder=tmp_path / "one")
        (row,) = table(args, "runs")
        assert (row["task"], row["method"], row["seeds"]) == ("Point", "UWAC", "2")
        assert float(row["score"]) == pytest.approx(np.mean(last["score"]))
    assert len(list((tmp_path / "one").glob("*.png"))) == 1
    old = ROOT / "benchmark" / "results" / "pen-expert-warmup-10000"
    report.main(report.Args(results=(old,), folder=tmp_path / "old"))
    rows = pd.read_csv(tmp_path / "old" / "runs.csv")
    assert [round(score, 1) for score in rows["score"]] == [115.2, 100.7, 102.4, 110.9]
    assert [round(std, 1) for std in rows["score std"]] == [15.4, 28.2, 24.2, 20.5]


def test_scores_of_others():
    """QDQ's nine tasks have the paper's scores beside them, without the version."""
    scores = others_scores()
    assert scores["QDQ: UWAC"].count() == 9
    row = scores.loc["hopper-medium", ["paper: UWAC", "paper: BC", "QDQ: UWAC"]]
    assert row.tolist() == [88.9, 29.0, 50.9]
