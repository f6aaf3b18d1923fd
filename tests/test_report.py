"""benchmark/report.py on results made by hand: numbers to the digit, what is not averaged."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

pytest.importorskip("scipy", reason="benchmark/requirements.txt is not installed")
import report
from conftest import ROOT, short

import uwac


def result(method="bear", seed=0, scores=(10.0, 20.0), warmup=100, task="door-human-v1", **args):
    """One seed, an evaluation every 100 updates; Q targets are half of the scores."""
    args |= {"env_id": task, "seed": seed, "num_seeds": 1, "warmup_steps": warmup}
    history = []
    for i, score in enumerate(scores, 1):
        row = {"step": 100 * i, "seconds": 3600.0 * i, "score": [score], "target_q": [score / 2]}
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


def test_numbers_of_a_row_and_size_of_the_figure(tmp_path):
    """Twelve evaluations of two seeds: the last, and the mean of the last ten, never the best."""
    one = result(scores=[1, 2, 3, 4, 5, 6, 7, 8, 9, 30, 10, 11]) | {"peak_mb": 650.0}
    two = result(seed=1, scores=[2.0 * i for i in range(12)]) | {"peak_mb": 700.0}
    args = save(tmp_path, one, two)
    (row,) = table(args, "runs")
    assert row["seeds"] == "2" and row["protocol"] == "1,200 updates, warm-up 100"
    assert row["last"] == "16.5 ± 7.8"  # 11 and 22
    assert row["last ten"] == "11.2 ± 2.6"  # 9.3 and 13
    assert row["Q target"] == "8.2 ± 3.9" and row["highest Q target"] == "12.0"  # (15 + 9) / 2
    assert row["hours a seed"] == "12" and row["MB"] == "700" and row["weight"] == "–"
    (picture,) = args.folder.glob("*.png")
    assert picture.with_suffix(".pdf").exists() and max(imread(picture).shape) <= 1000


def test_protocols_are_never_averaged(tmp_path):
    """Length, warm-up, precision and data each make a row of their own."""
    args = save(
        tmp_path,
        result(),
        result(seed=1, scores=[10.0, 40.0]),
        result(scores=[50.0]),
        result(scores=[5.0, 60.0], warmup=200),
        result(scores=[5.0, 70.0], matmul_precision="medium"),
        result(scores=[5.0, 80.0]) | {"transitions": 5},
    )
    last = {row["last"]: row["protocol"] for row in table(args, "runs")}
    assert sorted(last) == ["30.0 ± 14.1", *(f"{score}.0 (1 seed)" for score in (50, 60, 70, 80))]
    assert last["70.0 (1 seed)"] == "200 updates, warm-up 100, medium precision"


def test_evaluations_of_another_size_are_not_compared(tmp_path):
    """Best of 100 and a single sample are two protocols: two rows, and no aggregate of both."""
    args = save(tmp_path, result(eval_candidates=100), result("uwac", eval_candidates=1))
    protocols = [row["protocol"] for row in table(args, "runs")]
    assert protocols == ["200 updates, warm-up 100" + end for end in ("", ", eval_candidates 1")]
    assert not (args.folder / "aggregates.csv").exists()


@pytest.mark.parametrize("other, message", [
    (result(seed=0), "1.json: its seed 0 is in another file"),
    (result(seed=1, beta=0.8), "1.json: beta 0.8, elsewhere 1.6"),
    (result(seed=0, beta=0.8), "1.json: beta 0.8, elsewhere 1.6"),  # another method, not a twin
    (result(seed=1) | {"data": {"path": "a.hdf5", "sha256": "b"}}, "1.json: its data have another"),
    (result(seed=1) | {"history": result()["history"][1:]}, "1.json: it was evaluated at other up"),
    ({"something": 1}, "1.json: not a result (KeyError"),
])  # fmt: skip
def test_what_cannot_be_averaged_is_refused(other, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        report.main(save(tmp_path, result(beta=1.6), other))
    error = capsys.readouterr().err
    assert end.value.code == 2 and message in error and error.count("\n") == 1


def test_aggregates_compare_with_bear_where_both_were_run(tmp_path):
    door = result(scores=[1.0]), result("uwac", scores=[5.0]), result("uwac", scores=[9.0, 9.0])
    pen = [result(method, task="pen-expert", scores=[3.0]) for method in ("bear", "uwac")]
    (row,) = table(save(tmp_path, *door, *pen), "aggregates")
    values = [value.removesuffix(" (single seeds)") for value in row.values()]
    assert values[2:] == ["2", "4.0", "2.0", "0.75"]
    assert report.interquartile_mean(np.array([1.0, 8, 3, 5]), np.array([2.0, 7, 4, 6])) == 4.5


def test_a_run_folder_and_files_of_earlier_commits(points, tmp_path):
    last = uwac.main(short(uwac, num_seeds=2, total_steps=7))["history"][-1]
    (row,) = table(report.Args(results=(Path("run"),), folder=tmp_path / "one"), "runs")
    assert (row["task"], row["method"], row["seeds"]) == ("Point", "uwac", "2")
    assert row["last"] == report.spread(np.array(last["score"]))
    assert len(list((tmp_path / "one").glob("*.png"))) == 1
    old = ROOT / "benchmark" / "results" / "door-demo"
    rows = table(report.Args(results=(old,), folder=tmp_path / "old"), "runs")
    assert [row["last"] for row in rows] == ["28.8 ± 33.5", "44.4 ± 42.2", "29.1 ± 34.1"]
    assert rows[0]["hours a seed"] == "0.0994"  # 1,073.5 s for three seeds
