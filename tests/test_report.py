"""benchmark/report.py on results made by hand: numbers to the digit, what is missing, what may not be averaged."""

import csv
import json
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="benchmark/requirements.txt is not installed")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmark"))
import report


def result(task="door-human", method="bear", scores=((10.0,), (20.0,)), seed=0, **changes):
    """Of as many seeds as a row of `scores` has; a row an evaluation."""
    history = [{"step": 100 * (i + 1), "score": [*row]} for i, row in enumerate(scores)]
    for row in history:
        row |= {"target_q": [s / 2 for s in row["score"]], "mmd": [s / 100 for s in row["score"]]}
        row |= {} if method == "bear" else {name: [s / 10 for s in row["score"]] for name in ("weight", "ood_auroc")}
    args = {
        "env_id": task,
        "seed": seed,
        "num_seeds": len(scores[0]),
        "total_steps": 36_000,
        "warmup_steps": 400,
        "beta": 1.6,
    }
    args |= {"critic": "dropout", "dropout": 0.1} | changes
    found = {"task": task, "algorithm": "bear", "method": method, "data": {"origin": "D4RL"}, "args": args}
    found["transitions"] = 6704
    return found | {"history": history, "hardware": "CPU, 1 threads", "ms_per_update": 100.0}


def save(folder, *results):
    for i, one in enumerate(results):
        (folder / f"{i}.json").write_text(json.dumps(one))


def test_numbers_of_a_cell(tmp_path):
    """Twelve evaluations of two seeds in two files: the last, and the mean of the last ten, over both."""
    save(
        tmp_path,
        result(scores=[(float(i),) for i in range(12)]) | {"peak_mb": 650.0},
        result(scores=[(2.0 * i,) for i in range(12)], seed=1) | {"peak_mb": 700.0},
    )
    cell = report.read(tmp_path)["door-human", "bear"]
    assert list(cell.last) == [11, 22] and list(cell.last_ten) == [6.5, 13]
    row = dict(zip(*report.long({("door-human", "bear"): cell})))
    assert row["last"] == "16.5 ± 7.8" and row["last ten"] == "9.8 ± 4.6" and row["seeds"] == "2"  # 11 / sqrt(2), ...
    assert row["Q target"] == "8.2 ± 3.9" and row["ood_auroc"] == "–" and row["MB"] == "700"
    assert row["hours a seed"] == "1" and row["updates"] == "36,000, warm-up 400"  # 36,000 updates of 100 ms


def test_highest_q_target_is_not_the_last(tmp_path):
    """Means over seeds of 5, 43.75 and 20, half the scores, each seed's highest at another evaluation; a file without a measured memory has none."""
    save(tmp_path, result(scores=[(5.0, 15.0), (160.0, 15.0), (20.0, 60.0)]))
    row = dict(zip(*report.long(report.read(tmp_path))))
    assert row["Q target"] == "20.0 ± 14.1" and row["Q target, highest"] == "43.8" and row["MB"] == "–"


def test_seeds_side_by_side_cost_their_share(tmp_path):
    save(tmp_path, result(scores=[(1.0, 2.0, 3.0, 4.0)]))
    assert report.read(tmp_path)["door-human", "bear"].hours == pytest.approx(0.25)


def test_a_single_seed_has_no_deviation_and_no_interval(tmp_path):
    save(tmp_path, result(), result(method="uwac", scores=[(30.0,)]))
    cells = report.read(tmp_path)
    assert report.score(cells["door-human", "bear"].last) == "20.0"
    assert report.aggregates(cells)[1:] == [
        ["bear", "1", "20.0", "–", "–", "–"],
        ["uwac", "1", "30.0", "1", "20.0", "1.00"],
    ]


