"""Every program of benchmark/ starts by its path, and its command line does what it is for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, command_line, short, words

import uwac
from benchmark.measure import diagnose, true_q, variance
from benchmark.methods import SCRIPTS
from benchmark.variants import bc, ensembles, uwac_code, weights

PROGRAMS = [path for path in (ROOT / "benchmark").rglob("*.py") if "__main__" in path.read_text()]
# What `python FILE` does up to its last line, of one file after the other in one process.
START = """
import importlib, runpy, sys
own, ours = [*sys.path], ("benchmark", "uwac", "bear")
for program in sys.argv[1:]:
    for name in [*sys.modules]:
        if name.split(".")[0] in ours:
            del sys.modules[name]
    sys.path[:] = [program.rpartition("/")[0], *own[1:]]
    runpy.run_path(program)
    print(importlib.import_module("benchmark").__file__)
"""


def test_every_program_starts_from_any_folder_whatever_else_is_called_benchmark(tmp_path):
    """Somebody's package, and file, of that name are on the path."""
    (tmp_path / "start.py").write_text(START)
    for place, name in (("package", "benchmark/__init__.py"), ("file", "benchmark.py")):
        path = tmp_path / place / name
        path.parent.mkdir(parents=True)
        path.write_text("")
    modules = os.pathsep.join(str(tmp_path / place) for place in ("package", "file"))
    environment = os.environ | {"PYTHONPATH": modules}
    command = [sys.executable, "start.py", *map(str, PROGRAMS)]
    found = subprocess.check_output(command, text=True, cwd=tmp_path, env=environment)
    assert len(PROGRAMS) > 10
    assert {*found.split()} == {str(ROOT / "benchmark" / "__init__.py")}


def history(run):
    rows = json.loads(Path(run, "result.json").read_text())["history"]
    return [{name: of for name, of in row.items() if name != "seconds"} for row in rows]


@pytest.mark.parametrize("script, changes", [
    (weights, {"weighting": "constant", "beta": 1e-6}),
    (uwac_code, {"beta": 0.4}),
    (ensembles, {"members": "rem"}),
])  # fmt: skip
def test_the_command_of_a_variant_trains_it_and_no_other(script, changes, points, monkeypatch):
    assert command_line(script, words(script, run_dir="a", passes=2, **changes), monkeypatch) == 0
    of_python = short(script, run_dir="b", **{"passes": 2} | changes)
    uwac.main(of_python, agent_type=script.Agent, update=script.update)
    uwac.main(short(uwac, run_dir="c", passes=2))
    assert history("a") == history("b")
    assert history("a")[-1]["critic_loss"] != history("c")[-1]["critic_loss"]
    algorithm = json.loads(Path("a/result.json").read_text())["algorithm"]
    assert algorithm == Path(script.__file__).stem and algorithm in SCRIPTS


def test_the_commands_that_measure_a_run(points, monkeypatch, capsys):
    uwac.main(short(uwac, variance="analytic"))
    assert command_line(diagnose, "run", monkeypatch) == 0
    found = json.loads(Path("run/diagnosis-6.json").read_text())
    (vae_error,) = found["vae_error"]
    assert f"  vae_error: {vae_error:.3g}" in capsys.readouterr().out.splitlines()
    assert found == diagnose.diagnose(Path("run"))
    assert command_line(true_q, "--policy run", monkeypatch) == 0
    (row,) = json.loads(Path("run/true-q-6.json").read_text())
    assert f"{row['q']:,.1f}" in capsys.readouterr().out and row["episodes"] == 48


def test_the_commands_that_leave_files_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = "--total-steps 1 --batch-size 4 --states 7 --repetitions 2 --rates 0.2 --passes 2"
    assert command_line(variance, f"{few} --reference-passes 5", monkeypatch) == 0
    rows = json.loads(Path("runs/variance/variance.json").read_text())
    assert len(rows) == 12 and {row["rate"] for row in rows} == {0.2}
    few = "--env-id door-demo --num-seeds 1 --total-steps 1 --eval-episodes 1"
    assert command_line(bc, few, monkeypatch) == 0
    result = json.loads(Path("runs/bc/door-demo.json").read_text())
    assert result["task"] == "door-demo" and np.shape(result["history"][0]["scores"]) == (1, 1)
    assert command_line(true_q, "door-demo", monkeypatch) == 0
    (row,) = json.loads(Path("runs/true-q/door-demo.json").read_text())
    assert f"{row['in_episode']:,.1f}" in capsys.readouterr().out and row["what"] == "door-demo"
