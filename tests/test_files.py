"""benchmark/lib/files.py: files that are whole."""

from pathlib import Path

from benchmark.lib.files import commit


def test_commit_of_a_folder_whose_name_a_shell_would_run(tmp_path):
    folder = tmp_path / "o'brien; touch RAN; #"
    folder.mkdir()
    assert commit(folder) == "" and not Path("RAN").exists()