def test_tables_as_in_the_paper(tmp_path):
    """Every task of the paper has its row; what was not run is a dash; versions do not split a task; data are named."""
    (tmp_path / "in").mkdir()
    bear, uwac = (
        result("door-human-v1", method, scores=[(1.0 + i, 1.0), (1.0 + i, 2.0 + 2 * i)])
        for i, method in enumerate(("bear", "uwac"))
    )
    rebuilt = result("hopper-medium", "uwac", scores=[(50.0,)]) | {"data": {"origin": "rebuilt", "seed": 3}}
    save(tmp_path / "in", bear, uwac, rebuilt)
    report.main(report.Args(tmp_path / "in", tmp_path / "out"))
    with open(tmp_path / "out" / "table2.csv") as file:
        rows = {row["task"]: row for row in csv.DictReader(file)}
    assert len(rows) == 12
    door = {
        "task": "door-human",
        "data": "D4RL, 6,704 transitions",
        "updates": "36,000, warm-up 400",
        "paper: UWAC": "10.7 ± 5.5",
        "paper: BEAR": "-0.3",
    }
    door |= {"bear": "1.5 ± 0.7", "uwac": "3.0 ± 1.4", "bear, last ten": "1.2 ± 0.4", "uwac, last ten": "2.2 ± 0.4"}
    assert rows["door-human"] == door
    assert {*rows["pen-human"].values()} == {"pen-human", "65.0 ± 3.0", "-1.0", "–"}
    with open(tmp_path / "out" / "table1.csv") as file:
        rows = {row["task"]: row for row in csv.DictReader(file)}
    assert (
        len(rows) == 15
        and rows["hopper-medium"]["uwac"] == "50.0"
        and rows["hopper-medium"]["data"].startswith("rebuilt")
    )
    row = r"door-human & D4RL, 6,704 transitions & 36,000, warm-up 400 & 10.7 $\pm$ 5.5 & -0.3 & 1.5 $\pm$ 0.7 & 3.0 $\pm$ 1.4 & 1.2 $\pm$ 0.4 & 2.2 $\pm$ 0.4 \\"
    assert row in (tmp_path / "out" / "table2.tex").read_text()
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| " + " | ".join(door.values()) + " |" in text and "training.png" in text
    assert (
        "| door-human | D4RL, 6,704 transitions | uwac | 2 | 36,000, warm-up 400 | 0.5 | – | 3.0 ± 1.4 | 2.2 ± 0.4 | 1.5 ± 0.7 | 1.5 | 0.030 | 0.300 | 0.30 |"
        in text
    )
    assert (tmp_path / "out" / "runs.tex").exists() and (tmp_path / "out" / "aggregates.csv").exists()


def test_methods_stand_in_one_order_everywhere():
    cells = {("pen-human", "uwac-analytic"): 0, ("hopper-medium", "uwac"): 0, ("hopper-medium", "bear"): 0}
    assert report.sorted_methods(cells, ["pen-human", "hopper-medium"]) == ["bear", "uwac", "uwac-analytic"]
    assert report.sorted_methods(cells, ["pen-human"]) == ["uwac-analytic"]


def test_carried_numbers_are_the_papers():
    assert report.paper(1)["walker2d-medium-expert"]["UWAC"] == "99.7"
    assert report.paper(2)["hammer-expert"]["BEAR"] == "127.3"
    shared = ROOT.parent / "shared" / "paper"
    if not shared.exists():
        pytest.skip("the paper's tables are not at hand")
    for mine, theirs in (("table1", "paper_tables"), ("table2", "paper_tables_adroit")):
        assert (ROOT / "benchmark" / "paper" / f"{mine}.csv").read_text() == (shared / f"{theirs}.csv").read_text()


def test_different_arguments_are_not_averaged(tmp_path, capsys):
    save(tmp_path, result(), result(seed=1, beta=0.8))
    with pytest.raises(SystemExit, match="0.json and .*1.json: the same task and method with .*: beta 1.6 and 0.8"):
        report.read(tmp_path)
    other = result(seed=1)
    other["data"] |= {"seed": "3"}
    save(tmp_path, result(), other)
    with pytest.raises(SystemExit, match="seed None and 3"):
        report.read(tmp_path)
    save(tmp_path, result(), result(seed=1) | {"transitions": 6705})
    with pytest.raises(SystemExit, match="transitions 6704 and 6705"):
        report.read(tmp_path)


