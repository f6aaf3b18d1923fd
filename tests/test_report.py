"""benchmark/report.py and q_share.py on results made by hand."""

import csv
import json
import math
from unittest.mock import ANY

import numpy as np
import pandas as pd
import pytest

from benchmark import published_context, q_share, report
from benchmark.lib import curves, files, methods, published, runs, tables
from benchmark.lib.methods import SCRIPTS, script_of


def result(method="bear", seed=0, scores=(10.0, 20.0), warmup=100, env_id="door-human", **args):
    """An evaluation every 100 updates; Q targets are half of the scores, a sample's a tenth."""
    args |= {"env_id": env_id, "seed": seed, "num_seeds": 1, "warmup_steps": warmup}
    history = []
    for i, score in enumerate(scores, 1):
        row = {"step": 100 * i, "seconds": 3600.0 * i, "score": [score], "target_q": [score / 2]}
        history.append(row | {"score_sample": [score / 10], "mmd": [0.1], "ood_auroc": [0.5]})
    args |= {"mmd_threshold": 0.07, "gamma": 0.99}
    algorithm = method if method in SCRIPTS else "uwac"
    found = {"algorithm": algorithm, "args": args, "history": history}
    found |= {"data": {"path": "a.hdf5"}, "transitions": 6704, "hardware": "CPU, 1 thread"}
    return found | ({} if method in SCRIPTS else {"method": method})


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
def drawn(monkeypatch):
    """Run and metrics of each figure by its name; nothing is drawn, as that takes long."""
    found = {}
    draw_curves = lambda run, rows, metrics, path: found.update({path.name: (run, metrics)})
    monkeypatch.setattr(report, "draw_curves", draw_curves)
    monkeypatch.setattr(report, "draw_policies", lambda *_: None)
    return found


def test_numbers_of_a_row(tmp_path):
    """The mean of the last ten evaluations after the warm-up; of fewer than ten the last."""
    one = result(scores=[1, 2, 3, 4, 5, 6, 7, 8, 9, 30, 10, 11])
    two = result(seed=1, scores=[2.0 * i for i in range(12)])
    (row,) = table(save(tmp_path, one, two), "runs")
    assert row["method"] == "BEAR" and row["protocol"] == "1,200 updates, warm-up 100"
    numbers = {name: float(row[name] or "nan") for name in list(row)[4:]}
    assert numbers["seeds"] == 2 and numbers["evaluations"] == 10
    assert numbers["score"] == pytest.approx((9.3 + 13) / 2)
    assert numbers["score error"] == pytest.approx(3.7 / 2)
    assert numbers["sample"] == pytest.approx(numbers["score"] / 10)
    assert numbers["Q target"] == (5.5 + 11) / 2 and numbers["hours"] == 12
    for warmup, score, evaluations in ((200, "7.5", 10), (300, "12.0", 1), (1200, "12.0", 1)):
        again = save(tmp_path, *(result("uwac", i, range(1, 13), warmup) for i in (0, 1)))
        (row,) = table(again, "runs")
        assert row["score"] == score and float(row["evaluations"]) == evaluations
        assert ("(all in the warm-up)" in row["protocol"]) == (warmup == 1200)


def test_others_scores_and_aggregates_are_of_one_sample(tmp_path, drawn):
    """Of four seeds' scores the middle two have a mean of 3.5, all of them of 7."""
    door = [result("bear", i, [50.0]) for i in range(4)]
    door += [result("uwac", i, [score]) for i, score in enumerate((10.0, 20.0, 50.0, 200.0))]
    pen = [result(method, 0, [9.0], env_id="pen-expert") for method in ("bear", "uwac")]
    args = save(tmp_path, *door[2:6], *pen)
    (beside, _) = table(args, "beside")
    ours = ("BEAR", "UWAC", "UWAC: error")
    assert [float(beside[f"here: {name}"]) for name in ours] == [5.0, 1.5, 0.5]
    assert (beside["paper: UWAC"], beside["paper: BC"]) == ("10.7", "0.5")
    assert not (args.folder / "aggregates.csv").exists() and not drawn
    (row,) = table(save(tmp_path, *pen, *door), "aggregates")
    names = "data sets", "seeds of each", "IQM", "BEAR's IQM", "P(improvement)"
    assert [float(row[name]) for name in names] == [1, 4, 3.5, 5, (0 + 0 + 0.5 + 1) / 4]


def test_aggregates_by_hand():
    assert tables.interquartile_mean(np.array([1.0, 8, 3, 5]), np.array([2.0, 7, 4, 6])) == 4.5
    scores = [np.array([1.0, 3.0]), np.array([2.0, 3.0])]
    found = tables.interval("mean", lambda a, b: float(np.mean([a, b])), scores)
    assert found == {"mean": 2.25, "mean low": 1.5, "mean high": 3}


