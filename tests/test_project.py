"""The two scripts as files: the same where they should be, alone where they must be, short and complete."""

import ast
import difflib
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

import bear
import uwac

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ["bear.py", "uwac.py"]
# What Algorithm 1 colours, and by how many lines bear.py differs there: the rest of these stands in uwac.py, too.
DIFFERENT = {"Args": 2, "MLP": 2, "Critic": 4, "Agent.__init__": 2, "Agent.q_values": 2, "Agent.update": 9, "main": 0}
DIFFERENT |= {"parse_args": 1, "Agent.policy": 2, "evaluate_run": 1}


def definitions(script):
    """Source of every top-level function and class and of every method of Agent, by name; of constants, too."""
    source, found = (ROOT / script).read_text(), {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == "Agent":
            found["Agent's bases"] = " ".join(map(ast.unparse, [*node.bases, *node.decorator_list]))
            found |= {
                f"Agent.{m.name}" if hasattr(m, "name") else "Agent's docstring": text(source, m) for m in node.body
            }
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = text(source, node)
        elif isinstance(node, ast.Assign):
            found[node.targets[0].id] = text(source, node)
    return found


def text(source, node):
    """Lines of a definition, with its decorators and the comments in it."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return "\n".join(source.splitlines()[first - 1 : node.end_lineno])


def test_shared_code_is_the_same_to_the_letter():
    """All of bear.py stands in uwac.py; what differs is named above, and holds no line of its own beyond the number."""
    ours, theirs = definitions("bear.py"), definitions("uwac.py")
    assert len(ours) > 20 and set(ours) <= set(theirs)
    assert {name for name in ours if ours[name] != theirs[name]} == set(DIFFERENT)
    own_lines = {
        name: sum(line.startswith("- ") for line in difflib.ndiff(*(d[name].splitlines() for d in (ours, theirs))))
        for name in DIFFERENT
    }
    assert {name: n for name, n in own_lines.items() if n > DIFFERENT[name]} == {}


def test_only_uwac_has():
    """What stands in uwac.py alone is UWAC's, by name."""
    expected = {
        "SpectralNorm",
        "dropout_masks",
        "mc_dropout_variance",
        "analytic_dropout_variance",
        "uncertainty_weight",
    }
    expected |= {
        "Uwac",
        "Ensemble",
        "Agent.mixture",
        "Agent.mix",
        "Agent.uncertainty",
        "Agent.q_variance",
        "Agent.ood_auroc",
    }
    assert set(definitions("uwac.py")) - set(definitions("bear.py")) == expected


@pytest.mark.parametrize("script", SCRIPTS)
def test_pep_723_metadata_is_requirements_txt(script):
    """Without what the tests alone need."""
    block = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", (ROOT / script).read_text(), re.MULTILINE).group(1)
    needed, _ = (ROOT / "requirements.txt").read_text().split("# for the tests alone")
    rows = [line for line in needed.splitlines() if line and not line.startswith("#")]
    assert all("==" in row for row in rows)
    dependencies = re.findall(r'"([^"]+)"', block.split("dependencies")[1])
    assert sorted(dependencies) == sorted(rows)
    assert '# requires-python = ">=3.11"\n' in block


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_alone(script, tmp_path):
    """Copied into an empty folder, in a process that sees nothing of this one."""
    shutil.copy(ROOT / script, tmp_path)
    words = "--env-id door-demo --total-steps 2 --eval-episodes 1 --eval-candidates 2 --batch-size 4 --dataset-path"
    passes = ["--passes", "2"] if script == "uwac.py" else []  # 100 of them over 2,000 states take seconds
    command = [sys.executable, "-I", script, *words.split(), str(ROOT / "data" / "door-demo.hdf5"), *passes]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "result.json").exists()
    assert re.search(r"step 2: score -?\d", done.stdout)


@pytest.mark.parametrize("script, lines", [("bear.py", 744), ("uwac.py", 902)])
def test_length(script, lines):
    """500 and 600 with the algorithms, their data and evaluation; the rest is what a run needs to be safe."""
    rows = (ROOT / script).read_text().splitlines()
    assert len(rows) <= lines
    assert max(map(len, rows)) <= 120


@pytest.mark.parametrize("script", SCRIPTS)
def test_python_3_11_can_read_it(script):
    ast.parse((ROOT / script).read_text(), feature_version=(3, 11))


def test_comments_follow_algorithm_1(script):
    """An update names the lines of the algorithm in their order: 3, 5, 6, (7,) 8, 10, 11, 12."""
    named = [int(n) for n in re.findall(r"# Line (\d+)", inspect.getsource(script.Agent.update))]
    assert named == ([3, 5, 6, 8, 10, 11, 12] if script is bear else [3, 5, 6, 7, 8, 10, 11, 12])


@pytest.mark.parametrize("script", SCRIPTS)
def test_nothing_is_unpickled(script):
    """Every torch.load says weights_only=True; no pickle, no allow_pickle."""
    source = (ROOT / script).read_text()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    loads = [call for call in calls if ast.unparse(call.func) == "torch.load"]
    assert loads and all("weights_only=True" in ast.unparse(call) for call in loads)
    assert "pickle" not in source


def test_door_demo():
    """25 episodes of 200 steps in D4RL's five arrays, under 1.5 MB, with a word on how they were made."""
    path = ROOT / "data" / "door-demo.hdf5"
    assert path.stat().st_size < 1.5e6
    with h5py.File(path) as file:
        shapes = {name: (array.shape, array.dtype.name) for name, array in file.items()}
        ends, attributes = file["timeouts"][()].nonzero()[0].tolist(), dict(file.attrs)
        returns = file["rewards"][()].reshape(25, 200).sum(1)
    assert shapes == {
        "observations": ((5000, 39), "float32"), "actions": ((5000, 28), "float32"), "rewards": ((5000,), "float32"),
        "terminals": ((5000,), "bool"), "timeouts": ((5000,), "bool"),
    }  # fmt: skip
    assert ends == list(range(199, 5000, 200))
    assert {"policy", "environment", "versions"} <= set(attributes)
    assert uwac.normalized_score("door-demo", returns).mean() > 90
