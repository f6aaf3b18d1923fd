"""benchmark/results.py with its modules in lib/: the pages as they are and with one thing changed,
and runs made by hand."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from benchmark import results
from benchmark.lib import pages, pictures, tidy

RESULTS, README = results.PAGES
TEXT = RESULTS.read_text(encoding="utf-8")
FORKS = "door-human_bear_forks_tf32_0-2"


@pytest.fixture(scope="module")
def t():
    return tidy.load()


@pytest.fixture(scope="module")
def tables(t):
    return results.tables_of(t)


@pytest.mark.parametrize("page", results.PAGES, ids=lambda page: page.name)
def test_pages_are_what_the_tables_give(t, tables, page):
    assert results.wrong_on(page, t, tables) == []


def test_pictures_show_what_the_tables_give(t):
    figures = results.drawn(t)
    assert [line for pair in figures.items() for line in results.wrong_picture(*pair)] == []
    contents = [results.content(figure) for figure in figures.values()]
    assert len(set(contents)) == len(contents)  # no two show the same


def digits_that_count():
    """Of the page, without programs, links, names, what is folded away, and words with digits."""
    others = r"<details>.*?</details>|`[^`]*`|\]\([^)]*\)|<!--.*?-->|[^\W\d]\w*|(?<=\d)e\d"
    text = re.sub(others, lambda match: " " * len(match[0]), TEXT, flags=re.DOTALL)
    places = [match.start() for match in re.finditer(r"\d", text)]
    return np.random.default_rng(0).choice(places, 100, replace=False)


def test_any_other_digit_is_seen(t, tables):
    """Of tables and sentences, wherever it stands; there is a line for it."""
    made = results.made(t, TEXT, tables)
    for place in digits_that_count():
        changed = TEXT[:place] + str((int(TEXT[place]) + 1) % 10) + TEXT[place + 1 :]
        found = pages.complaints(changed, *made)
        found += pages.unnamed(changed, results.SETTINGS.split())
        line = TEXT.count("\n", 0, place) + 1
        assert any(str(line) in one.split(":")[0].split(", ") for one in found), TEXT[
            place - 30 : place + 9
        ]


@pytest.mark.parametrize("name, table, column, row", [
    ("bounds", "history", "target_q", {"run": FORKS, "agent": 1, "step": 92_500}),
    ("bounds", "history", "q_share", {"run": FORKS, "agent": 0, "step": 50_000}),
    ("sizes", "history", "target_q", {"run": "door-human_uwac-constant_tf32_0-2"}),
    ("rivals", "policies", "score", {"run": "pen-expert_bear+sn_warmup-10000_float32_0"}),
    ("scores", "policies", "score", {"run": "relocate-expert_bear+sn_warmup-10000_float32_0"}),
    ("unequal", "diagnoses", "auroc_shuffled", {"run": "walker2d-expert_uwac-analytic_float32_0"}),
    ("returns", "returns", "q_std", {"run": "hammer-expert_uwac-no-sn_warmup-10000_float32_0"}),
    ("targets", "runs", "max_reward", {"task": "pen-expert"}),
    ("lunarlander", "lunarlander", "auroc_variance", {"removed": "top", "step": 8000}),
    ("speed", "speed", "ms", {"version": "UWAC mc"}),
])  # fmt: skip
def test_any_other_cell_is_seen(t, tmp_path, monkeypatch, name, table, column, row):
    """By the page's table that is made of it."""
    for file in tidy.FOLDER.glob("*.csv"):
        shutil.copy(file, tmp_path)
    rows = pd.read_csv(tmp_path / f"{table}.csv")
    rows.loc[(rows[list(row)] == list(row.values())).all(axis=1), column] *= 1.2
    rows.to_csv(tmp_path / f"{table}.csv", index=False)
    monkeypatch.setattr(results, "TABLES", {name: results.TABLES[name]})
    block = re.search(rf"<!-- table {name} -->.*?<!-- end -->", TEXT, re.DOTALL)[0]
    wrong = lambda t: pages.complaints(block, *results.made(t, block, results.tables_of(t)))
    assert wrong(t) == [] and wrong(tidy.load(tmp_path))