def test_two_methods_are_compared_by_all_ways_to_deal_their_seeds(tmp_path):
    """The means differ by 7/6 or more in 7 of the 10 ways, and most in one."""
    bears = [result("bear", i, [score]) for i, score in enumerate((20.0, 30.0, 60.0))]
    uwacs = [result("uwac", i, [score]) for i, score in enumerate((40.0, 10.0))]
    args = save(tmp_path, *bears, *uwacs, result("bear+sn", 0, [1.0]))
    (row,) = table(args, "comparisons")
    assert (row["method"], row["against"]) == ("UWAC", "BEAR")
    found = [float(row[name]) for name in ("difference", "p", "least p", "error")]
    assert found == pytest.approx([-7 / 6, 0.7, 0.1, math.hypot(1.5, math.sqrt(13 / 9))])


def test_what_differs_is_never_averaged(tmp_path):
    """But a task without a version is D4RL's v0."""
    args = save(
        tmp_path,
        result(),
        result(seed=1, scores=[10.0, 40.0], env_id="door-human-v0"),
        result(seed=2, scores=[50.0]),
        result(scores=[5.0, 60.0], warmup=200),
        result(scores=[5.0, 70.0], matmul_precision="medium"),
        result(scores=[5.0, 75.0], eval_every=100),
        result(scores=[5.0, 80.0], eval_candidates=10),
        result(scores=[5.0, 85.0], eval_episodes=100),
        result(scores=[5.0, 90.0]) | {"data": {"path": "a.hdf5", "sha256": "0123456789"}},
        result(scores=[5.0, 95.0], env_id="door-human-v1"),
        result(scores=[5.0], env_id="Pay-v4"),
        result(scores=[500.0], env_id="Pay-v5"),
    )
    rows = {float(row["score"]): row for row in table(args, "runs")}
    assert {row["method"] for row in rows.values()} == {"BEAR"}
    assert sorted(rows) == [5, 30, 50, 60, 70, 75, 80, 85, 90, 95, 500]
    assert rows[70]["protocol"] == "200 updates, warm-up 100, matmul precision medium"
    assert rows[90]["data"] == "a.hdf5, 6,704 transitions, sha256 01234567"
    tasks = {rows[score]["task"] for score in (30, 95, 500)}
    assert tasks == {"door-human", "door-human-v1", "Pay-v5"}


def test_what_a_run_did_not_measure_is_left_out(tmp_path):
    """AUROC of Var[Q] without dropout; scores that dropout noise chose, but not a sample's."""
    without = result("bear+sn", dropout=0.0, spectral_norm=True)
    without["history"][0]["return"] = [1.0, 2.0]  # of an earlier version, which began the run
    noisy = result("uwac", dropout=0.1) | {"score_has_dropout_noise": True}
    rows = {row["method"]: row for row in table(save(tmp_path, without, noisy), "runs")}
    found = {name: (row["score"], row["sample"], row["AUROC"]) for name, row in rows.items()}
    assert found == {"BEAR + SN": ("20.0", "2.0", ""), "UWAC": ("", "2.0", "0.5")}


NO_SN = {"spectral_norm": False, "variance": "analytic"}
NO_WEIGHTS = {"weighting": "none", "dropout": 0.0}
FIXED_W = {"control": "fixed-w"} | NO_WEIGHTS | NO_SN


@pytest.mark.parametrize("label, method, args", [
    ("BEAR", "bear", {"mmd_kernel": "gaussian"}),
    ("UWAC + SN", "uwac", {}),
    ("UWAC", "uwac", {"env_id": "hopper-medium"}),
    ("UWAC, beta 2.5", "uwac", {"spectral_norm": False, "beta": 2.5}),
    ("UWAC (analytic) + SN", "uwac", {"variance": "analytic"}),
    ("UWAC (analytic) + SN", "uwac-analytic", {"variance": "analytic"}),
    ("UWAC (analytic)", "uwac", NO_SN),
    ("UWAC (std) + SN, beta 2.5", "uwac", {"beta": 2.5, "weighting": "std"}),
    ("BEAR + SN, spectral norm False", "bear+sn", NO_WEIGHTS | NO_SN),
    ("BEAR + dropout", "uwac", {"weighting": "none"} | NO_SN),
    ("BEAR + dropout + SN", "uwac", {"weighting": "none", "variance": "analytic"}),
    ("UWAC (REM) + SN", "ensembles", {"members": "rem"}),
    ("UWAC (authors' code) + SN", "uwac_code", {"env_id": "hopper-medium"}),
    ("UWAC with w shuffled", "what_bounds_q", {"control": "shuffled"} | NO_SN),
    ("BEAR with Q over its mean", "what_bounds_q", {"control": "scaled-q"} | NO_WEIGHTS | NO_SN),
    ("BEAR with w = 0.43 in the actor", "what_bounds_q", FIXED_W | {"fixed_w": 0.43}),
    ("mine + SN, beta 2.5", "mine", {"beta": 2.5}),
])  # fmt: skip
def test_a_method_has_one_name_that_says_what_is_not_its_default(label, method, args):
    """Also where nobody named the method, and where it is the only one."""
    one = result(method, **args)
    script = script_of(SCRIPTS[one["algorithm"]])
    one["args"] = vars(script.Args(**{"env_id": "door-human"} | args).resolved())
    assert runs.label(one) == label


