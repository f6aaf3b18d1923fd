"""benchmark/files.py: files that are whole."""

import io
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tqdm import tqdm

from benchmark import files
from benchmark.files import add_rows, commit, errors_in_one_line, write_json


def test_rows_are_replaced_by_those_of_the_same_key(tmp_path):
    path, key = tmp_path / "rows.json", ("step", "who")
    add_rows(path, [{"step": 1, "who": "a", "x": 1}, {"step": 2, "who": "a", "x": 2}], key)
    rows = add_rows(path, [{"step": 1, "who": "a", "x": 3}, {"step": 1, "who": "b", "x": 4}], key)
    assert [tuple(row.values()) for row in rows] == [(2, "a", 2), (1, "a", 3), (1, "b", 4)]
    assert json.loads(path.read_text()) == rows
    with pytest.raises(ValueError, match=r"rows.json: of another program or version, move it away"):
        add_rows(path, [{"size": 1}], ("size",))
    assert json.loads(path.read_text()) == rows


def test_many_add_at_once_and_none_is_lost(tmp_path, monkeypatch):
    path = tmp_path / "rows.json"

    def slow(*given):  # long enough for another to read
        time.sleep(0.05)
        write_json(*given)

    monkeypatch.setattr(files, "write_json", slow)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: add_rows(path, [{"n": n}], ("n",)), range(4)))
    assert sorted(row["n"] for row in json.loads(path.read_text())) == [0, 1, 2, 3]


def test_json_is_valid_and_utf_8_in_any_locale(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"β": [1e300, 0.1, float("nan"), float("inf")]})
    assert json.loads(path.read_bytes().decode()) == {"β": [1e300, 0.1, None, None]}


def test_a_terminal_that_lacks_a_letter_shows_another(monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii"))
    with errors_in_one_line():
        print("3.0 ± 0.1", flush=True)
    assert shown.getvalue() == b"3.0 ? 0.1\n"


def test_a_closed_stderr_is_no_error(monkeypatch):
    """Of a daemon, whose bars are drawn nowhere."""
    monkeypatch.setattr(sys, "stderr", None)
    with errors_in_one_line():
        for _ in tqdm(range(3)):
            pass
    with pytest.raises(SystemExit, match="error: a b"), errors_in_one_line():
        raise ValueError("a\n b")


def test_hardware_has_the_models_name_where_the_system_says_it(monkeypatch):
    monkeypatch.setitem(files.MODEL, "cpu", "echo Model X")
    monkeypatch.setitem(files.MODEL, "cuda", "true")
    assert files.hardware("cpu, 3 threads") == "Model X, 3 threads"
    assert files.hardware("cuda, 3 threads") == "cuda, 3 threads"


def test_a_commit_says_whether_files_have_changed_since(tmp_path):
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "a").touch()
    for words in (["init", "-q"], ["add", "a"], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    sha = subprocess.check_output(["git", "-C", tmp_path, "rev-parse", "HEAD"], text=True)
    clean = commit(tmp_path)
    assert len(clean) >= 7 and sha.startswith(clean)
    (tmp_path / "a").write_text("changed")
    assert commit(tmp_path) == f"{clean}-dirty"


def test_commit_of_a_folder_whose_name_a_shell_would_run(tmp_path):
    folder = tmp_path / "o'brien; touch RAN; #"
    folder.mkdir()
    assert commit(folder) == "" and not Path("RAN").exists()