def test_a_picture_of_other_numbers_is_seen(t, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "ROOT", tmp_path)
    rows = t.history[t.history["run"] == FORKS].copy()
    draw = lambda: pictures.bounds(rows, ["target_q"])
    draw().savefig(tmp_path / "a.png", metadata={"Content": results.content(draw())})
    assert results.wrong_picture(tmp_path / "a.png", draw()) == []
    rows["target_q"] *= 1.01
    assert "a.png: shows other numbers" in results.wrong_picture(tmp_path / "a.png", draw())[0]


PAGE = """\
In 40,000 updates Q is 4.3e8<!--q-->, `uwac 7` has 12.5 ± 0.1<!--cells / a / score-->, 0.01 or 0.01.
<!-- table cells -->
| name | score |
|---|---|
| a | 12.5 ± 0.1 |
<!-- end -->
"""


def test_pages_by_hand():
    """Numbers by their names, tables by theirs, and all other numbers as often as they stand."""
    cells = {"cells / a / score": "12.5 ± 0.1", "cells / a / seeds": "3"}
    number = lambda name, like: pages.find(name, cells | {"q": "4.3e8"})
    tables = {"cells": pages.markdown([{"name": "a", "score": "12.5 ± 0.1"}])}
    assert pages.complaints(PAGE, tables, number) == []
    assert pages.unnamed(PAGE, ["0.01", "0.01", "40,000"]) == []
    wrong = (
        PAGE.replace("4.3e8", "4.2e8").replace("| a | 12.5", "| a | 12.6").replace("0.01.", "0.02.")
    )
    found = pages.complaints(wrong, tables, number)
    assert found == [
        "5: '12.6 ± 0.1 |' should be '12.5 ± 0.1 |' (table cells)",
        "1: 4.2e8 should be 4.3e8 (q)",
    ]
    assert pages.unnamed(wrong, ["0.01", "0.01", "40,000"]) == [
        "1: 0.01 has no name, and is 2 times a setting",
        "1: 0.02 has no name, and is 0 times a setting",
    ]
    assert pages.written(wrong.replace("0.02.", "0.01."), tables, number) == PAGE
    assert pages.find("cells / a / sc", cells) == "12.5 ± 0.1"
    for name in ("cells / a / s", "cells / b / score", "r"):
        with pytest.raises(ValueError, match=f"{name}: [02] tables or numbers"):
            pages.find(name, cells)


@pytest.mark.parametrize("phrase, value", [
    ("lowest target_q after 20 of BEAR", 4),
    ("highest target_q after 20 of BEAR", 3000),
    ("median target_q after 20 of BEAR", 6),
    ("mean target_q from 20 of BEAR, seed == 0", 5),
    ("lowest target_q by 30 of BEAR", 4),
    ("median target_q by 30 of BEAR", 6),
    ("exploding target_q by 20 of BEAR", 0),
    ("exploding target_q by 30 of BEAR", 1),
    ("number target_q after 20 of BEAR", 3),
    ("passing target_q after 20 of BEAR", 1),
    ("exploding target_q after 20 of BEAR", 0),
    ("exploding target_q after 30 of BEAR", 1),
    ("spread target_q after 20 of BEAR, seed == 0", 50),
    ("change of target_q after 20 of BEAR, seed == 2 against BEAR, seed == 0", 59900),
    ("p of target_q after 20 of BEAR, seed == 0 against method == 'uwac'", 2 / 3),
    ("mean share after 20 of BEAR, seed == 0", 25),
    ("seeds target_q after 20 of seed >= 0", 3),  # of five agents
    ("median_by_seed target_q after 20 of seed >= 0", 5.5),
])  # fmt: skip
def test_phrases_by_hand(phrase, value):
    """Of BEAR's runs of two agents and of one, and another run of two. Their bound is 2,000."""
    rows = [("a", 0, 20, 4), ("a", 1, 20, 6), ("a", 0, 30, 4), ("a", 1, 30, 6)]
    rows += [("b", 0, 20, 3000), ("b", 0, 30, 3e6), ("c", 0, 20, 7), ("c", 1, 20, 5)]
    agents = pd.DataFrame(rows, columns=["run", "agent", "step", "target_q"])
    agents["share"] = [20, 30, 99, 99, 0, 0, 0, 0]
    runs = {"run": ["a", "b", "c"], "method": ["bear", "bear", "uwac"], "seed": [0, 2, 0]}
    runs = pd.DataFrame(runs).assign(bound=2000.0)
    t = results.Tables(agents=agents, runs=runs, groups={})
    found, of = results.evaluated(t, phrase)
    assert found == pytest.approx(value) and set(of.split(", ")) <= {"a", "b", "c"}


