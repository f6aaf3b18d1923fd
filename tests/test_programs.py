"""Programs of benchmark/ one after the other, each by its command line."""

import csv
from pathlib import Path

from conftest import command_line, short

import uwac
from benchmark import report
from benchmark.measure import evaluate


def test_a_report_of_a_run(points, monkeypatch):
    result = uwac.main(short(uwac))
    assert command_line(evaluate, "run --episodes 2 --policies vae", monkeypatch) == 0
    assert command_line(report, "run --metrics target_q weight --latex", monkeypatch) == 0
    with open("runs/report/runs.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["method"].startswith("UWAC, passes 2, batch size 8, ")
    assert float(row["Q target"]) == result["history"][-1]["target_q"][0]
    found = sorted(file.name for file in Path("runs/report").iterdir())
    pictures = "01-Point-v0-policies", "01-Point-v0-target_q-weight"
    files = [f"{name}.{end}" for name in pictures for end in ("pdf", "png")]
    files += ["policies.csv", "policies.tex", "report.md", "runs.csv", "runs.tex"]
    assert found == [*files, "written_by_report.json"]
    text = Path("runs/report/runs.tex").read_text()
    assert text.startswith("\\begin{tabular}") and row["method"] in text
