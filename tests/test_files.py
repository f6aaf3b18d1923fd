"""benchmark/files.py: files that are whole."""

import io
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock
from tqdm import tqdm

from benchmark import files


def test_rows_are_replaced_by_those_of_the_same_key(tmp_path):
    path, key = tmp_path / "rows.json", ("step", "who")
    files.add_rows(path, [{"step": 1, "who": "a", "x": 1}, {"step": 2, "who": "a", "x": 2}], key)
    new = [{"step": 1, "who": "a", "x": 3}, {"step": 1, "who": "b", "x": float("nan")}]
    files.add_rows(path, new, key)
    rows = json.loads(path.read_bytes())
    assert [tuple(row.values()) for row in rows] == [(2, "a", 2), (1, "a", 3), (1, "b", None)]
    with pytest.raises(ValueError, match=r"rows.json: of another program or version, move it away"):
        files.add_rows(path, [{"size": 1}], ("size",))
    assert json.loads(path.read_bytes()) == rows


@pytest.mark.parametrize("locks", [True, False])
def test_many_add_at_once_and_none_is_lost(locks, tmp_path, monkeypatch):
    """Where files cannot be locked, one after the other."""
    path, write_json = tmp_path / "rows.json", files.write_json

    def slow(*given):  # long enough for another to read
        time.sleep(0.05)
        write_json(*given)

    def no_locks(self):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(files, "write_json", slow)
    if not locks:
        monkeypatch.setattr(FileLock, "acquire", no_locks)
    with ThreadPoolExecutor(4 if locks else 1) as pool:
        list(pool.map(lambda n: files.add_rows(path, [{"n": n}], ("n",)), range(4)))
    assert sorted(row["n"] for row in json.loads(path.read_text())) == [0, 1, 2, 3]


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
