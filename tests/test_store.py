"""benchmark/store.py: what programs left becomes rows of tables, by results made by hand."""

import json
import shutil

import pandas as pd
import pytest

from benchmark import store
from benchmark.methods import usual_args

NAME = "door-human_bear_float32_3-4"


@pytest.fixture
def folder(tmp_path):
    """Tables without a row."""
    shutil.copy(store.FOLDER / "studies.toml", tmp_path)
    for file in store.FOLDER.glob("*.csv"):
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
    found |= {"hardware": "AMD EPYC, 1 threads", "torch": ["2.13.0", "2.14.0"]}
    return found | {"scripts": [{"bear.py": "abc"}]} | others


FILES = {"result": "result.json", "evaluation": "evaluation.json"}
FILES |= {"diagnosis": "diagnosis-20.json", "q": "true-q-20.json"}


def save(folder, found, **others):
    """A run's folder, with what programs found of it."""
    folder.mkdir(parents=True)
    for name, content in {"result": found, **others}.items():
        (folder / FILES[name]).write_text(json.dumps(content))
    return folder


def played(policy="sample", step=20, scores=((1.0, 3.0), (5.0, 5.0))):
    one = {"step": step, "policy": policy, "candidates": 1, "episodes": 2, "seed": 0}
    return one | {"scores": scores, "returns": [[10 * x for x in of] for of in scores]}


def rows(folder, name):
    found = pd.read_csv(folder / f"{name}.csv").dropna(axis="columns", how="all")
    return found.to_dict("records")


def content_of(folder):
    return {file.name: file.read_bytes() for file in folder.glob("*.csv")}


def test_a_run_with_all_that_was_found_of_it(folder, tmp_path):
    diagnosis = {"mmd, 10": [0.1, 0.2], "q_share": [0.5, 0.25], "auroc_untrained": [0.4, 0.6, 0.8]}
    diagnosis |= {"auroc_action_norm": [0.7], "auroc_nearest": [1.0]}
    true_q = [{"what": "run", "updates": 20, "episodes": 48, "q": 270.5, "played": 10.25}]
    found = result(10, 20, study="door-human", command="python bear.py")
    run = save(tmp_path / "run", found, evaluation=[played()], diagnosis=diagnosis, q=true_q)
    (line,) = store.add([run], folder=folder)
    assert line == f"{NAME}: 1 of runs, 2 of diagnoses, 1 of returns, 4 of history, 2 of policies"
    (row,) = rows(folder, "runs")
    about = {"run": NAME, "task": "door-human", "method": "bear", "seed": 3, "num_seeds": 2}
    about |= {"updates": 20, "precision": "float32", "data": "a.hdf5", "data_sha256": "f00"}
    about |= {"max_reward": 19.5, "sha256": "bear.py:abc", "torch": "2.13.0 2.14.0"}
    about |= {"study": "door-human", "total_steps": 20, "command": "python bear.py"}
    assert row.items() >= about.items() and "run_dir" not in row
    tidy = {"run": NAME, "step": 20}
    assert rows(folder, "history") == [
        {"run": NAME, "agent": agent, "step": step, "seconds": step / 2, "target_q": q}
        for step in (10, 20)
        for agent, q in enumerate((step + 0.1, -1e-05))
    ]
    about = tidy | {"policy": "sample", "candidates": 1, "episodes": 2, "eval_seed": 0}
    assert rows(folder, "policies") == [
        about | {"agent": 0, "score": 2, "score_std": 2**0.5, "return": 20, "return_std": 200**0.5},
        about | {"agent": 1, "score": 5, "score_std": 0, "return": 50, "return_std": 0},
    ]
    about = tidy | {"auroc_untrained": pytest.approx(0.6), "auroc_untrained_lowest": 0.4}
    about |= {"auroc_untrained_highest": 0.8, "auroc_action_norm": 0.7, "auroc_nearest": 1}
    assert rows(folder, "diagnoses") == [
        about | {"agent": 0, "mmd_10": 0.1, "q_share": 0.5},
        about | {"agent": 1, "mmd_10": 0.2, "q_share": 0.25},
    ]
    about = tidy | {"task": "door-human", "of": "run", "episodes": 48, "q": 270.5, "played": 10.25}
    assert rows(folder, "returns") == [about]
    assert "-1e-05" in (folder / "history.csv").read_text()
    before = content_of(folder)
    store.add([run], folder=folder)
    assert before == content_of(folder)


