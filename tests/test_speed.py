"""benchmark/measure/speed.py: what is counted and compared."""

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

import uwac
from benchmark.measure import speed


def test_a_ratio_is_the_median_of_the_rounds_own():
    """Without the rounds that a slow version sat out."""
    row = {"ms": [300.0, None, 1200.0, 900.0]}
    assert speed.ratio(row, [3.0, 4.0, 6.0, 6.0]) == "150.00 (100.00 to 200.00)"
    assert speed.ratio(row, [None, 4.0, 6.0, None]) == "200.00"


def test_operations_of_known_products():
    """2 n m k for each of (n, k) times (k, m); a view is no kernel."""
    a, b, c = torch.rand(3, 4), torch.rand(4, 5), torch.rand(3, 5)
    pairs = a.expand(2, 3, 4), b.expand(2, 4, 5)
    launches = {
        "mm": (lambda: a @ b, 120, 1),
        "bmm": (lambda: torch.bmm(*pairs), 240, 1),
        "addmm": (lambda: torch.addmm(c, a, b), 120, 1),
        "baddbmm": (lambda: torch.baddbmm(c.expand(2, 3, 5), *pairs), 240, 1),
        "others": (lambda: (a.view(12), a + 1, a.mul_(2), torch.empty(3)), 0, 2),
    }
    for launch, flop, kernels in launches.values():
        found = speed.count_operations(launch)
        assert (round(found.gflop * 1e9), found.kernels) == (flop, kernels)


def test_the_literal_version_passes_all_candidates_through_the_critic_100_times():
    """Pass i gives Q1 = i and Q2 = 3 i, so Var[Q1] + Var[Q2] is 10 Var[i] = 10 T (T + 1) / 12."""
    shapes = []

    def forward(obs, action, rate):
        q1 = torch.full(action.shape[:-1], float(len(shapes)))
        shapes.append((*action.shape, rate))
        return torch.stack([q1, 3 * q1])

    critic = Mock(side_effect=forward, num_candidates=10)
    args = uwac.Args(passes=100, dropout=0.2)
    found = speed.literal_uncertainty(critic, torch.rand(2, 6, 5), torch.rand(2, 6, 3), args)
    torch.testing.assert_close(found, torch.full((2, 6), 10 * 100 * 101 / 12))
    assert shapes == [(2, 6, 10, 3, 0.2)] * 100


@pytest.mark.parametrize("version, candidates", [
    ("BEAR", None), ("UWAC analytic", None), ("UWAC mc", None), ("UWAC literal", 10)
])  # fmt: skip
def test_a_version_is_what_its_name_says(version, candidates):
    """Of ten candidates the literal one computes ten variances."""
    update = speed.make_update(version, 7, 0.2, env_id="hopper-medium", num_seeds=2, batch_size=4)
    agent, data, step = update.args
    assert agent.algorithm == ("bear" if version == "BEAR" else "uwac") and step == 1
    assert (agent.args.num_seeds, agent.args.batch_size) == (2, 4)
    assert [tuple(array.shape[1:]) for array in data] == [(11,), (3,), (), (11,), ()]
    if version != "BEAR":
        variance = "analytic" if version == "UWAC analytic" else "mc"
        found = agent.args.variance, agent.args.passes, agent.args.dropout
        assert found == (variance, 7, 0.2)
    assert getattr(agent.target_critic, "num_candidates", None) == candidates
    assert (data[-1] == 0).all() and data[0].min() < -0.9 < 0.9 < data[0].max()
    assert getattr(agent.critic, "num_candidates", None) == (candidates and 1)


class InThisProcess:
    """In place of a process pool with one worker."""

    def __init__(self, *_):
        pass

    def submit(self, function, *given):
        result = function(*given)
        return SimpleNamespace(result=lambda: result)


