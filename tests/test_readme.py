"""What README.md and benchmark/*.md say of the scripts is true of them."""

import contextlib
import re
import runpy

import numpy as np
import pytest
from conftest import ROOT

README = (ROOT / "README.md").read_text()
FILES = [*ROOT.glob("*.py"), *ROOT.glob("benchmark/*.py")]
FILES += [ROOT / "tests" / f"{name}.py" for name in ("fuzz_dataset", "kill_and_resume")]
ACT, TRAIN = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_its_programs_run_and_it_explains_every_metric(tmp_path):
    """Its training on Pendulum with fewer steps; then a trained policy acts in three lines."""
    assert "5_000" in TRAIN and "total_steps=200" in TRAIN
    train, act = tmp_path / "train.py", tmp_path / "act.py"
    train.write_text(TRAIN.replace("5_000", "400").replace("total_steps=200", "total_steps=2"))
    with contextlib.chdir(tmp_path):
        result = runpy.run_path(str(train))["result"]
    last = result["history"][-1]
    assert last["score"] == pytest.approx(last["return"])
    (run,) = (tmp_path / "runs").iterdir()
    act.write_text(ACT.replace("runs/RUN", str(run)))
    actions = runpy.run_path(str(act), {"observations": np.zeros((7, 3))})["actions"]
    assert actions.shape == (7, 1) and np.abs(actions).max() <= 1
    metrics = last.keys() - {"step", "seconds"}
    table = README.split("## What the metrics mean")[1].split("\n## ")[0]
    assert {name for name in metrics if f"`{name}`" not in table} == set()


@pytest.mark.parametrize("page", ["README.md", "benchmark/README.md"])
def test_options_exist(page):
    code = "\n".join(file.read_text() for file in FILES)
    options = set(re.findall(r"--([a-z][a-z0-9-]+)", (ROOT / page).read_text()))
    options -= {"head", "help", "logdir"}  # Ray's, tyro's, TensorBoard's
    missing = set()
    for option in options:
        field = option.replace("-", "_")
        if not re.search(rf'^    {field}: |"--{option}"', code, re.MULTILINE):
            missing.add(option)
    assert len(options) > 10 and missing == set()


@pytest.mark.parametrize("page", ["README.md", "benchmark/README.md", "benchmark/RESULTS.md"])
def test_links_lead_to_files(page):
    folder = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    missing = [link for link in links if not (folder / link).exists()]
    assert len(links) > 5 and missing == []