def test_a_run_goes_on_and_keeps_what_was_found(folder, tmp_path):
    """Its copy at an earlier update only adds to it, whichever of the two comes first."""
    of_grid = {"study": "class", "command": "python bear.py"}  # which the run's folder lacks
    first = save(tmp_path / "first", result(10, **of_grid), evaluation=[played(step=10)])
    longer = result(10, 20, 30)
    del longer["data"]["max_reward"]
    longer["args"]["total_steps"] = 30
    longer["history"][2]["policy_variance"] = [0.5, 0.25]  # a metric that no run before had
    whole = save(tmp_path / "whole", longer, evaluation=[played(step=30)])
    store.add([first, whole], folder=folder)
    (row,) = rows(folder, "runs")
    assert (row["updates"], row["total_steps"]) == (30, 30)
    assert [row["step"] for row in rows(folder, "history")] == [10, 10, 20, 20, 30, 30]
    assert [row["policy_variance"] for row in rows(folder, "history")][4:] == [0.5, 0.25]
    assert [row["step"] for row in rows(folder, "policies")] == [10, 10, 30, 30]
    assert (row["study"], row["command"], row["max_reward"]) == ("class", "python bear.py", 19.5)
    assert store.add([first], folder=folder) == [f"{NAME}: 2 of policies"]
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
    store.add([save(tmp_path / "run", result(10, 20))], folder=folder)
    before = content_of(folder)
    new = save(tmp_path / "new", result(10, 20, algorithm="uwac"))
    another = save(tmp_path / "another", result(10, 20) | other)
    with pytest.raises(ValueError) as error:
        store.add([new, another], folder=folder)
    assert str(error.value).startswith(f"{another}/result.json: nothing is added: ")
    assert why in str(error.value) and before == content_of(folder)
    store.add([another], folder=folder, study="class")
    apart, first = rows(folder, "runs")
    assert apart["study"] == "class" and apart["run"] == first["run"].replace("_f", "_class_f")


@pytest.mark.parametrize("content, problem", [
    (result(), "not evaluated yet"), ({"a": 1}, "not what a program"), ("[", "damaged"),
    (None, "no results in"),
])  # fmt: skip
def test_what_is_no_result(folder, tmp_path, content, problem):
    run = tmp_path / "run"
    run.mkdir()
    if content:
        (run / "result.json").write_text(content if content == "[" else json.dumps(content))
    with pytest.raises(ValueError, match=problem):
        store.add([run], folder=folder)


CHEAP = {"variance": "analytic"}


@pytest.mark.parametrize("algorithm, args, name, weighting", [
    ("what_bounds_q", CHEAP | {"control": "shuffled", "weighting": "variance",
     "spectral_norm": False}, "uwac-shuffled", "shuffled"),
    ("what_bounds_q", CHEAP | {"control": "fixed-w", "weighting": "none", "dropout": 0.0,
     "spectral_norm": True}, "bear-fixed-w_spectral-norm-True", "fixed-w"),
    ("uwac", CHEAP | {"weighting": "none", "dropout": 0.0, "spectral_norm": True}, "bear+sn",
     "none"),
    ("uwac", CHEAP | {"weighting": "variance", "spectral_norm": True, "beta": 2.5, "resume": None},
     "uwac-analytic_beta-2.5", None),
])  # fmt: skip
def test_results_of_earlier_versions(folder, tmp_path, algorithm, args, name, weighting):
    """In a grid, whose evaluations may stand in its files, and whose work/ holds the same runs. The
    methods have today's names."""
    old = result(10, 20, policies=[played("best")], algorithm=algorithm, torch="2.13.0")
    del old["scripts"]
    old["args"] = usual_args("uwac.py", "door-human") | old["args"] | args
    save(tmp_path / "grid" / "work" / "one", old, evaluation=[played("vae")])
    (tmp_path / "grid" / "one.json").write_text(json.dumps(old))
    lines = store.add([tmp_path / "grid"], folder=folder)
    assert [line.split(":")[0] for line in lines] == [f"door-human_{name}_float32_3-4"]
    (row,) = rows(folder, "runs")
    assert row.get("weighting") == weighting and row["algorithm"] in ("weights", "uwac")
    assert row["torch"] == "2.13.0" and "control" not in row
    assert [row["policy"] for row in rows(folder, "policies")] == ["best", "best", "vae", "vae"]


