"""benchmark/report.py, on results made by hand."""

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import ANY

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, command_line, rows_in, short, write_hdf5

import uwac
from benchmark import files, report, stats
from benchmark.measure import evaluate
from benchmark.methods import METHODS, SCRIPTS, usual_args

UWAC = "UWAC (mc) + SN"  # uwac.py's default on door-human


def result(method="bear", seed=0, scores=(10.0, 20.0), warmup=100, env_id="door-human", **args):
    """An evaluation every 100 updates; Q targets are half of the scores, a sample's a tenth."""
    command = METHODS[method].command if method in METHODS else SCRIPTS[method]
    about = {"env_id": env_id, "seed": seed, "num_seeds": 1, "warmup_steps": warmup}
    args = usual_args(command, env_id) | about | {"run_dir": None} | args
    history = []
    for i, score in enumerate(scores, 1):
        row = {"step": 100 * i, "seconds": 3600.0 * i, "score": [score], "target_q": [score / 2]}
        history.append(row | {"score_sample": [score / 10], "mmd": [0.1], "ood_auroc": [0.5]})
    found = {"algorithm": Path(command.split()[0]).stem, "args": args, "history": history}
    return found | {"data": {"path": "a.hdf5"}, "transitions": 6704, "hardware": "CPU, 1 threads"}


def evaluation(scores, step=200, policy="sample", candidates=1):
    """A record of evaluation.json, of scores (agents, episodes)."""
    found = {"step": step, "policy": policy, "candidates": candidates, "seed": 0}
    return found | {"scores": scores, "episodes": len(scores[0])}


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """What each figure is to show and say, by its name; nothing is drawn, as that takes long."""
    found = {}
    curves = lambda rows, metrics, **words: (metrics, words)
    policies = lambda table, *words: words
    save = lambda figure, path: found.update({path.name: figure})
    empty = SimpleNamespace(curves=curves, policies=policies, save=save)
    monkeypatch.setattr(report, "figures", empty)
    return found


@pytest.fixture
def reported(tmp_path):
    """A function of results, or of paths: each table's rows by its name, and the text."""

    def of(*results, **args):
        paths = [one for one in results if isinstance(one, Path)]
        for i, one in enumerate(one for one in results if not isinstance(one, Path)):
            (tmp_path / f"{i}.json").write_text(json.dumps(one))
        args = report.Args(tuple(paths) or (tmp_path,), folder=tmp_path / "report", **args)
        report.main(args)
        found = {"text": (args.folder / "report.md").read_text(encoding="utf-8")}
        for file in args.folder.glob("*.csv"):
            with open(file) as rows:
                found[file.stem] = list(csv.DictReader(rows))
        return found

    return of


def numbers(row, *names):
    return [float(row[name] or "nan") for name in names]


def test_numbers_of_a_row(reported):
    """The mean of the last ten evaluations after the warm-up; of fewer than ten the last."""
    one = result(scores=[1, 2, 3, 4, 5, 6, 7, 8, 9, 30, 10, 11])
    two = result(seed=1, scores=[2.0 * i for i in range(12)])
    (row,) = reported(one, two)["runs"]
    assert row["method"] == "BEAR" and row["protocol"] == "1,200 updates, warm-up 100"
    names = "seeds", "evaluations", "score", "score error", "sample", "Q target", "hours"
    right = [2, 10, (9.3 + 13) / 2, 3.7 / 2, (9.3 + 13) / 20, (5.5 + 11) / 2, 12]
    assert numbers(row, *names) == pytest.approx(right)
    for warmup, score, evaluations in ((200, "7.5", 10), (300, "12.0", 1), (1200, "12.0", 1)):
        (row,) = reported(*(result("uwac", i, range(1, 13), warmup) for i in (0, 1)))["runs"]
        assert row["score"] == score and float(row["evaluations"]) == evaluations
        assert ("(all in the warm-up)" in row["protocol"]) == (warmup == 1200)


