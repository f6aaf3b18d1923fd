"""benchmark/speed.py: its own numbers, table and file."""

import json

import speed
import torch


def timed(version: str, ms: list, group: str = "door-human") -> dict:
    row = {"version": version, "group": group, "ms": ms, "floor_ms": [1.0, 2.0, 2.0], "peak_mb": 7}
    return speed.SIZES | row


def test_table_by_hand():
    """Medians of the rounds' own ratios, without the rounds that a slow version sat out."""
    rows = [timed("BEAR", [2.0, 4.0, 3.0]), timed("UWAC analytic", [3.0, 4.0, 6.0])]
    rows.append(timed("UWAC literal", [300.0, None, 1200.0]))
    *_, bear, analytic, literal = speed.table(rows).splitlines()
    start = "| BEAR | door-human | 1 | 256 | 100 | 7 | 3.00 (2.00 to 4.00) | 2.00 (1.50 to 2.00) |"
    assert bear.startswith(start)
    assert " 1.50 (1.00 to 2.00) | 1.00 (1.00 to 1.00) |" in analytic
    assert literal.endswith("| 275.00 (150.00 to 400.00) | 150.00 (100.00 to 200.00) |")
    single = timed("BEAR", [2.0]), timed("UWAC analytic", [3.0])
    assert speed.table(single).endswith("| 7 | 3.00 | 3.00 | 1.50 | 1.00 |")  # no range


def test_rows_of_another_machine_stay_as_they_are(tmp_path, monkeypatch):
    theirs = timed("BEAR", [1.0]) | {"hardware": "another", "threads": 64}
    (tmp_path / "speed.json").write_text(json.dumps([theirs]))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)

    def measure(group, args, about):
        return [timed(version, [2.0], group) | about for version in speed.VERSIONS]

    monkeypatch.setattr(speed, "measure", measure)
    speed.main(speed.Args(folder=tmp_path))
    kept, *ours = json.loads((tmp_path / "speed.json").read_text())
    assert kept == theirs
    assert len(ours) == len(speed.VERSIONS) * len(speed.GROUPS)
    figures = {path.name for path in tmp_path.glob("*.png")}
    assert figures == {"speed.png", "speed-door-human.png", "speed-hopper-medium.png"}
