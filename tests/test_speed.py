"""benchmark/measure/speed.py: what is counted and compared."""

import functools
import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.utils.benchmark import Timer

import uwac
from benchmark.measure import speed
from benchmark.measure.speed import Args, Case


def test_a_ratio_is_the_median_of_the_rounds_own():
    """Without the rounds that a slow version sat out."""
    row = {"ms": [300.0, None, 1200.0, 900.0]}
    assert speed.ratio(row, [3.0, 4.0, 6.0, 6.0]) == "150.00 (100.00 to 200.00)"
    assert speed.ratio(row, [None, 4.0, 6.0, None]) == "200.00"


def test_a_group_grows_in_its_own_size_alone():
    """Each size with each version; the literal one, at seconds an update, on the tasks alone."""
    sizes = {case[1:] for case in speed.cases_of("batch_size")}
    assert sizes == {("door-human", 1, n, 100) for n in (256, 1024, 4096)}
    assert len(speed.cases_of("batch_size")) == 12
    assert {case[1:] for case in speed.cases_of("hopper-medium")} == {
        ("hopper-medium", 1, 256, 100)
    }
    assert speed.cases_of("hopper-medium")[-1].version == "UWAC literal"


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
    case = Case(version, "hopper-medium", num_seeds=2, batch_size=4, passes=7)
    update, gflop = speed.prepared(case, Args(dropout=0.2, threads=1, matmul_precision="medium"))
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
    assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == ("medium", 1)
    larger = speed.gflop_of(case._replace(batch_size=8), Args(dropout=0.2, threads=1))
    assert larger == pytest.approx(2 * gflop, rel=0.2)  # nothing but its matmuls, which grow with B


def test_a_cuda_graph_is_of_the_step_alone(monkeypatch):
    """By a stand-in for tensordict's, as there is no GPU."""
    calls = []

    def update(agent, data, step):
        calls.append(("eager", agent, data, step))

    def graph(function):
        assert function.args == ("agent", "data")
        return lambda step: calls.append(("graph", step))

    made = functools.partial(update, "agent", "data", 1)
    monkeypatch.setattr(speed, "make_update", lambda case, args: made)
    tensordict = SimpleNamespace(nn=SimpleNamespace(CudaGraphModule=graph))
    monkeypatch.setitem(sys.modules, "tensordict", tensordict)
    monkeypatch.setitem(sys.modules, "tensordict.nn", tensordict.nn)
    launch, _ = speed.prepared(Case("BEAR", batch_size=3), Args(threads=1, cuda_graph=True))
    launch()
    assert calls == [("eager", "agent", "data", 1)] * 2 + [("graph", 1)] * 5


class InThisProcess:
    """In place of a process pool with one worker."""

    def __init__(self, workers, context):
        assert workers == 1 and context.get_start_method() == "spawn"

    def submit(self, function, *given):
        result = function(*given)
        return SimpleNamespace(result=lambda: result)


def test_a_row_of_each_case_with_a_time_of_each_round(monkeypatch):
    """The literal version takes part in every third; a floor is the matmuls' time at 2 GFLOP/s."""
    args = Args(rounds=5, threads=1)
    cases = [Case(name, batch_size=n) for n, name in ((4, "BEAR"), (8, "UWAC literal"))]

    def gflop(case, given):
        assert given is args
        return case.batch_size

    monkeypatch.setattr(speed, "cases_of", lambda group: cases)
    monkeypatch.setattr(speed, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(speed, "product_rate", lambda: 2.0)
    monkeypatch.setattr(speed, "gflop_of", gflop)
    monkeypatch.setattr(speed, "time_updates", lambda case, given: (gflop(case, given), 7.0))
    bear, literal = speed.measure("passes", args, {"date": "today"})
    assert bear["ms"] == [4] * 5 and literal["ms"] == [8, None, None, 8, None]
    assert bear["floor_ms"] == [2_000] * 5 and literal["floor_ms"] == [4_000] * 5
    assert {
        "group": "passes",
        "date": "today",
        "passes": 100,
        "peak_mb": 7.0,
    }.items() <= bear.items()


@pytest.fixture
def clock(monkeypatch):
    """What a timer sees, which a test moves on."""
    clock = SimpleNamespace(now=7.0)
    timer = functools.partial(Timer, timer=lambda: clock.now)
    monkeypatch.setattr(speed, "Timer", timer)
    return clock


def test_a_time_is_an_updates_in_ms_and_memory_in_mb(clock, monkeypatch):
    """Of half a second each, of as many as take the seconds that are asked for."""
    updates = []

    def update():
        updates.append(1)
        clock.now += 0.5

    usage = SimpleNamespace(ru_maxrss=3_000)  # KB
    monkeypatch.setattr(speed.resource, "getrusage", lambda who: usage)
    monkeypatch.setattr(speed, "prepared", lambda case, args: (update, 1.0))
    ms, mb = speed.time_updates(Case("BEAR"), Args(seconds=20, threads=1))
    assert (ms, mb) == (500, 3) and 40 <= len(updates) < 80


def test_the_rate_of_products_is_that_of_the_fastest(clock, monkeypatch):
    """Of 2 n^3 operations."""
    seconds = itertools.cycle([0.3, 0.1])

    class Matrix:
        def __matmul__(self, other):
            clock.now += next(seconds)

    monkeypatch.setattr(torch, "randn", lambda *shape, device: Matrix())
    assert speed.product_rate() == pytest.approx(2 * 2048**3 / 0.1 / 1e9)


def test_a_later_call_adds_rows(tmp_path, monkeypatch, capsys):
    """The table is of the new ones alone."""
    times = iter([1.0, 2.0, 3.0, 4.0])

    def measure(group, args, about):
        ms = next(times)
        of_all = {"group": group, **about, "peak_mb": 1, "ms": [ms], "floor_ms": [ms]}
        return [of_all | Case(name)._asdict() for name in "ab"]

    monkeypatch.setattr(speed, "measure", measure)
    for groups in (("door-human", "passes"), ("door-human", "hopper-medium")):
        speed.main(speed.Args(groups=groups, folder=tmp_path, threads=1))
    rows = json.loads((tmp_path / "speed.json").read_text())
    found = [(row["group"], row["version"], row["ms"]) for row in rows[::2]]
    groups = "door-human", "passes", "door-human", "hopper-medium"
    assert found == [(group, "a", [ms]) for ms, group in enumerate(groups, 1)]
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if line.startswith("| a ")]) == 4