def test_agents_of_a_stack_are_seeds(reported):
    """Whose hours are a share of the run's."""
    stack = result(num_seeds=2)
    for row in stack["history"]:
        row |= {"score": [10.0, 30.0], "target_q": [5.0, 15.0]}
        row |= {name: 2 * row[name] for name in ("score_sample", "mmd", "ood_auroc")}
    (row,) = reported(stack)["runs"]
    names = "seeds", "score", "score error", "Q target", "hours"
    assert numbers(row, *names) == [2, 20, 10, 10, 1]


def test_others_scores_and_aggregates_are_of_one_sample(reported, drawn):
    """Of four seeds' scores the middle two have a mean of 3.5, all of them of 7."""
    door = [result("bear", i, [50.0]) for i in range(4)]
    door += [result("uwac", i, [score]) for i, score in enumerate((10.0, 20.0, 50.0, 200.0))]
    pen = [result(method, 0, [9.0], env_id="pen-expert") for method in ("bear", "uwac")]
    found = reported(*door[2:6], *pen)
    beside, _ = found["beside"]
    names = "here: BEAR", f"here: {UWAC}", f"here: {UWAC} error", "paper: UWAC", "paper: BC"
    assert numbers(beside, *names) == [5.0, 1.5, 0.5, 10.7, 0.5]
    assert "aggregates" not in found and not drawn
    found = reported(*pen, *door)
    (row,) = found["aggregates"]
    names = "data sets", "seeds of each", "IQM", "BEAR's IQM", "P(improvement)"
    assert numbers(row, *names) == [1, 4, 3.5, 5, (0 + 0 + 0.5 + 1) / 4]
    (words,) = rows_in(found["text"], "IQM")
    names = [name for name in row if name not in ("protocol", "method", *names[:2])]
    cells = {name: stats.plain(float(row[name]), 2 if "P(" in name else 1) for name in names}
    assert words == {"method": UWAC, "data sets": "1", "seeds of each": "4"} | cells


def test_aggregates_by_hand():
    assert stats.interquartile_mean(np.array([1.0, 8, 3, 5]), np.array([2.0, 7, 4, 6])) == 4.5
    scores = [np.array([1.0, 3.0]), np.array([2.0, 3.0])]
    found = stats.bootstrapped("mean", lambda a, b: float(np.mean([a, b])), scores)
    assert found == {"mean": 2.25, "mean low": 1.5, "mean high": 3}


def test_two_methods_are_compared_by_an_interval(reported):
    """Welch's: standard errors of 1 / sqrt(3) each, so t has four degrees of freedom: 2.776."""
    bears = [result("bear", i, [score]) for i, score in enumerate((20.0, 30.0, 40.0))]
    uwacs = [result("uwac", i, [score]) for i, score in enumerate((50.0, 60.0, 70.0))]
    (row,) = reported(*bears, *uwacs, result("bear+sn", 0, [1.0]))["comparisons"]
    assert (row["method"], row["against"]) == (UWAC, "BEAR")
    half = 2.7764 * math.sqrt(2 / 3)
    assert numbers(row, "difference", "low", "high") == pytest.approx([3, 3 - half, 3 + half], 1e-4)


def test_lines_of_comparison(reported, drawn):
    """Of a run whose rewards and discount factor give a bound, and of others."""
    for one in (result(), result(gamma=1.0) | {"max_reward": 20.0}):
        reported(one)
        assert not {"target_q", "policy_q"} & {*next(iter(drawn.values()))[1]["references"]}
    reported(result(gamma=0.9, eval_candidates=30) | {"max_reward": 20.0})
    ((_, words),) = drawn.values()
    lines = words.pop("references")
    title = "door-human, Gaussian kernel of the MMD"
    assert words == {"title": title, "unit": "normalized score", "candidates": 30}
    assert [*lines["target_q"].values()] == [*lines["policy_q"].values()] == pytest.approx([200])
    assert lines["mmd"] == {"threshold": 0.07} and list(lines["ood_auroc"].values()) == [0.5, 0.845]
    assert list(lines["score"])[:2] == ["paper: UWAC (v0)", "paper: BEAR (v0)"]
    assert lines["score_sample"] == lines["score"]
    other = result("uwac", gamma=0.5, mmd_threshold=0.1, eval_candidates=30) | {"max_reward": 20.0}
    reported(result(gamma=0.9, eval_candidates=30) | {"max_reward": 20.0}, other)
    ((_, words),) = drawn.values()
    assert words["references"].keys() == {"score", "score_sample", "ood_auroc"}


