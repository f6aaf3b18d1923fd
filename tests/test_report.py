"""benchmark/report.py on results made by hand: numbers to the digit, what is not averaged."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

pytest.importorskip("scipy", reason="benchmark/requirements.txt is not installed")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmark"))
import report
from style import COLOURS


def result(method="bear", seed=0, scores=(10.0, 20.0), warmup=100, task="door-human-v1", **args):
    """One seed, an evaluation every 100 updates; Q targets are half of the scores."""
    args |= {"seed": seed, "num_seeds": 1, "warmup_steps": warmup}
    history = []
    for i, score in enumerate(scores, 1):
        row = {"step": 100 * i, "score": [score], "target_q": [score / 2], "mmd": [0.25]}
        history.append(row if method == "bear" else row | {"weight": [1.5], "ood_auroc": [0.75]})
    found = {"task": task, "algorithm": "bear", "method": method, "args": args, "history": history}
    found |= {"data": {"path": "a.hdf5"}, "transitions": 6704, "ms_per_update": 36_000.0}
    return found | {"hardware": "CPU, 1 thread"}


def save(folder, *results):
    for i, one in enumerate(results):
        (folder / f"{i}.json").write_text(json.dumps(one))
    return report.Args(results=(folder,), folder=folder / "report")


def table(args, name):
    report.main(args)
    with open(args.folder / f"{name}.csv") as file:
        return list(csv.DictReader(file))


def test_numbers_of_a_row(tmp_path):
    """Twelve evaluations of two seeds: the last, and the mean of the last ten, never the best."""
    one = result(scores=[1, 2, 3, 4, 5, 6, 7, 8, 9, 30, 10, 11]) | {"peak_mb": 650.0}
    two = result(seed=1, scores=[2.0 * i for i in range(12)]) | {"peak_mb": 700.0}
    (row,) = table(save(tmp_path, one, two), "runs")
    assert row["seeds"] == "2" and row["protocol"] == "1,200 updates, warm-up 100"
    assert row["last"] == "16.5 ± 7.8"  # 11 and 22
    assert row["last ten"] == "11.2 ± 2.6"  # 9.3 and 13
    assert row["Q target"] == "8.2 ± 3.9" and row["highest Q target"] == "12.0"  # (15 + 9) / 2
    assert row["hours a seed"] == "12" and row["MB"] == "700"
    assert row["mmd"] == "0.250" and row["weight"] == row["ood_auroc"] == "–"
    rows = [result("bear+sn", dropout=0.0), result("uwac-rem", dropout=0.0, members="rem")]
    assert [row["ood_auroc"] for row in table(save(tmp_path, *rows), "runs")] == ["–", "0.75"]


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


def test_what_cannot_be_averaged_is_refused(tmp_path, capsys):
    for other, message in (
        (result(seed=0), "1.json: its seed 0 is in another file"),
        (result(seed=1, beta=0.8), "1.json: beta 0.8, elsewhere 1.6"),
        ({"something": 1}, "1.json: not a result (KeyError"),
    ):
        with pytest.raises(SystemExit) as end:
            report.main(save(tmp_path, result(beta=1.6), other))
        error = capsys.readouterr().err
        assert end.value.code == 2 and message in error and error.count("\n") == 1


@pytest.mark.parametrize("change, message", [
    ({"methods": ("uwca",)}, "--methods uwca: there are bear, uwac"),
    ({"tasks": ("door",)}, "--tasks door: there are door-human"),
    ({"metrics": ("q",)}, "--metrics q: there are mmd, ood_auroc, score, target_q, weight"),
    ({"results": (Path("nowhere"),)}, "no results in nowhere"),
])  # fmt: skip
def test_wrong_names_get_the_names_there_are(change, message, tmp_path, capsys):
    args = save(tmp_path, result(), result("uwac"))
    with pytest.raises(SystemExit) as end:
        report.main(report.Args(**vars(args) | change))
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_the_papers_numbers_stand_beside_tasks_that_were_run(tmp_path):
    others = result("uwac", task="hopper-medium", scores=[50.0]), result(task="own-task")
    rows = table(save(tmp_path, result(), result("uwac", scores=[30.0, 20.0]), *others), "paper")
    assert [row["task"] for row in rows] == ["hopper-medium", "door-human"]
    assert list(rows[0])[3:] == ["paper: UWAC", "paper: BEAR", "bear", "uwac"]
    assert [*rows[0].values()][3:] == ["88.9 ± 12.2", "52.1", "–", "50.0 (1 seed)"]
    assert [*rows[1].values()][3:] == ["10.7 ± 5.5", "-0.3", "20.0 (1 seed)", "20.0 (1 seed)"]


def test_aggregates_compare_with_bear_where_both_were_run(tmp_path):
    door = result(scores=[1.0]), result("uwac", scores=[5.0]), result("uwac", scores=[9.0, 9.0])
    pen = [result(method, task="pen-expert", scores=[3.0]) for method in ("bear", "uwac")]
    (row,) = table(save(tmp_path, *door, *pen), "aggregates")
    values = [value.removesuffix(" (single seeds)") for value in row.values()]
    assert values[2:] == ["2", "4.0", "2.0", "0.75"]


def test_aggregates_by_hand():
    """Of 1 ... 8 the middle half is 3 to 6. Of four pairs three are won, one is tied; then none."""
    first, second = np.array([1.0, 8, 3, 5]), np.array([2.0, 7, 4, 6])
    assert report.interquartile_mean(first, second) == 4.5
    ours = [np.array([3.0, 5.0]), np.array([0.0, 1.0])]
    theirs = [np.array([3.0, 2.0]), np.array([8.0, 9.0])]
    assert report.probability_of_improvement(*ours, *theirs) == pytest.approx(0.4375)
    apart = [np.zeros(3), np.full(3, 90.0)]  # seeds that agree have no spread
    assert report.interval(report.interquartile_mean, apart, 1) == "45.0 (45.0 to 45.0)"


def test_figures_are_png_and_pdf_of_at_most_1000_pixels(tmp_path):
    args = save(tmp_path, result())
    report.main(args)
    (picture,) = args.folder.glob("*.png")
    assert picture.with_suffix(".pdf").exists() and max(imread(picture).shape) <= 1000


def test_figures_show_methods_seeds_warmup_and_explosions(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(report, "save", lambda figure, path: figures.append(figure))
    exploding = [result(seed=seed, scores=[1.0, 10.0**6]) for seed in (0, 1)]
    report.main(save(tmp_path, *exploding, result("uwac"), result(warmup=200)))
    first, second = [[t.get_text() for t in f.legends[0].get_texts()] for f in figures]
    assert first == ["bear (2 seeds ± std)", "uwac (1 seed)", "end of warm-up"]
    assert second == ["bear (1 seed)"]  # all warm-up
    for axes in figures[0].axes:
        bear, uwac, _ = axes.get_lines()
        assert (bear.get_color(), uwac.get_color()) == (COLOURS["bear"], COLOURS["uwac"])
        assert len(axes.collections) == 1  # the band of two seeds
    assert list(uwac.get_ydata()) == [10.0, 20.0]  # the score's panel
    assert [axes.get_yscale() for axes in figures[0].axes] == ["symlog", "linear"]