@pytest.mark.parametrize("value, like, text", [
    (432_408_448.0, "4.2e8", "4.3e8"),
    (17_502.4, "17,000", "17,502"),
    (0.0996, "0.07", "0.10"),
    (-2.79, "-3", "-3"),
    (pd.Series([1.0, 2.0]), "1.6 ± 0.4", "1.5 ± 0.5"),
])  # fmt: skip
def test_a_number_has_the_digits_that_it_is_written_with(value, like, text):
    assert results.as_written(value, like) == text


@pytest.mark.parametrize("form, value, text", [
    (results.fraction, 0.5243, "0.52"), (results.fraction, 0.00453, "0.005"),
    (results.fraction, 12.78, "13"), (results.fraction, 5.38, "5.4"), (results.fraction, 0, "0"),
    (results.short, 22_026.47, "22,026"), (results.short, 0.0146, "0.015"),
    (results.small, 9.94, "9.9"), (results.small, 1358.5, "1,359"), (results.small, -0.04, "0.0"),
    (results.excess, 1.0883, "1.09"), (results.excess, 1.0089, "1.009"),
    (results.excess, 194.04, "194"), (results.of_q, 999_999.4, "999,999"),
    (results.of_q, 1.3460406e10, "1.3e10"), (results.of_q, -28.7, "-29"),
])  # fmt: skip
def test_formats(form, value, text):
    assert form(value) == text


def test_a_name_that_nothing_has(t):
    for name in ("lowest nothing after 20 of BEAR", "largest target_q of BEAR", "what"):
        with pytest.raises(ValueError, match="neither a cell nor a number"):
            results.evaluated(t, name)
    _, number = results.made(t, "", ({}, {}))
    with pytest.raises(ValueError, match="nothing has this number"):
        number("lowest target_q after 7 of BEAR", "1.0")


def test_shares_are_the_agents_own(t):
    """In the picture: of a stack of three, which have three shares."""
    rows = pictures.checkpoints(
        t, t.history[t.history["run"].str.contains("early|actor-lr-0.001_tf32")]
    )
    early = rows.query("run == 'door-human_uwac-analytic_warmup-5000_actor-lr-0.001_tf32_0-2'")
    found = t.diagnoses.set_index(["run", "agent", "step"])["q_share"]
    assert early["q_share"].nunique() == 3
    for row in early.to_dict("records"):
        assert row["q_share"] == found[row["run"], row["agent"], row["step"]]


# results.py add


@pytest.fixture
def folder(tmp_path):
    """Tables without a row."""
    for file in tidy.FOLDER.glob("*.csv"):
        pd.read_csv(file, nrows=0).to_csv(tmp_path / file.name, index=False)
    return tmp_path


