"""benchmark/files.py: files that are whole."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tqdm import tqdm

from benchmark import files


def test_a_number_that_json_has_not_is_null(tmp_path):
    files.write_json(tmp_path / "a.json", [1.5, float("nan"), float("inf")])
    assert json.loads((tmp_path / "a.json").read_text()) == [1.5, None, None]


def test_an_error_is_one_line_also_without_a_stderr_and_in_any_terminal(monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii"))
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit, match="error: a b"), files.errors_in_one_line():
        print("3.0 ± 0.1", flush=True)
        for _ in tqdm(range(3)):
            pass
        raise ValueError("a\n b")
    assert shown.getvalue() == b"3.0 ? 0.1\n"


def test_a_commit_says_whether_files_have_changed_since(tmp_path):
    """Whatever a shell would make of the folder's name."""
    folder = tmp_path / "o'brien; touch RAN; #"
    folder.mkdir()
    assert files.commit(folder) == ""
    (folder / "a").touch()
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "a"], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", folder, *words], check=True)
    clean = files.commit(folder)
    assert len(clean) >= 7
    (folder / "a").write_text("changed")
    assert files.commit(folder) == f"{clean}-dirty" and not Path("RAN").exists()
