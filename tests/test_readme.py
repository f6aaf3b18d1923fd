"""What the README says of the scripts is what stands there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("script", ["uwac.py", "bear.py"])
def test_table_of_algorithm_1_points_to_the_right_lines(script):
    """Each row's number is the line of the script that begins the comment on that line of Algorithm 1."""
    code = (ROOT / script).read_text().splitlines()
    where = {1: "def __init__(self, args: Args", 2: "    for step in bar:"}
    where |= {line: f"# Line {line}: " for line in range(3, 13)}
    expected = {line: n for line, text in where.items() for n, row in enumerate(code, 1) if text in row}
    linked = {
        int(line): int(n) for line, n in re.findall(rf"^\| (\d+) \|.*\[\d+\]\({script}#L(\d+)\)", README, re.MULTILINE)
    }
    assert linked == expected
    assert sorted(set(where) - set(expected)) == ([4, 9] if script == "uwac.py" else [4, 7, 9])  # 4, 9: headings


def test_readme_names_every_metric():
    code = (ROOT / "uwac.py").read_text()
    metrics = set(re.findall(r'"(\w+)": \w+(?:\.mean\(1\)|\[:, 0\]|_loss\b)', code)) | {"score", "ood_auroc"}
    assert len(metrics) >= 10
    table = README.split("## What the metrics mean")[1].split("\n## ")[0]
    assert {name for name in metrics if f"`{name}`" not in table} == set()