def test_a_seed_counts_once(tmp_path):
    """Neither a copy nor a stack of seeds that holds it makes a second one."""
    for other in (result(), result(scores=[(1.0, 2.0)], seed=0)):
        save(tmp_path, result(), other)
        with pytest.raises(SystemExit, match="0.json and .*1.json: both have seed 0"):
            report.read(tmp_path)


def test_hours_are_of_a_seed_however_they_were_run(tmp_path):
    """Stacks of 2, 2 and 1 seeds of an hour each: three hours for five seeds."""
    sizes = ((0, 2), (2, 2), (4, 1))
    save(tmp_path, *(result(scores=[(1.0,) * n], seed=seed) for seed, n in sizes))
    assert report.read(tmp_path)["door-human", "bear"].hours == pytest.approx(0.6)


def test_no_auroc_where_there_is_no_variance(tmp_path):
    save(tmp_path, result(method="bear+sn", dropout=0.0), result(method="uwac-rem", dropout=0.0, critic="rem"))
    rows = [
        dict(zip(report.long(cells)[0], row)) for cells in [report.read(tmp_path)] for row in report.long(cells)[1:]
    ]
    assert {row["method"]: row["ood_auroc"] for row in rows} == {"bear+sn": "–", "uwac-rem": "2.00"}


def test_what_is_no_result_is_left_out_and_said(tmp_path, capsys):
    save(tmp_path, result(), {"something": 1})
    (tmp_path / "half.json").write_text('{"task": "doo')
    assert len(report.read(tmp_path)) == 1
    assert capsys.readouterr().err.count("not a result") == 2
    with pytest.raises(SystemExit, match="holds no results"):
        report.read(tmp_path / "empty")


def test_result_of_a_single_run_counts_by_its_script(tmp_path):
    found = result()
    del found["method"]
    save(tmp_path, found)
    assert list(report.read(tmp_path)) == [("door-human", "bear")]


def test_interquartile_mean_by_hand():
    """Of 1 ... 8 the middle half is 3, 4, 5, 6."""
    assert report.interquartile_mean(np.array([1.0, 8, 3, 5]), np.array([2.0, 7, 4, 6])) == 4.5
    assert report.interquartile_mean(np.array([0.0, 1, 2, 1000])) == 1.5


def test_probability_of_improvement_by_hand():
    """First task: of 4 pairs, 3 are won and one is tied; second: none is won. (3.5 / 4 + 0) / 2."""
    ours, theirs = [np.array([3.0, 5.0]), np.array([0.0, 1.0])], [np.array([3.0, 2.0]), np.array([8.0, 9.0])]
    assert report.probability_of_improvement(*ours, *theirs) == pytest.approx(0.4375)


def test_interval_is_over_seeds_within_tasks():
    """Tasks whose seeds agree have no spread, however far apart the tasks are."""
    far = [np.array([0.0, 0.0, 0.0]), np.array([90.0, 90.0, 90.0])]
    assert report.interval(report.interquartile_mean, far, 1) == "45.0 (45.0 to 45.0)"
    wide = report.interval(report.interquartile_mean, [np.array([0.0, 10.0, 20.0, 30.0])] * 3, 1)
    low, high = (float(x) for x in wide.split("(")[1][:-1].split(" to "))
    assert 4 < low < 12 and 18 < high < 26