@pytest.mark.parametrize("gamma, ends, shown", [
    (0.99, True, [700, 1.99 / 3 + 700 / 3]), (0.99, False, [700]), (0.9, True, [70])
])  # fmt: skip
def test_the_data_s_own_return_is_a_line_where_the_file_is_there(
    gamma, ends, shown, tmp_path, reported, drawn
):
    """Beside the bound: of an episode of rewards 0 and 1, and one of 7 that time ended, the mean of
    three steps. Where no end is known, or the discount factor is another, it is not."""
    arrays = {"rewards": np.array([0, 1, 7.0]), "terminals": np.array([False, True, False])}
    arrays |= {"timeouts": np.array([False, False, True])} if ends else {}
    path = write_hdf5(tmp_path / "data.hdf5", arrays)
    one = result(gamma=gamma) | {"data": {"path": str(path), "sha256": files.checksum(path)}}
    reported(one)
    ((_, words),) = drawn.values()
    assert [*words["references"]["target_q"].values()] == pytest.approx(shown)


def test_what_differs_is_never_averaged(reported):
    """But a task without a version is D4RL's v0."""
    of_amx = {"hardware": "CPU with AMX, 1 threads"}
    rows = reported(
        result(),
        result(seed=1, scores=[10.0, 40.0], env_id="door-human-v0"),
        result(seed=2, scores=[50.0]),
        result(scores=[5.0, 60.0], warmup=200),
        result(scores=[5.0, 70.0], matmul_precision="medium") | of_amx,
        result(seed=1, scores=[5.0, 72.0], matmul_precision="medium"),
        result(scores=[5.0, 75.0], eval_every=100),
        result(scores=[5.0, 80.0], eval_candidates=10),
        result(scores=[5.0, 85.0], eval_episodes=100),
        result(scores=[5.0, 90.0]) | {"data": {"path": "a.hdf5", "sha256": "0123456789"}},
        result(scores=[5.0, 95.0], env_id="door-human-v1"),
        result(scores=[5.0], env_id="Pay-v4"),
        result(scores=[500.0], env_id="Pay-v5"),
    )["runs"]
    rows = {float(row["score"]): row for row in rows}
    assert {row["method"] for row in rows.values()} == {"BEAR"}
    assert sorted(rows) == [5, 30, 50, 60, 70, 72, 75, 80, 85, 90, 95, 500]
    assert rows[70]["protocol"] == "200 updates, warm-up 100, bfloat16"
    assert rows[72]["protocol"] == "200 updates, warm-up 100, matmul precision medium"
    assert rows[90]["data"] == "a.hdf5, 6,704 transitions, sha256 01234567"
    tasks = {rows[score]["task"] for score in (30, 95, 500)}
    assert tasks == {"door-human", "door-human-v1", "Pay-v5"}


def test_what_a_run_did_not_measure_is_left_out(reported):
    """AUROC of Var[Q] without dropout; scores that dropout noise chose, but not a sample's."""
    without = result("bear+sn")
    without["history"][0]["return"] = [1.0]  # of an earlier version, which began the run
    noisy = result("uwac") | {"score_has_dropout_noise": True}
    rows = {row["method"]: row for row in reported(without, noisy)["runs"]}
    found = {name: (row["score"], row["sample"], row["AUROC"]) for name, row in rows.items()}
    assert found == {"BEAR + SN": ("20.0", "2.0", ""), UWAC: ("", "2.0", "0.5")}