def test_a_table_compares_with_its_groups_first_two_rows():
    rows = []
    for group, times in (("passes", (2.0, 4.0, 8.0)), ("door-human", (10.0, 20.0, 50.0))):
        for version, ms in zip(("BEAR", "UWAC analytic", "UWAC mc"), times):
            row = {"group": group, "peak_mb": 1, "ms": [ms], "floor_ms": [ms / 5]}
            rows.append(row | Case(version)._asdict())
    lines = speed.table(rows).splitlines()
    ends = [[cell.strip() for cell in line.split("|")[-5:-1]] for line in lines]
    assert ends[0] == ["ms", "over its floor", "over BEAR", "over UWAC analytic"]
    assert ends[4] == ["8.00", "5.00", "4.00", "2.00"]
    assert ends[7] == ["50.00", "5.00", "5.00", "2.50"]


@pytest.mark.parametrize("nothing", [
    {"groups": ()}, {"rounds": 0}, {"threads": 0}, {"seconds": 0.0}, {"seconds": float("nan")}
])  # fmt: skip
def test_what_measures_nothing_is_refused(nothing, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "measure", None)  # would take minutes
    with pytest.raises(ValueError, match="^a group, a round, a thread at least, and --seconds"):
        speed.main(speed.Args(folder=tmp_path / "speed", **nothing))
    assert not (tmp_path / "speed").exists()


D3RLPY = """
import torch

class Bear:
    def __init__(self, settings):
        self.settings = settings

    def create(self, device):
        return self

    def create_impl(self, obs_shape, action_size):
        assert (obs_shape, action_size) == ((39,), 28)

    def update(self, batch):
        assert len(batch) == 256 and torch.get_num_threads() == 1
        assert not {name: value for name, value in self.settings.items() if SAID.get(name) != value}

SAID = {"batch_size": 256, "imitator_encoder_factory": [750, 750], "n_target_samples": 10}
SAID |= {"n_mmd_action_samples": 10, "mmd_kernel": "gaussian", "warmup_steps": 0}
SAID |= {"compile_graph": False}
BEARConfig = lambda **settings: Bear(settings)
VectorEncoderFactory = lambda units: units
Transition = lambda **parts: parts

class TransitionMiniBatch:
    from_transitions = list
"""


def test_d3rlpys_bear_is_timed_with_the_papers_sizes_after_its_warm_up(tmp_path, monkeypatch):
    """By a stand-in for the package, in a Python of its own."""
    for module in ("algos", "dataset", "models"):
        path = tmp_path / "d3rlpy" / f"{module}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(D3RLPY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    timer = speed.d3rlpy_timer(Args(d3rlpy=Path(sys.executable), seconds=1e-4, threads=1))
    for ms, mb in (timer(), timer()):
        assert ms > 0 and 10 < mb < 10_000


def test_a_python_without_d3rlpy_is_named():
    timer = speed.d3rlpy_timer(Args(d3rlpy=Path("false")))
    with pytest.raises(ValueError, match="--d3rlpy false: d3rlpy does not run there"):
        timer()
