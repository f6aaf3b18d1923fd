"""benchmark/speed.py, variance.py and gpu.py: their own numbers, tables, figures and files."""

import json
import sys

import pytest
import torch
from conftest import ROOT, command_line

import uwac

sys.path.insert(0, str(ROOT / "benchmark"))
import gpu
import speed
import variance


def make_critic() -> tuple[uwac.Critic, torch.Tensor, torch.Tensor]:
    """A critic whose Q varies, 16 states and actions."""
    critic = uwac.Critic(1, 5, 3)
    critic.initialize(last=0.1)
    return critic, torch.randn(1, 16, 5), torch.rand(1, 16, 3)


def test_products_of_an_actor_by_hand():
    """256 rows through 39-256-256-56; two operations for each weight and row."""
    actor = uwac.Actor(1, 39, 28)
    with speed.Products() as products:
        actor(torch.randn(1, 256, 39))
    assert products.gflop == pytest.approx(2 * 256 * (39 * 256 + 256 * 256 + 256 * 56) / 1e9)


def test_literal_variance_estimates_the_same():
    """Of 400 passes each, with masks independent of each other, for the sum of two critics."""
    critic, obs, action = make_critic()
    critic.num_candidates = 3
    args = uwac.Args(passes=400, dropout=0.2)
    literal = speed.literal_uncertainty(critic, obs, action, args)
    rows = variance.row_masks_variance(critic, obs, action, 0.2, 400).sum(0)
    truth = uwac.mc_dropout_variance(critic, obs, action, 0.2, 10_000).sum(0)
    for estimate in (literal, rows):
        error = (estimate / truth - 1).square().mean().sqrt()
        assert 0.3 < error / (1 / 399) ** 0.5 < 2


def test_only_the_literal_version_takes_the_literal_variance(monkeypatch):
    monkeypatch.setattr(uwac, "uncertainty", uwac.uncertainty)
    sizes = speed.SIZES | {"batch_size": 8, "passes": 3}
    gflop = {}
    for version in (*speed.VERSIONS, "UWAC literal"):
        with speed.Products() as products:
            speed.make_update(version, **sizes)()
        gflop[version] = products.gflop
    # Of both critics; spectral norm and the last layer, which has one output, are little.
    literal = 2 * 2 * 3 * 8 * (10 + 1) * (39 + 28 + 256) * 256 / 1e9  # ten candidates, one action
    ours = 2 * 2 * 2 * 8 * (39 + 28 + 3 * 256) * 256 / 1e9  # two estimates, first layer once
    assert gflop["UWAC literal"] - gflop["UWAC mc"] == pytest.approx(literal - ours, rel=0.05)


def timed(version: str, ms: list, group: str = "door-human", **sizes) -> dict:
    row = {"version": version, "group": group, "ms": ms, "floor_ms": [1.0, 2.0, 2.0], "peak_mb": 7}
    return speed.SIZES | row | sizes


def test_table_and_figure_by_hand(tmp_path):
    """Medians of the rounds' own ratios, without the rounds that a slow version sat out."""
    rows = [timed("BEAR", [2.0, 4.0, 3.0]), timed("UWAC analytic", [3.0, 4.0, 6.0])]
    rows.append(timed("UWAC literal", [300.0, None, 1200.0]))
    *_, bear, analytic, literal = speed.table(rows).splitlines()
    start = "| BEAR | door-human | 1 | 256 | 100 | 7 | 3.00 (2.00 to 4.00) | 2.00 (1.50 to 2.00) |"
    assert bear.startswith(start)
    assert " 1.50 (1.00 to 2.00) | 1.00 (1.00 to 1.00) |" in analytic
    assert literal.endswith("| 275.00 (150.00 to 400.00) | 150.00 (100.00 to 200.00) |")
    for group, values in speed.GROWTH.items():
        for version in speed.VERSIONS:
            rows += [timed(version, [2.0 * n] * 3, group, **{group: n}) for n in values]
    speed.plot(rows, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").stat().st_size > 10_000


def test_rows_of_another_machine_stay_as_they_are(tmp_path, monkeypatch, capsys):
    theirs = timed("BEAR", [1.0]) | {"hardware": "another", "threads": 64, "date": "2020-01-01"}
    (tmp_path / "speed.json").write_text(json.dumps([theirs]))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)

    def measure(group, args, about):
        return [timed(version, [2.0], group) | about for version in speed.VERSIONS]

    monkeypatch.setattr(speed, "measure", measure)
    speed.main(speed.Args(folder=tmp_path))
    kept, *ours = json.loads((tmp_path / "speed.json").read_text())
    assert kept == theirs
    assert len(ours) == len(speed.VERSIONS) * len(speed.GROUPS)
    assert all(row["threads"] == 2 and row["hardware"] != "another" for row in ours)
    assert "another" not in capsys.readouterr().out


@pytest.mark.parametrize("program", [speed, variance])
def test_bad_input_is_named_before_anything_is_measured(program, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    assert command_line(program, "--folder file", monkeypatch) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert command_line(speed, "--groups typo", monkeypatch) == 2
    error = capsys.readouterr().err
    assert "typo" in error and "door-human" in error and error.count("\n") == 1


def test_variance_study_from_training_to_figure(tmp_path, capsys):
    sizes = {"total_steps": 2, "rates": (0.3,), "passes": (10, 100), "states": 32}
    variance.main(variance.Args(**sizes, reference_passes=1000, repetitions=3, folder=tmp_path))
    rows = json.loads((tmp_path / "variance.json").read_text())
    assert len(rows) == 2 * 2 * 5
    for row in rows:
        low, high = {0: (0, 0.1), 10: (0.2, 0.8), 100: (0.04, 0.25)}[row["passes"]]
        assert low < row["rmse"] < high, row
    assert (tmp_path / "variance.png").stat().st_size > 10_000


def test_errors_and_differences_by_hand():
    found = variance.compare(torch.tensor([[1.1, 1.8, 4.0]]), torch.tensor([[1.0, 2.0, 4.0]]))
    assert found["rmse"] == pytest.approx((0.02 / 3) ** 0.5)
    eager = [{"step": 1, "mmd": [1.0, 2.0]}, {"step": 2, "mmd": [4.0, 5.0]}]
    graph = [{"step": 1, "mmd": [1.0, 2.0]}, {"step": 2, "mmd": [4.0, 4.0]}]
    assert gpu.differences(eager, graph) == {"mmd": pytest.approx(0.2)}