def test_copies_are_one_run_and_what_is_left_out_is_named(tmp_path, reported, capsys):
    """The longest counts, wherever it stands, and the policies of all."""
    for name, steps in (("grid/work/a", 1), ("run-1", 1), ("run-2/of/mine", 2), ("run-3", 1)):
        (tmp_path / name).mkdir(parents=True)
        one = json.dumps(result(scores=[10.0, 20.0][:steps]))
        (tmp_path / name / "result.json").write_text(one)
        played = [evaluation([[1.0 * steps, 3.0 * steps]], step=100 * steps)]
        (tmp_path / name / "evaluation.json").write_text(json.dumps(played))
    found = reported()
    assert [(row["score"], row["seeds"]) for row in found["runs"]] == [("20.0", "1")]
    names = "updates", "score", "score error"
    assert [numbers(row, *names) for row in found["policies"]] == [[100, 2, 1], [200, 4, 2]]
    assert not capsys.readouterr().err
    (tmp_path / "run-1" / "evaluation.json").write_text("[{")
    another = result(scores=[5.0]) | {"policies": [evaluation([[9.0] * 9], step=100)]}
    found = reported(another, result(scores=[]), {})
    assert [row["score"] for row in found["runs"]] == ["20.0"]
    assert [row["score"] for row in found["policies"]] == ["2.0", "4.0"]
    new, nothing, other, damaged = capsys.readouterr().err.splitlines()
    assert "1.json: left out, not a result (ValueError('not evaluated yet" in new
    assert "2.json: left out, not a result (KeyError" in nothing
    assert "run-1/evaluation.json: damaged, move it away" in damaged
    assert "grid/work/a/result.json has its arguments and seed" in other


def test_a_grids_run_counts_once(tmp_path, reported):
    """Its small file names the method and the processor, its own folder does neither."""
    one, work = result("uwac", beta=2.5), tmp_path / "grid" / "work"
    (work / "a").mkdir(parents=True)
    (work / "a" / "result.json").write_text(json.dumps(one | {"hardware": "cpu, 1 threads"}))
    more = {"method": "uwac", "command": "python", "study": "b", "commit": "c"}
    (tmp_path / "grid" / "a.json").write_text(json.dumps(one | more))
    for place in (tmp_path / "grid", tmp_path):
        (row,) = reported(place, work)["runs"]
        assert row["seeds"] == "1" and row["method"].endswith(", beta 2.5")


def test_evaluations_of_other_lengths_are_told(reported):
    """As where a run was gone on with --eval-episodes."""
    one = result()
    for row, episodes in zip(one["history"], (1, 7)):
        row["episodes"] = episodes
    (row,) = reported(one)["runs"]
    assert row["protocol"] == "200 updates, warm-up 100, from 1 episodes an evaluation on"


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_evaluations_at_uneven_steps_are_told(reported, num_seeds):
    """As where a run was gone on with --eval-every. A last one may come sooner."""
    for steps, told in (([100, 200, 300, 450, 600], True), ([100, 200, 300, 350], False)):
        one = result(scores=[1.0] * len(steps), num_seeds=num_seeds)
        for row, step in zip(one["history"], steps):
            row["step"] = step
            row |= {name: num_seeds * of for name, of in row.items() if isinstance(of, list)}
        (row,) = reported(one)["runs"]
        assert ("uneven" in row["protocol"]) == told


def test_a_fork_has_its_own_evaluations_alone(reported):
    """And is another method than the run that it began as, and than one that began by itself."""
    scores = [*range(12), 50.0]
    source = {"algorithm": "bear", "updates": 1200, "run": "a"}
    fork = result("uwac", scores=scores) | {"forked_from": source}
    whole = result("uwac", scores=scores)
    found = {row["method"]: row["score"] for row in reported(fork, whole)["runs"]}
    assert found == {
        UWAC: str((sum(range(3, 12)) + 50) / 10),
        f"{UWAC}, from bear at 1,200": "50.0",
    }