def test_a_row_of_each_case_with_a_time_of_each_round(monkeypatch):
    """The literal version takes part in every third; a floor is the matmuls' time at 2 GFLOP/s."""
    sizes = {"env_id": "hopper-medium", "num_seeds": 1, "batch_size": 4, "passes": 2}
    cases = [{"version": name, **sizes} for name in ("BEAR", "UWAC literal")]
    monkeypatch.setattr(speed, "cases_of", lambda group: cases)
    monkeypatch.setattr(speed, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(speed, "product_rate", lambda: 2.0)
    args = speed.Args(rounds=5, seconds=1e-9, threads=1, matmul_precision="medium")
    bear, literal = speed.measure("passes", args, {"date": "today"})
    assert [ms is None for ms in literal["ms"]] == [False, True, True, False, True]
    assert len(bear["ms"]) == 5 and min(bear["ms"]) > 0
    assert bear["floor_ms"] == [1000 * bear["gflop"] / 2] * 5
    assert literal["gflop"] > bear["gflop"] and literal["kernels"] > bear["kernels"]
    assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == ("medium", 1)
    assert {"group": "passes", "date": "today", "passes": 2}.items() <= bear.items()


def test_a_time_is_the_mean_of_as_many_updates_as_fill_the_seconds(monkeypatch):
    """Of half a second each, after one that is not timed."""
    clock = SimpleNamespace(now=7.0, updates=0)

    def launch():
        clock.updates += 1
        clock.now += 0.5 if clock.updates > 1 else 9

    monkeypatch.setattr(speed, "launch", launch, raising=False)
    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock.now)
    ms, _ = speed.time_updates(1.9)
    assert (ms, clock.updates) == (500, 5)


def test_the_rate_of_products_is_the_best_of_several(monkeypatch):
    monkeypatch.setattr(speed.timeit, "repeat", lambda launch, **settings: [2.0, 0.5, 4.0])
    assert speed.product_rate() == pytest.approx(2 * 2048**3 / 0.5 / 1e9)


def test_a_later_call_adds_rows_and_draws_all_of_its_tasks(tmp_path, monkeypatch, capsys):
    """The table is of the new ones alone."""
    times = iter([1.0, 2.0, 3.0, 4.0])

    def measure(group, args, about):
        ms = next(times)
        of_all = {"group": group, **speed.SIZES, **about, "peak_mb": 1, "kernels": 2}
        return [of_all | {"version": name, "ms": [ms], "floor_ms": [ms]} for name in "ab"]

    drawn = []
    monkeypatch.setattr(speed, "measure", measure)
    monkeypatch.setattr(speed, "plot", lambda rows, path: drawn.append((len(rows), path.name)))
    for groups in (("door-human", "passes"), ("door-human", "hopper-medium")):
        speed.main(speed.Args(groups=groups, folder=tmp_path, threads=1))
    rows = json.loads((tmp_path / "speed.json").read_text())
    found = [(row["group"], row["version"], row["ms"]) for row in rows[::2]]
    groups = "door-human", "passes", "door-human", "hopper-medium"
    assert found == [(group, "a", [ms]) for ms, group in enumerate(groups, 1)]
    assert sorted(drawn[1:]) == [(2, "speed-hopper-medium.png"), (4, "speed-door-human.png")]
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if line.startswith("| a |")]) == 4


def test_a_table_compares_with_its_groups_first_two_rows():
    rows = []
    for group, times in (("passes", (2.0, 4.0, 8.0)), ("door-human", (10.0, 20.0, 50.0))):
        for version, ms in zip(("BEAR", "UWAC analytic", "UWAC mc"), times):
            row = {"group": group, "version": version, **speed.SIZES, "peak_mb": 1, "kernels": 2}
            rows.append(row | {"ms": [ms], "floor_ms": [ms / 5]})
    lines = speed.table(rows).splitlines()
    ends = [line.split(" | ")[-4:] for line in lines]
    assert ends[0] == ["ms", "over its floor", "over BEAR", "over UWAC analytic |"]
    assert ends[4] == ["8.00", "5.00", "4.00", "2.00 |"]
    assert ends[7] == ["50.00", "5.00", "5.00", "2.50 |"]


@pytest.mark.parametrize("nothing", [
    {"groups": ()}, {"rounds": 0}, {"threads": 0}, {"seconds": 0.0}, {"seconds": float("nan")}
])  # fmt: skip
def test_what_measures_nothing_is_refused(nothing, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "measure", None)  # would take minutes
    with pytest.raises(ValueError, match="^a group, a round, a thread at least, and --seconds"):
        speed.main(speed.Args(folder=tmp_path / "speed", **nothing))
    assert not (tmp_path / "speed").exists()


def test_a_python_without_d3rlpy_is_named():
    timer = speed.d3rlpy_timer(speed.Args(d3rlpy=Path("false")))
    with pytest.raises(ValueError, match="--d3rlpy false: d3rlpy does not run there"):
        timer(0.1)
