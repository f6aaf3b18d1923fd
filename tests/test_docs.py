"""Programs in the pages run, quotations are the code, links lead somewhere."""

import importlib
import json
import re
import runpy
import sys
import textwrap
from dataclasses import fields
from pathlib import Path

import pytest
from conftest import ROOT, scalars

import d4rl
import uwac

PAGES = [*ROOT.glob("*.md"), *ROOT.glob("[!r.]*/*.md")]
USAGE = (ROOT / "docs" / "usage.md").read_text()
SHORTER = {"(5_000": "(400", "total_steps=200": "total_steps=2, eval_candidates=2"}
SHORTER |= {"total_steps=400": "total_steps=3"}


def programs(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_programs_run_and_usage_md_lists_what_they_leave(tmp_path, monkeypatch):
    """In turn, with the names of those before, as the cells of a notebook."""
    monkeypatch.chdir(tmp_path)
    line = "mine.py --env-id Pendulum-v1 --dataset-path pendulum.hdf5 --run-dir runs/mine"
    line += " --total-steps 1 --eval-episodes 1 --eval-candidates 2 --variance analytic --beta 1e-6"
    monkeypatch.setattr(sys, "argv", line.split())
    names = {}
    make_data, *others = programs("README.md")
    for program in (make_data, *programs("docs/usage.md"), *others):
        for long, short in SHORTER.items():
            program = program.replace(long, short)
        Path("program.py").write_text(program.replace("runs/RUN", str(names.get("run"))))
        names = runpy.run_path("program.py", names, "__main__")
    history = names["result"]["history"]
    assert names["returns"].shape == (1,)  # of README's last program
    assert [row["step"] for row in history] == [2, 3]
    (curve,) = names["plt"].gca().lines
    assert curve.get_xydata().tolist() == [[2, history[0]["target_q"][0]]]

    mine = json.loads(Path("runs/mine/result.json").read_text())
    steps = d4rl.qlearning_dataset(d4rl.make("Pendulum-v1"), "pendulum.hdf5")
    assert mine["transitions"] == len(steps["rewards"]) == 400 - 2  # of two episodes the last step
    assert mine["algorithm"] == "mine" and "program.py" in mine["scripts"][0]
    assert 0 < mine["history"][0]["weight"][0] < 1  # uwac.py's would be the clip, 1.5

    run = Path(names["run"])
    for file in run.iterdir():
        assert f"| `{file.name.split('.')[0]}." in USAGE
    for name in (*mine, *{tag.split("/")[0] for tag in scalars(run)}):
        assert f"`{name}`" in USAGE


def test_usage_md_has_what_a_resumed_run_may_change():
    (sentence,) = re.findall(r"\n- ([^.]*) may change,\s+and\s+([^.]*)\.", USAGE)
    words = re.findall("`--([a-z-]+)`", " ".join(sentence))
    assert {word.replace("-", "_") for word in words} == {*uwac.RESUMABLE} - {"run_dir", "resume"}


def test_usage_md_has_every_argument_with_its_default():
    for field in fields(uwac.Args):
        assert f"| `--{field.name.replace('_', '-')}` | {field.default} |" in USAGE


def test_quotations_are_the_codes():
    code = (ROOT / "uwac.py").read_text()
    for quotation in programs("docs/walkthrough.md"):
        assert any(textwrap.indent(quotation, " " * 4 * n) in code for n in range(5)), quotation


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    prose = re.sub(r"```python\n.*?```", "", page.read_text(), flags=re.DOTALL)
    for link, anchor in re.findall(r"\]\(([^)#:]*)#?([^)#:]*)\)", prose):
        target = page.parent / link if link else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", h.lower().replace(" ", "-")) for h in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_table_is_cut_in_two(page):
    """Each has a head, a rule and rows of as many cells; a blank line would end it."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", prose, re.MULTILINE):
        lines = table.splitlines()
        assert len(lines) > 2 and not set(lines[1]) - set("|-: "), lines[0]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1, lines[0]


@pytest.mark.parametrize("script", ["uwac", "bear"])
def test_lines_of_a_new_term_of_a_loss_are_the_scripts_and_train(script, tmp_path, monkeypatch):
    (changes,) = re.findall(r"```diff\n(.*?)```", USAGE, re.DOTALL)
    code = (ROOT / f"{script}.py").read_text()
    for hunk in re.split(r"^@@.*\n", changes, flags=re.MULTILINE)[1:]:
        lines = hunk.replace('"uwac"', f'"{script}"').splitlines()
        old = "\n".join(line[1:] for line in lines if line[0] != "+")
        new = "\n".join(line[1:] for line in lines if line[0] != "-")
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(code)
    mine = importlib.import_module("mine")
    short = {"total_steps": 1, "eval_episodes": 1, "eval_candidates": 2}
    result = mine.main(mine.Args("door-demo", imitation=2.0, **short))
    (row,) = result["history"]
    without = row["alpha"][0] * (row["mmd"][0] - 0.07)  # in the warm-up
    assert result["algorithm"] == "mine" and row["imitation"][0] > 0.1
    assert row["actor_loss"][0] == pytest.approx(without + 2 * row["imitation"][0], rel=1e-5)