def test_our_tables_keep_all_that_they_have(tmp_path):
    for file in store.FOLDER.glob("*.csv"):
        shutil.copy(file, tmp_path)
    run = save(tmp_path / "run", result(10, 20) | {"hardware": "NVIDIA H200, cuda"})
    store.add([run], folder=tmp_path)
    for name in store.KEYS:
        before = (store.FOLDER / f"{name}.csv").read_text().splitlines()
        after = (tmp_path / f"{name}.csv").read_text().splitlines()
        new = [line for line in after if "_bear_tf32_3-4" in line]
        assert [line for line in after if line not in new] == before
        assert len(new) == {"runs": 1, "history": 4}.get(name, 0)


@pytest.mark.parametrize("asked, hardware, precision", [
    ("high", "NVIDIA H200, 1 threads", "tf32"), ("highest", "NVIDIA H200, cuda", "float32"),
    ("medium", "Intel Xeon with AMX, 1 threads", "bfloat16"),
    ("medium", "Intel Xeon without AMX, 1 threads", "float32"),
    ("medium", "cpu, 1 threads", "float32"),
    ("high", "Intel Xeon with AMX, 1 threads", "float32"),
])  # fmt: skip
def test_precision_is_what_the_hardware_line_says(monkeypatch, asked, hardware, precision):
    """Whatever this machine is."""
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: True, raising=False)
    found = result(10) | {"hardware": "another"}
    found["args"]["matmul_precision"] = asked
    row = store.run_row(found, hardware)
    assert (row["precision"], row["hardware"]) == (precision, hardware)


SPEED = {"group": "door-human", "version": "BEAR", "num_seeds": 1, "batch_size": 256}
SPEED |= {"passes": 100, "date": "2026-12-01", "ms": [50.0, None, 55.0], "floor_ms": [9, 9, 9.5]}
VARIANCE = {"rate": 0.1, "spectral_norm": True, "actions": "data", "estimate": "one mask"}
VARIANCE |= {"passes": 10, "hardware": "CPU", "rmse": 0.5, "log_correlation": 0.75}
CLONED = {"data_score": 29.0, "data": {"path": "x/a.hdf5"}, "command": "python bc.py"}
CLONED |= {"history": [{"step": 20, "scores": [[1.0, 3.0], [4.0, 4.0]]}]}
RETURNS = [{"what": "pen-human", "episodes": 25, "bound": 2000.0, "continued": 634.5}]
RETURNS += [{"what": "pen-expert, played", "episodes": 48, "played": 4995.5}]
HALF = {"auroc_norm": 0.9, "auroc_distance": 1.0, "states_removed": 7, "transitions_trained": 5}
HALF |= {"history": [{"step": 0, "auroc_variance": [0.5, 0.75]}]}


@pytest.mark.parametrize("table, found, right", [
    ("speed", [SPEED], [{"series": 2, "round": 0, "ms": 50}, {"series": 2, "round": 2, "ms": 55}]),
    ("variance", [VARIANCE], [VARIANCE]),
    ("bc", CLONED, [{"task": "pen-human", "agent": 0, "score": 2, "score_std": 2**0.5},
                    {"task": "pen-human", "agent": 1, "score": 4, "episodes": 2}]),
    ("returns", RETURNS, [{"task": "pen-human", "of": "data", "episodes": 25},
                          {"task": "pen-expert", "of": "policy", "episodes": 48}]),
    ("lunarlander", {"args": {"beta": 1.6}, "clips": {"left": HALF}},
     [{"removed": "left", "agent": 0, "auroc_variance": 0.5},
      {"removed": "left", "agent": 1, "auroc_variance": 0.75}]),
])  # fmt: skip
def test_what_other_programs_leave(folder, tmp_path, table, found, right):
    """Taken twice it is there once. What speed.py measured in one call is a series."""
    pd.read_csv(store.FOLDER / "speed.csv", nrows=1).to_csv(folder / "speed.csv", index=False)
    file = tmp_path / "pen-human.json"
    file.write_text(json.dumps(found))
    for _ in range(2):
        store.add([file], folder=folder)
        new = rows(folder, table)[table == "speed" :]
        assert all(row.items() >= some.items() for row, some in zip(new, right, strict=True))