def test_scores_of_policies(reported, drawn):
    """Errors are over the episodes of one agent, or over several: here in a stack and two runs."""
    one = result("uwac") | {"policies": [evaluation([[1.0, 2.0, 6.0]], policy="vae")]}
    one["policies"].append(evaluation([[50.0, 70.0]], step=100, policy="vae"))
    shared = evaluation([[1.0, 2.0, 6.0], [9.0, 9.0, 9.0]], policy="vae")  # the first is UWAC's
    two = result() | {"policies": [shared, *[evaluation([[1.0, 3.0], [2.0, 4.0]])] * 2]}
    two["policies"] += [evaluation([[90.0], [95.0]])]
    found = reported(one, two, result(seed=1) | {"policies": [evaluation([[5.0, 5.0]])]})
    rows = {row["method"]: row for row in found["policies"] if row["updates"] == "200"}
    assert numbers(rows[UWAC], "score", "score error") == pytest.approx([3, math.sqrt(7 / 3)])
    right = [10 / 3, np.std([2, 3, 5], ddof=1) / math.sqrt(3), 3]
    assert numbers(rows["BEAR"], "score", "score error", "agents") == pytest.approx(right)
    _, cells, *_ = rows_in(found["text"], "agents")
    said = {"BC, the VAE's decoder": "–", "sample": "3.3 ± 0.9"}
    assert cells == {"method": "BEAR", "updates": "200", "episodes": "2", "agents": "3"} | said
    (beside,) = found["beside"]
    _, words = drawn["01-door-human-target_q-score-score_sample.png"]
    lines = words["references"]["score"]
    assert drawn["01-door-human-policies.png"] == (words["title"], lines, words["unit"])
    line = lines["BC, the VAE's decoder"]
    assert float(beside["here: BC, the VAE's decoder"]) == line == 6
    noisy = [evaluation([[1.0]], policy=policy, candidates=9) for policy in ("noisy", "best")]
    rows = reported(result("uwac") | {"policies": noisy})["policies"]
    assert {row["policy"] for row in rows} >= {"best of 9", "noisy, N = 9"}


def test_a_program_replaces_its_own_files_alone(tmp_path):
    """Not those of others, nor those changed since; what it leaves no more goes."""

    def write(*names):
        with files.new_files(tmp_path, "report") as new:
            for name in names:
                (new / name).write_text("new")

    write("report.md", "runs.csv", "policies.csv")
    others = dict.fromkeys(("notes.md", "report.md", "runs.csv"), "mine")
    for name, text in others.items():
        (tmp_path / name).write_text(text)
    for name in ("notes.md", "report.md"):
        with pytest.raises(ValueError, match=f"{name}: not as report.py left it"):
            write("new.csv", name)
        assert (tmp_path / "policies.csv").exists() and not (tmp_path / "new.csv").exists()
    write("new.csv")
    found = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert found == others | {"new.csv": "new", "written_by_report.json": ANY}


def test_a_figure_has_panels_of_what_was_measured(reported, drawn, capsys):
    bear, again = result(), result(seed=1)
    for row in bear["history"] + again["history"]:
        del row["ood_auroc"]
    other = {"data": {"path": "b.hdf5"}}
    for metrics in (("ood_auroc",), ("ood_auroc", "mmd")):
        reported(result("uwac"), bear, bear | other, again | other, metrics=metrics)
    assert {name: figure[0] for name, figure in drawn.items() if figure} == {
        "01-door-human-ood_auroc.png": ["ood_auroc"],
        "01-door-human-ood_auroc-mmd.png": ["ood_auroc", "mmd"],
        "02-door-human-mmd.png": ["mmd"],
    }
    assert "door-human, warm-up 100: no run has ood_auroc" in capsys.readouterr().err