def test_methods_have_commands_labels_and_colours_of_their_own():
    commands, _, colours = zip(*methods.METHODS.values())
    labels = []
    for method in methods.METHODS:
        args = runs.usual_args(method, "", "door-human")
        labels.append(runs.label({"method": method, "algorithm": "", "args": args}))
    for values in (commands, labels, colours):
        assert len(set(values)) == len(values)


def test_copies_are_one_run_and_what_is_left_out_is_named(tmp_path, capsys):
    """The longest counts, wherever it stands, and the policies of all."""
    for name, steps in (("grid/work/a", 1), ("run-1", 1), ("run-2", 2), ("run-3", 1)):
        copy = tmp_path / name
        copy.mkdir(parents=True)
        (copy / "result.json").write_text(json.dumps(result(scores=[10.0, 20.0][:steps])))
        found = [evaluation([[1.0 * steps, 3.0 * steps]], step=100 * steps)]
        (copy / "evaluation.json").write_text(json.dumps(found))
    args = report.Args(results=(tmp_path,), folder=tmp_path / "report")
    (row,) = table(args, "runs")
    assert row["score"] == "20.0" and row["seeds"] == "1" and not capsys.readouterr().err
    policies = [(row["updates"], row["score"], row["error"]) for row in table(args, "policies")]
    assert policies == [("100", "2.0", "1.0"), ("200", "4.0", "2.0")]
    (tmp_path / "grid/b.json").write_text(json.dumps(result("uwac") | {"method": "uwac"}))
    assert [row["method"] for row in table(args, "runs")] == ["BEAR", "UWAC"]
    (tmp_path / "run-1" / "evaluation.json").write_text("[{")
    row, _ = table(save(tmp_path, result(scores=[5.0]), result(scores=[]), {}), "runs")
    assert row["score"] == "20.0"
    new, nothing, damaged, other = capsys.readouterr().err.splitlines()
    assert "1.json: left out, not a result (ValueError('not evaluated yet" in new
    assert "2.json: left out, not a result (KeyError" in nothing
    assert "run-1/evaluation.json: damaged, move it away" in damaged
    assert "run-2/result.json: another has its arguments and seed" in other


def test_scores_of_policies(tmp_path, drawn):
    """Errors are over the episodes of one agent, or over several: here in a stack and two runs."""
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
    run, _ = drawn["01-door-human-target_q-score-score_sample.png"]
    line = curves.references(run, "score")["BC, the VAE's decoder"]
    assert float(beside["here: BC, the VAE's decoder"]) == line == 6
    run["max_reward"] = 20
    assert list(curves.references(run, "target_q").values()) == [pytest.approx(2000)]
    noisy = [evaluation([[1.0]], policy=policy, candidates=9) for policy in ("noisy", "best")]
    rows = table(save(tmp_path, result("uwac") | {"policies": noisy}), "policies")
    assert {row["who"] for row in rows} >= {"best of 9", "best of 9, noisy"}


def test_a_program_replaces_its_own_files_alone(tmp_path):
    """Not those of others, nor those changed since; what it leaves no more goes."""

    def write(*names):
        with files.new_files(tmp_path, "report") as new:
            for name in names:
                (new / name).write_text("new")

    found = lambda: {file.name: file.read_text() for file in tmp_path.iterdir()}
    write("report.md", "runs.csv", "policies.csv")
    others = dict.fromkeys(("notes.md", "report.md", "runs.csv"), "mine")
    for name, text in others.items():
        (tmp_path / name).write_text(text)
    before = found()
    for name in ("notes.md", "report.md"):
        with pytest.raises(ValueError, match=f"{name}: not as report.py left it"):
            write("new.csv", name)
        assert found() == before
    write("new.csv")
    assert found() == others | {"new.csv": "new", "written_by_report.json": ANY}