@pytest.mark.parametrize("found, other", [
    ({"args": {"beta": 2.5, "seed": 1, "dropout": 0.5}, "clips": {"left": HALF}}, "dropout, seed"),
    ([VARIANCE | {"env_id": "hopper-medium", "states": 256}], "env_id"),
])  # fmt: skip
def test_a_study_with_arguments_that_no_column_has_is_refused(folder, tmp_path, found, other):
    (tmp_path / "a.json").write_text(json.dumps(found))
    with pytest.raises(ValueError, match=f"no column for another {other}$"):
        store.add([tmp_path / "a.json"], folder=folder)


def test_a_later_study_takes_the_place_of_a_whole_one(folder, tmp_path):
    """And not of some of its agents, the others of which had other data."""
    one = HALF | {"history": [{"step": 0, "auroc_variance": [0.25]}]}
    file = tmp_path / "pen-human.json"
    for found in (
        {"args": {"beta": 1.6}, "clips": {"left": HALF, "top": HALF}},
        {"args": {"beta": 1.6}, "clips": {"left": one}}, CLONED,
        CLONED | {"history": [{"step": 40, "scores": [[7.0]]}]},
    ):  # fmt: skip
        file.write_text(json.dumps(found))
        store.add([file], folder=folder)
    found = [(row["removed"], row["auroc_variance"]) for row in rows(folder, "lunarlander")]
    assert found == [("top", 0.5), ("top", 0.75), ("left", 0.25)]
    assert [row["score"] for row in rows(folder, "bc")] == [7]


def test_published_scores(tmp_path, monkeypatch):
    """As printed in the paper; the last of a clone's evaluations; those of the same data."""
    rows = [("door-human", 1, 9.0), ("door-human", 2, 1.5), ("door-human", 2, 4.5), ("a", 2, 7.0)]
    pd.DataFrame(rows, columns=["task", "step", "score"]).to_csv(tmp_path / "bc.csv")
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    paper = {"paper: UWAC (v0)": 10.7, "paper: BEAR (v0)": -0.3}
    assert store.reference_scores("door-human") == paper | {store.BC: 3}
    assert store.reference_scores("hopper-random")["paper: UWAC (v0)"] == 22.4
    assert store.reference_scores("a") == {store.BC: 7} and store.reference_scores("b") == {}
    context = store.beside_the_paper()
    row = context.loc["hopper-medium-expert"].round(1).to_list()
    assert len(context) == 12 and row == [134.7, 21.2, 96.3, 64.7, 111.8, 116.5]


@pytest.mark.parametrize("number, sums", [
    (1, [1105.0, 141.5, 440.0, 773.0, 802.6, 379.9, 322.7, 485.4, 642.5, 997.0, -8.9, 0.7]),
    (2, [594.7, 42.7, 460.3, 440.8, 72.7, 93.6, 116.8, 386.5, 476.1, 64.2, 0.1, -9.3]),
])  # fmt: skip
def test_the_papers_tables_add_up(number, sums):
    """To what the columns of the tables in the paper's source do."""
    table = pd.read_csv(store.PAPER / f"table{number}.csv").drop(columns=["table", "task"])
    assert table.sum().round(1).to_list() == sums


def test_every_run_of_a_study_is_in_the_tables_and_every_query_finds_some():
    """But of those that still are to be run, which say so by their kernel."""
    t = store.load()
    for name, study in t.studies.items():
        assert {*study.get("runs", [])} <= {*t.runs["run"]}
        assert {*study.get("warmup_of", {}).values()} <= {*t.runs["run"]}
        assert len(t.runs.query(study["where"])) or name.endswith("-laplacian"), name