def result(*steps, **others):
    """Of two agents, whose numbers differ."""
    args = {"env_id": "door-human", "seed": 3, "num_seeds": 2, "warmup_steps": 40_000}
    args |= {"matmul_precision": "medium", "total_steps": 20, "eval_every": 10, "run_dir": None}
    history = [
        {"step": step, "seconds": 0.5 * step, "target_q": [step + 0.1, -1e-05]} for step in steps
    ]
    data = {"path": "/somewhere/a.hdf5", "sha256": "f00", "max_reward": 19.5}
    found = {"algorithm": "bear", "args": args, "data": data, "transitions": 7, "history": history}
    found |= {"hardware": "AMD EPYC, 1 threads", "versions": {"torch": "2.13.0"}}
    return found | {"scripts": [{"bear.py": "abc"}]} | others


def save(folder, found, **files):
    """A run's folder; of files by the beginnings of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {
        "evaluation": "evaluation.json",
        "diagnosis": "diagnosis-20.json",
        "q": "true-q-20.json",
    }
    for name, content in ({"result": found} | files).items():
        (folder / names.get(name, "result.json")).write_text(json.dumps(content))
    return folder


def played(policy="sample", step=20, scores=((1.0, 3.0), (5.0, 5.0))):
    one = {"step": step, "policy": policy, "candidates": 1, "episodes": 2, "seed": 0}
    return one | {"scores": scores, "returns": [[10 * x for x in of] for of in scores]}


def rows(folder, name):
    found = pd.read_csv(folder / f"{name}.csv").dropna(axis="columns", how="all")
    return found.to_dict("records")


def test_a_run_with_all_that_was_found_of_it(folder, tmp_path):
    diagnosis = {"mmd, 10": [0.1, 0.2], "q_share": [0.5, 0.25], "auroc_untrained": [0.4, 0.6, 0.8]}
    diagnosis |= {"auroc_action_norm": [0.7], "auroc_nearest": [1.0]}
    true_q = [{"what": "run", "updates": 20, "episodes": 48, "q": 270.5, "played": 10.25}]
    run = save(
        tmp_path / "run", result(10, 20), evaluation=[played()], diagnosis=diagnosis, q=true_q
    )
    (line,) = tidy.add([run], folder)
    name = "door-human_bear_float32_3-4"
    assert line == f"{name}: 1 of runs, 2 of diagnoses, 1 of returns, 4 of history, 2 of policies"
    (row,) = rows(folder, "runs")
    about = {"run": name, "task": "door-human", "method": "bear", "seed": 3, "num_seeds": 2}
    about |= {"updates": 20, "precision": "float32", "data": "a.hdf5", "data_sha256": "f00"}
    about |= {"max_reward": 19.5, "sha256": "bear.py:abc", "torch": "2.13.0", "total_steps": 20}
    about["command"] = "python bear.py --env-id door-human --seed 3 --num-seeds 2 "
    about["command"] += "--matmul-precision medium --total-steps 20 --eval-every 10"
    assert row.items() >= about.items() and "how" not in row and "run_dir" not in row
    assert rows(folder, "history") == [
        {"run": name, "agent": agent, "step": step, "seconds": step / 2, "target_q": q}
        for step in (10, 20)
        for agent, q in enumerate((step + 0.1, -1e-05))
    ]
    about = {
        "run": name,
        "step": 20,
        "policy": "sample",
        "candidates": 1,
        "episodes": 2,
        "eval_seed": 0,
    }
    assert rows(folder, "policies") == [
        about | {"agent": 0, "score": 2, "score_std": 2**0.5, "return": 20, "return_std": 200**0.5},
        about | {"agent": 1, "score": 5, "score_std": 0, "return": 50, "return_std": 0},
    ]
    about = {"run": name, "step": 20, "auroc_untrained": pytest.approx(0.6)}
    about |= {"auroc_untrained_lowest": 0.4, "auroc_untrained_highest": 0.8}
    about |= {"auroc_action_norm": 0.7, "auroc_nearest": 1}
    assert rows(folder, "diagnoses") == [
        about | {"agent": 0, "mmd_10": 0.1, "q_share": 0.5},
        about | {"agent": 1, "mmd_10": 0.2, "q_share": 0.25},
    ]
    found = {"run": name, "task": "door-human", "of": "run", "step": 20, "episodes": 48}
    assert rows(folder, "returns") == [found | {"q": 270.5, "played": 10.25}]
    assert "-1e-05" in (folder / "history.csv").read_text()
    before = {file.name: file.read_bytes() for file in folder.glob("*.csv")}
    tidy.add([run], folder)
    assert before == {file.name: file.read_bytes() for file in folder.glob("*.csv")}


def test_a_run_goes_on_and_keeps_what_was_found(folder, tmp_path):
    """Its copy at an earlier update only adds to it, whichever of the two comes first."""
    first = save(tmp_path / "first", result(10), evaluation=[played(step=10)])
    longer = result(10, 20, 30)
    longer["args"]["total_steps"] = 30
    whole = save(tmp_path / "whole", longer, evaluation=[played(step=30)])
    tidy.add([first, whole], folder)
    (row,) = rows(folder, "runs")
    assert (row["updates"], row["total_steps"]) == (30, 30)
    assert [row["step"] for row in rows(folder, "history")] == [10, 10, 20, 20, 30, 30]
    assert [row["step"] for row in rows(folder, "policies")] == [10, 10, 30, 30]
    assert tidy.add([first], folder) == ["door-human_bear_float32_3-4: 2 of policies"]
    assert len(rows(folder, "history")) == 6 and len(rows(folder, "policies")) == 4


@pytest.mark.parametrize("other, why", [
    ({"data": {"path": "a.hdf5", "sha256": "0ther", "max_reward": 1.0}}, "other data_sha256"),
    ({"hardware": "AMD Ryzen, 1 threads"}, "other hardware"),
    ({"scripts": [{"bear.py": "changed"}]}, "other sha256"),
    ({"history": result(11, 20)["history"]}, "another history"),
    ({"history": result(10, 25, 30)["history"]}, "another history"),
])  # fmt: skip
def test_another_run_of_the_name_is_refused(folder, tmp_path, other, why):
    """And with it all that were to be added."""
    tidy.add([save(tmp_path / "run", result(10, 20))], folder)
    before = {file.name: file.read_bytes() for file in folder.glob("*.csv")}
    new = save(tmp_path / "new", result(10, 20, method="bear+sn", algorithm="uwac"))
    another = save(tmp_path / "another", result(10, 20) | other)
    with pytest.raises(ValueError) as error:
        tidy.add([new, another], folder)
    assert str(error.value).startswith(f"{another}: nothing is added: ") and why in str(error.value)
    assert before == {file.name: file.read_bytes() for file in folder.glob("*.csv")}


@pytest.mark.parametrize("content, problem", [
    (result(), "not evaluated yet"), ({"a": 1}, "'history'"), ("[", "damaged"), (None, "neither"),
])  # fmt: skip
def test_what_is_no_run(folder, tmp_path, content, problem):
    run = tmp_path / "run"
    run.mkdir()
    if content:
        (run / "result.json").write_text(content if content == "[" else json.dumps(content))
    with pytest.raises(ValueError, match=problem):
        tidy.add([run], folder)


def test_a_grid_and_results_of_earlier_versions(folder, tmp_path):
    """Whose evaluations may stand in the result. Files in work/ belong to the run of their name."""
    grid = tmp_path / "grid"
    save(grid / "work" / "one", {}, evaluation=[played("vae")])
    one = result(10, 20, method="bear", policies=[played("best")])
    del one["scripts"]
    two = result(10, 20, method="uwac-analytic", algorithm="uwac")
    two["args"] |= {"beta": 2.5, "variance": "analytic", "spectral_norm": True, "num_seeds": 1}
    two["history"] = [{"step": 10, "target_q": [1.0]}]
    for name, found in (("one", one), ("two", two)):
        (grid / f"{name}.json").write_text(json.dumps(found))
    lines = tidy.add([grid], folder)
    assert [line.split(":")[0] for line in lines] == [
        "door-human_bear_float32_3-4",
        "door-human_uwac-analytic_beta-2.5_float32_3",
    ]
    assert [row["policy"] for row in rows(folder, "policies")] == ["best", "best", "vae", "vae"]


def test_our_tables_keep_all_that_they_have(tmp_path):
    for file in tidy.FOLDER.glob("*.csv"):
        shutil.copy(file, tmp_path)
    tidy.add([save(tmp_path / "run", result(10, 20) | {"hardware": "NVIDIA H200, cuda"})], tmp_path)
    for name in tidy.KEYS:
        before = (tidy.FOLDER / f"{name}.csv").read_text().splitlines()
        after = (tmp_path / f"{name}.csv").read_text().splitlines()
        new = [line for line in after if "_bear_tf32_3-4" in line]
        assert [line for line in after if line not in new] == before
        assert len(new) == {"runs": 1, "history": 4}.get(name, 0)


@pytest.mark.parametrize("asked, device, precision", [
    ("high", "NVIDIA H200, 1 threads", "tf32"), ("highest", "NVIDIA H200, cuda", "float32"),
    ("medium", "Intel Xeon with AMX, 1 threads", "bfloat16"),
    ("medium", "AMD EPYC, 1 threads", "float32"),
    ("high", "Intel Xeon with AMX, 1 threads", "float32"),
])  # fmt: skip
def test_precision(asked, device, precision):
    found = result() | {"hardware": device}
    found["args"]["matmul_precision"] = asked
    assert tidy.precision_of(found, device) == precision


def test_the_device_of_a_result_that_names_none_is_this_machines(monkeypatch):
    """Of run.py's results, too, which have its model, but not whether it has AMX."""
    answers = {"lscpu": "Flags: amx_bf16 amx_tile", tidy.MODEL["cpu"]: "Xeon"}
    monkeypatch.setattr(tidy.subprocess, "getoutput", answers.get)
    device = lambda line: tidy.device_of({"hardware": line})
    assert device("cpu, 1 threads") == device("Xeon, 1 threads") == "Xeon with AMX, 1 threads"
    assert device("AMD EPYC, 2 threads") == "AMD EPYC, 2 threads"
    answers["lscpu"] = "Flags: avx512f"
    assert device("cpu, 1 threads") == "Xeon, 1 threads"