def test_a_figure_has_panels_of_what_was_measured(tmp_path, drawn, capsys):
    bear, again = result(), result(seed=1)
    for row in bear["history"] + again["history"]:
        del row["ood_auroc"]
    other = {"data": {"path": "b.hdf5"}}
    args = save(tmp_path, result("uwac"), bear, bear | other, again | other)
    for metrics in (("ood_auroc",), ("ood_auroc", "mmd")):
        args.metrics = metrics
        report.main(args)
    assert {name: metrics for name, (_, metrics) in drawn.items()} == {
        "01-door-human-ood_auroc.png": ["ood_auroc"],
        "01-door-human-ood_auroc-mmd.png": ["ood_auroc", "mmd"],
        "02-door-human-mmd.png": ["mmd"],
    }
    assert "door-human, warm-up 100: no run has ood_auroc" in capsys.readouterr().err


def test_a_curve_is_the_median_of_its_seeds(tmp_path, monkeypatch):
    for seed, last in enumerate((20.0, 30.0, 1e9)):
        (tmp_path / f"{seed}.json").write_text(json.dumps(result(seed=seed, scores=[10.0, last])))
    found = runs.read_all((tmp_path,))
    grids = []
    monkeypatch.setattr(curves, "finish", lambda grid, *rest: grids.append(grid))
    run = pd.concat([found.iloc[0], pd.Series({"vae_score": np.nan})])
    curves.draw_curves(run, runs.evaluations(found), ["target_q"], tmp_path / "a.png")
    line = grids[0].axes_dict["target_q"].lines[0]
    assert line.get_ydata().tolist() == [5, 15]


def test_published_scores(tmp_path, monkeypatch):
    """As printed in the paper; the last of a clone's evaluations; those of the same data."""
    paper = {"paper: UWAC (v0)": 10.7, "paper: BEAR (v0)": -0.3}
    assert published.paper_scores("door-human") == paper
    assert published.paper_scores("hopper-random")["paper: UWAC (v0)"] == 22.4
    rows = [{"step": 1, "scores": [[9.0, 9.0]]}, {"step": 2, "scores": [[1.0, 2.0], [3.0, 6.0]]}]
    (tmp_path / "door-human.json").write_text(json.dumps({"history": rows}))
    monkeypatch.setattr(published, "CLONED", tmp_path)
    assert published.cloned_scores("door-human") == {published.BC: 3}
    context = published_context.scores()
    row = context.loc["hopper-medium-expert"].round(1).to_list()
    assert len(context) == 12 and row == [134.7, 21.2, 96.3, 64.7, 111.8, 116.5]
    published_context.draw(context, tmp_path / "published.png")


def test_q_share(tmp_path):
    """Q's share counts at the limit of alpha alone, after the warm-up and near the data."""
    one = result("uwac", weighting="variance", beta=2.0, spectral_norm=True, mmd_kernel="gaussian")
    one["args"] |= {"seed": 5, "num_seeds": 2, "warmup_steps": 5}
    row = {"seconds": 1.0, "alpha": [22026.4, 3.0], "mmd": [0.1, 0.1], "score_sample": [1.0, 2.0]}
    row |= {"variance": [4.0, 8.0], "weight": [0.5, 0.5]}
    one["history"] = [row | {"step": step} for step in range(5, 12)]
    for early in one["history"][:2]:
        early["score_sample"] = [9.0, 9.0]
    one["history"][4]["mmd"] = [1.4, 0.1]
    shares = {"a-5": [0.8, 0.8], "a-9": [0.6, 0.6], "a-10": [0.25, 0.5], "b-10": [0.7, 0.7]}
    shares = {name: {"q_share": share} for name, share in shares.items()}
    (tmp_path / "door").mkdir()
    (tmp_path / "door/a.json").write_text(json.dumps(one))
    (tmp_path / "door-diagnosis.json").write_text(json.dumps(shares))
    within = one["args"] | {"warmup_steps": 11}
    (tmp_path / "door/b.json").write_text(json.dumps(one | {"args": within}))
    agents = q_share.read_agents(tmp_path)
    found = "at the end of 1 of 2 runs; there Q has 25.000% (of 1 checkpoints of 1 runs near "
    assert found in q_share.at_the_limit(agents)
    agents = agents[agents["warmup"] == 5]
    (row,) = q_share.equal_weights(agents).to_dict("records")
    assert (row["runs"], row["lowest"], row["highest"]) == (2, 1, 2)
    (row,) = q_share.scores_below_the_limit(agents).to_dict("records")
    assert (row["seed"], row["size"], row["min"], row["max"]) == (6, 5, 2, 2)
    q_share.draw(agents, tmp_path / "q-share.png")
