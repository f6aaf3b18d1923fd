"""UWAC is BEAR and what Algorithm 1 colours: letter for letter, and number for number; and both are
what they were."""

import ast
import json

import pytest
from conftest import ROOT, short

import bear
import uwac

COLOURED = {"Args", "MLP", "Critic", "Agent", "update", "train"}


def definitions(script):
    """Every statement at the top level of a script, with its comments, by its first line."""
    source = (ROOT / script).read_text()
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body[1:]:  # without the docstring
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        name = getattr(node, "name", lines[first - 1])
        found[name] = lines[first - 1 : node.end_lineno]
    return found


def test_bear_stands_in_uwac_letter_for_letter():
    """So most tests need to run for one of them."""
    ours, theirs = definitions("bear.py"), definitions("uwac.py")
    assert {name for name in ours if ours[name] != theirs.get(name)} == COLOURED


def test_uwac_with_its_parts_off_is_bear(points):
    off = {"weighting": "none", "dropout": 0.0, "spectral_norm": False, "variance": "analytic"}
    of_bear = bear.main(short(bear, run_dir="bear", warmup_steps=2))["history"]
    of_uwac = uwac.main(short(uwac, run_dir="uwac", warmup_steps=2, **off))["history"]
    for row, same in zip(of_bear, of_uwac, strict=True):
        del row["seconds"]
        assert {name: same[name] for name in row} == row


def test_metrics_are_those_of_earlier_versions(script, tmp_path):
    """After 30 updates on door-demo, of which 10 are no warm-up: recorded at commit 443e238, on a
    CPU of which another one's rounding differs."""
    recorded = json.loads((ROOT / "tests" / "golden" / "histories.json").read_text())
    settings = {"total_steps": 30, "warmup_steps": 20, "eval_episodes": 1, "eval_candidates": 1}
    settings |= {"variance": "analytic"} if script is uwac else {}
    args = script.Args("door-demo", run_dir=str(tmp_path / "run"), **settings)
    (row,) = script.main(args)["history"]
    found = {name: row[name][0] for name in recorded[script.__name__]}
    assert found == pytest.approx(recorded[script.__name__], rel=1e-4)