def test_the_text_has_means_with_errors_and_medians_of_q(reported, capsys):
    """Q explodes in two seeds of three. What all runs have in common stands below the table."""
    found = [result(seed=i, scores=[4.0, 10.0 + i]) for i in range(3)]
    for one in found[1:]:
        one["history"][1]["target_q"] = [4.32e8]
    others = [result("uwac", i, [4.0, score]) for i, score in enumerate((9.0, 9.5, 11.5))]
    for one in others:
        one["history"][1] |= {"weight": [1.2344], "policy_weight": [0.5], "mmd": [0.0767]}
    text = reported(*found, *others)["text"]
    bear, of_uwac = rows_in(text, "method", "hours")
    same = {"seeds": "3", "evaluations": "1", "AUROC": "0.50", "hours": "2.00"}
    scores = {"score": "11.0 ± 0.6", "sample": "1.1 ± 0.1", "Q target": "4.3e8"}
    assert bear == {"method": "BEAR", "MMD": "0.100", "weight": "–"} | scores | same
    scores = {"score": "10.0 ± 0.8", "sample": "1.0 ± 0.1", "Q target": "5"}
    assert of_uwac == {"method": UWAC, "MMD": "0.077", "weight": "1.234"} | scores | same
    common = "All: door-human; a.hdf5, 6,704 transitions, sha256 ?; 200 updates, warm-up 100."
    assert common in text and not {"task", "data", "protocol"} & {*bear}
    shown = capsys.readouterr().out
    assert rows_in(shown, "hours")[0] == bear and common in shown
    (pair,) = rows_in(text, "against")
    assert (pair["difference"], pair["low"], pair["high"]) == ("-0.1", "-0.4", "0.2")
    text = reported(*found, result(env_id="pen-expert"))["text"]
    assert "| task" in text and "| protocol" not in text and "All: a.hdf5" in text


def test_methods_stand_in_the_order_given(tmp_path, reported):
    given = ("bear+sn", "uwac", "bear")
    for name in given:
        (tmp_path / f"{name}.json").write_text(json.dumps(result(name)))
    of = lambda *paths: [row["method"] for row in reported(*paths)["runs"]]
    assert of(*(tmp_path / f"{name}.json" for name in given)) == ["BEAR + SN", UWAC, "BEAR"]
    assert of(tmp_path) == ["BEAR", UWAC, "BEAR + SN"]  # of a folder that of METHODS


def test_an_agent_in_a_file_of_its_own_is_another_method(reported):
    """Though it kept the algorithm's name; and a run behind a link is a run."""
    sums = {"uwac.py": "a" * 64}
    own = sums | {"mine.py": "b" * 64}
    one, two = (
        result("uwac", seed=seed, scores=[score]) | {"scripts": [of]}
        for seed, score, of in ((0, 1.0, sums), (1, 2.0, own))
    )
    assert [float(row["score"]) for row in reported(one, two)["runs"]] == [1.0, 2.0]


def test_a_run_behind_a_link_counts(tmp_path, reported):
    for seed, folder in enumerate((tmp_path / "runs" / "a", tmp_path / "far" / "b")):
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(result("uwac", seed=seed, scores=[1.0])))
    (tmp_path / "runs" / "b").symlink_to(tmp_path / "far" / "b")
    (row,) = reported(tmp_path / "runs")["runs"]
    assert row["seeds"] == "2"


def test_latex(tmp_path, reported):
    """With a caption, the highest score bold, and nothing that LaTeX would read as its own."""
    found = [result(scores=[9.0, 10.0]), result(seed=1, scores=[9.0, 14.0])]
    reported(*found, result("uwac", scores=[9.0, 30.0], actor_lr=0.5), latex=True)
    text = (tmp_path / "report" / "runs.tex").read_text(encoding="utf-8")
    bear, uwac = [line for line in text.splitlines() if line.endswith(r"\\") and "&" in line][1:]
    assert r"\begin{table}" in text and r"\caption{Means over seeds $\pm$ standard error. " in text
    assert r" & 12.0 $\pm$ 2.0 & " in bear and r" & \textbf{30.0} & " in uwac
    assert "±" not in text and "6,704 transitions" in text.split(r"\label")[0]


def test_changed_scripts_are_other_methods(reported, capsys):
    """Each under a name of its own; runs that do not say their script stay as they are."""
    sums = [{"uwac.py": letter * 64, "other.py": "c" * 64} for letter in "ab"]
    one, two = (
        result("uwac", scores=[score]) | {"scripts": [of]} for score, of in zip((1.0, 2.0), sums)
    )
    others = [result("uwac", scores=[3.0]), result("uwac", seed=1, scores=[5.0])]
    rows = {row["method"]: float(row["score"]) for row in reported(one, two, *others)["runs"]}
    assert rows == {f"{UWAC}, uwac.py aaaaaaaa": 1, f"{UWAC}, uwac.py bbbbbbbb": 2, UWAC: 4}
    assert not capsys.readouterr().err


