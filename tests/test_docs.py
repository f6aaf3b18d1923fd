"""What README.md and the pages in docs/, benchmark/ and tests/ say of the scripts is true of them."""

import contextlib
import re
import runpy
import textwrap
from dataclasses import fields

import numpy as np
import pytest
from conftest import ROOT, scalars

import uwac

TEXT = {str(page.relative_to(ROOT)): page.read_text() for page in ROOT.glob("[!r.]*/*.md")}
TEXT |= {page.name: page.read_text() for page in ROOT.glob("*.md")}
FILES = [*ROOT.glob("*.py"), *ROOT.glob("benchmark/*.py"), *ROOT.glob("tests/[!t]*.py")]
CODE = "\n".join(file.read_text() for file in FILES)
RECORDS = {"benchmark/RESULTS.md", "benchmark/NOTEBOOK.md"}  # of runs with the options of their day
OF_OTHERS = {"head", "help", "logdir", "ignore-missing", "check"}  # options of other programs


def programs(page):
    return re.findall(r"```python\n(.*?)```", TEXT[page], re.DOTALL)


def usage(heading):
    return TEXT["docs/usage.md"].split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_programs_run_and_usage_md_lists_what_they_leave(tmp_path):
    train, longer = programs("docs/usage.md")
    train = train.replace("5_000", "400").replace("total_steps=200", "total_steps=2")
    longer = longer.replace("total_steps=400", "total_steps=3")
    names = {"observations": np.zeros((7, 3))}
    with contextlib.chdir(tmp_path):
        for program in (train, longer, programs("README.md")[0]):
            run = next((tmp_path / "runs").glob("*"), "")
            (tmp_path / "program.py").write_text(program.replace("runs/RUN", str(run)))
            names = runpy.run_path("program.py", names)
    assert names["actions"].shape == (7, 1) and 1 < np.abs(names["actions"]).max() <= 2
    assert names["result"]["history"][-1]["step"] == 3
    for file in run.iterdir():
        assert f"| `{file.name.split('.')[0]}." in usage("A run's folder")
    for name in {tag.split("/")[0] for tag in scalars(run)}:
        assert f"| `{name}` |" in usage("Metrics")


def test_usage_md_has_every_argument_with_its_default():
    for field in fields(uwac.Args):
        assert f"| `--{field.name.replace('_', '-')}` | {field.default} |" in usage("Arguments")


def test_quotations_are_the_codes():
    for quotation in programs("docs/walkthrough.md"):
        assert any(textwrap.indent(quotation, " " * 4 * n) in CODE for n in range(4)), quotation


@pytest.mark.parametrize("page", TEXT)
def test_links_programs_and_options_exist(page):
    prose = re.sub(r"```python\n.*?```", "", TEXT[page], flags=re.DOTALL)
    for link, anchor in re.findall(r"\]\(([^)#:]*)#?([^)#:]*)\)", prose):
        target = (ROOT / page).parent / link if link else ROOT / page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", h.lower().replace(" ", "-")) for h in headings]
    for program in re.findall(r"(?:python|bash) ([\w/]+\.(?:py|sh))", prose):
        assert (ROOT / program).exists()
    options = set() if page in RECORDS else set(re.findall(r"(?<!\w)--([a-z][a-z0-9-]+)", prose))
    for option in options - OF_OTHERS:
        field = option.replace("-", "_")
        assert re.search(rf'^    {field}: |"--{option}"', CODE, re.MULTILINE), option


def test_benchmark_readme_lists_its_programs():
    for file in (ROOT / "benchmark").glob("*.[ps][yh]"):
        assert f"]({file.name})" in TEXT["benchmark/README.md"]