def test_add_writes_the_pages(folder, tmp_path, monkeypatch, capsys):
    """As its --check says before and after; here of a page and a table of one number."""
    monkeypatch.setattr(tidy, "FOLDER", folder)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "PAGES", [tmp_path / "page.md"])
    monkeypatch.setattr(results, "TABLES", {})
    monkeypatch.setattr(results, "drawn", lambda t: {})
    run = save(tmp_path / "run", result(10, 20))
    page = "Q is 7.0<!--highest target_q after 20 of BEAR-->.\n"
    (tmp_path / "page.md").write_text(page)
    results.main(results.Args("add", (run,)))
    assert (tmp_path / "page.md").read_text() == page.replace("7.0", "20.1")
    assert len(rows(folder, "runs")) == 1 and len(rows(folder, "history")) == 4
    assert capsys.readouterr().out.startswith("door-human_bear_float32_3-4: ")
    assert results.main(results.Args(check=True)) == []
    (tmp_path / "page.md").write_text(page)
    assert results.main(results.Args(check=True)) == [
        "page.md:1: 7.0 should be 20.1 (highest target_q after 20 of BEAR)"
    ]


def test_only_results_md_must_name_its_numbers(t, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "made", lambda *_: ({}, None))
    monkeypatch.setattr(results, "SETTINGS", "3")
    for name in ("RESULTS.md", "README.md"):
        (tmp_path / name).write_text("3 seeds,\n987 runs")
    found = [results.wrong_on(tmp_path / x, t, ({}, {})) for x in ("RESULTS.md", "README.md")]
    assert found == [["RESULTS.md:2: 987 has no name, and is 0 times a setting"], []]
