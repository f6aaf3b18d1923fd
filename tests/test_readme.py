"""What README.md and benchmark/*.md say of the scripts is true of them."""

import contextlib
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "benchmark/README.md", "benchmark/RESULTS.md"]
README = (ROOT / "README.md").read_text()
FILES = [*ROOT.glob("*.py"), *ROOT.glob("benchmark/*.py")]
FILES += [ROOT / "tests" / f"{name}.py" for name in ("fuzz_dataset", "kill_and_resume")]
ACT, TRAIN = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def folder_and_result(tmp_path_factory):
    """What the README's training on Pendulum leaves and returns, with fewer steps."""
    folder = tmp_path_factory.mktemp("readme")
    assert "5_000" in TRAIN and "total_steps=200" in TRAIN
    program = folder / "train.py"
    program.write_text(TRAIN.replace("5_000", "400").replace("total_steps=200", "total_steps=2"))
    with contextlib.chdir(folder):
        names = runpy.run_path(str(program))
    return folder, names["result"]


def test_it_is_short():
    assert len(README.splitlines()) <= 220


def test_the_score_of_an_environment_of_ones_own_is_the_return(folder_and_result):
    _, result = folder_and_result
    returns = result["history"][-1]["return"]
    assert result["last"]["mean"] == pytest.approx(np.mean(returns))


def test_a_trained_policy_acts_in_three_lines(folder_and_result):
    folder, _ = folder_and_result
    (run,) = (folder / "runs").iterdir()
    program = folder / "act.py"
    program.write_text(ACT.replace("runs/RUN", str(run)))
    names = runpy.run_path(str(program), {"observations": np.zeros((7, 3))})
    assert names["actions"].shape == (7, 1)
    assert np.abs(names["actions"]).max() <= 1


def test_it_explains_every_metric(folder_and_result):
    _, result = folder_and_result
    metrics = set(result["history"][-1]) - {"step", "seconds"}
    table = README.split("## What the metrics mean")[1].split("\n## ")[0]
    assert {name for name in metrics if f"`{name}`" not in table} == set()


@pytest.mark.parametrize("page", ["README.md", "benchmark/README.md"])
def test_options_exist(page):
    code = "\n".join(file.read_text() for file in FILES)
    options = set(re.findall(r"--([a-z][a-z0-9-]+)", (ROOT / page).read_text()))
    options -= {"head", "help"}  # Ray's, tyro's
    missing = set()
    for option in options:
        field = option.replace("-", "_")
        if not re.search(rf'^    {field}: |"--{option}"', code, re.MULTILINE):
            missing.add(option)
    assert len(options) > 10 and missing == set()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    folder = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    missing = [link for link in links if not (folder / link).exists()]
    assert len(links) > 5 and missing == []