def test_a_file_of_two_names_is_one(reported):
    runs = [result("uwac", seed=seed, scores=[4.0 * seed]) for seed in range(2)]
    for run, path in zip(runs, ("a/first.hdf5", "b/second.hdf5")):
        run["data"] = {"path": path, "sha256": "5" * 64}
    (row,) = reported(*runs)["runs"]
    assert (row["seeds"], row["score"]) == ("2", "2.0") and "first.hdf5" in row["data"]


@pytest.mark.parametrize("content", [None, b"damaged", "another"])
def test_a_run_outlives_its_data(tmp_path, capsys, content):
    """The file is gone, damaged, or another of that name; a result may know the largest reward."""
    data = tmp_path / "data.hdf5"
    if content == "another":
        arrays = {"observations": np.zeros((1, 1)), "actions": np.zeros((1, 1))}
        write_hdf5(data, arrays | {"rewards": np.array([7.0]), "terminals": np.array([True])})
    elif content:
        data.write_bytes(content)
    found = result() | {"data": {"path": str(data), "sha256": "0" * 64}}

    def bound(one):
        (tmp_path / "a.json").write_text(json.dumps(one))
        return report.read_all((tmp_path / "a.json",))["bound"][0]

    assert pd.isna(bound(found))
    assert bound(found | {"max_reward": 20.0}) == pytest.approx(2000)
    assert not capsys.readouterr().err
    if content == "another":
        found["data"]["sha256"] = files.checksum(data)
        assert bound(found) == pytest.approx(700)


def test_a_run_behind_metrics_is_no_metric(tmp_path, reported):
    with pytest.raises(ValueError, match="taken for metrics; name runs before"):
        reported(result(), metrics=("mmd", str(tmp_path)))


def test_report_py_where_a_terminal_has_neither_utf_8_nor_windows(tmp_path):
    """As a program: in Latin-1, which lacks the –, and with a notebook's backend not installed."""
    brief = {"step": 100, "seconds": 1.0, "score": [1.0], "target_q": [1.0]}
    for name, one in (("a", result()), ("b", result("uwac") | {"history": [brief]})):
        (tmp_path / f"{name}.json").write_text(json.dumps(one))
    about = {"PYTHONIOENCODING": "latin-1", "MPLBACKEND": "module://nothing.backend"}
    command = [sys.executable, ROOT / "benchmark" / "report.py", tmp_path, "--folder", "r"]
    settings = {"env": os.environ | about, "capture_output": True, "cwd": tmp_path}
    done = subprocess.run(command, check=False, **settings)
    assert done.returncode == 0, done.stderr
    assert "–" in (tmp_path / "r" / "report.md").read_text(encoding="utf-8")
    assert b"BEAR" in done.stdout
    assert (tmp_path / "r" / "01-door-human-target_q-score-score_sample.png").exists()


def test_a_report_of_a_run(points, monkeypatch):
    result = uwac.main(short(uwac))
    assert command_line(evaluate, "run --episodes 2 --policies vae", monkeypatch) == 0
    assert command_line(report, "run --metrics target_q weight --latex", monkeypatch) == 0
    with open("runs/report/runs.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["method"].startswith("UWAC (mc), passes 2, batch size 8, ")
    assert float(row["Q target"]) == result["history"][-1]["target_q"][0]
    pictures = "01-Point-v0-policies", "01-Point-v0-target_q-weight"
    names = [f"{name}.{end}" for name in pictures for end in ("pdf", "png")]
    names += ["policies.csv", "policies.tex", "report.md", "runs.csv", "runs.tex"]
    found = sorted(file.name for file in Path("runs/report").iterdir())
    assert found == [*names, "written_by_report.json"]
    assert row["method"] in Path("runs/report/runs.tex").read_text()