def shows(pixels, method):
    """Whether the method's colour is in some of the pixels (..., 3)."""
    colour = torch.tensor([int(report.COLOURS[method][i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return ((pixels - colour).abs().amax(-1) < 0.02).sum() > 10


def test_figures_show_every_method(tmp_path):
    """In their colours, in both panels of each task; the legend names those of all tasks."""
    grid = [result(method=m, scores=[(float(i), i + 9.0) for i in range(5)]) for m in ("bear", "uwac", "bear+sn")]
    grid.append(result("pen-human", "bear+dropout+sn") | {"method": "bear+dropout+sn"})
    grid.append(result("pen-human", "bear"))
    for i, one in enumerate(grid):
        for row in one["history"]:
            row["score"] = row["target_q"] = [x + 30 * i for x in row["score"]]
    save(tmp_path, *grid)
    cells = report.read(tmp_path)
    labels = {"score": "normalized score", "target_q": "mean Q target"}
    assert report.plot(cells, report.FIGURES["ablations"][0], tmp_path / "a.png", labels)
    image = torch.as_tensor(matplotlib.image.imread(tmp_path / "a.png"))[..., :3]
    legend, pen, door = image[:40], *image[40:].chunk(2)  # tasks in the paper's order

    for method in ("uwac", "bear+sn"):
        assert all(shows(panel, method) for panel in door.chunk(2, 1)) and not shows(pen, method)
    assert all(shows(panel, "bear+dropout+sn") for panel in pen.chunk(2, 1)) and not shows(door, "bear+dropout+sn")
    assert all(shows(legend, method) for method in report.FIGURES["ablations"][0])
    assert not report.plot(cells, report.FIGURES["ensembles"][0], tmp_path / "b.png", labels)
    assert not (tmp_path / "b.png").exists()


def test_figures_show_where_the_warmup_ended_and_explosions_beside_all_else(tmp_path, monkeypatch):
    """A line where it ended within the run; Q targets on a logarithmic axis, unless they are below zero somewhere."""
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")

    def text(low, **changes):
        grid = [result(method=m, scores=[(low,), (10.0,), (10.0**5,)], **changes) for m in ("bear", "uwac")]
        save(tmp_path, *grid)
        assert report.plot(report.read(tmp_path), ("bear", "uwac"), tmp_path / "a.svg", {"target_q": "mean Q target"})
        assert report.plot(report.read(tmp_path), ("bear", "uwac"), tmp_path / "b.svg", {"ood_auroc": "ood_auroc"}, 1)
        return (tmp_path / "a.svg").read_text()

    assert "end of warm-up" in text(1.0, warmup_steps=150)
    assert "chance" in (tmp_path / "b.svg").read_text() and "chance" not in (tmp_path / "a.svg").read_text()
    assert not any("end of warm-up" in text(1.0, warmup_steps=n) for n in (0, 40_000))
    assert "mathdefault{10^{3}}" in text(1.0) and "mathdefault{10^{3}}" not in text(-1.0)


def test_auroc_of_a_lone_method_is_drawn_and_a_comparison_is_not(tmp_path):
    """Nor does a method without Var[Q] take part."""
    save(tmp_path, result(method="bear+sn", dropout=0.0), result(method="uwac", dropout=0.0, seed=1))
    cells, names = report.read(tmp_path), {"ood_auroc": "ood_auroc"}
    assert not report.plot(cells, ("bear+sn", "uwac"), tmp_path / "a.png", names, fewest=1)
    save(tmp_path, result(method="bear+sn", dropout=0.0), result(method="uwac", seed=1))
    cells = report.read(tmp_path)
    assert report.plot(cells, ("bear+sn", "uwac"), tmp_path / "a.png", names, fewest=1)
    assert not report.plot(cells, ("bear+sn", "uwac"), tmp_path / "a.png", names)


def test_a_lone_evaluation_is_seen(tmp_path):
    save(tmp_path, *(result(method=m, scores=[(s,)]) for m, s in (("bear", 1.0), ("uwac", 3.0))))
    labels = {"score": "normalized score", "target_q": "mean Q target"}
    report.plot(report.read(tmp_path), ("bear", "uwac"), tmp_path / "a.png", labels)
    image = torch.as_tensor(matplotlib.image.imread(tmp_path / "a.png"))[40:, :, :3]  # without the legend
    assert all(shows(panel, "uwac") for panel in image.chunk(2, 1))
