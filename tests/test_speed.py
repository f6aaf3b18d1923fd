"""benchmark/measure/speed.py: what is counted and compared."""

import functools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import rows_in
from torch.utils.benchmark import Timer

import uwac
from benchmark.measure import speed
from benchmark.measure.speed import Args, Case


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
    update = speed.prepared(case, Args(threads=1, matmul_precision="medium"))
    agent, data, step = update.args
    assert agent.algorithm == ("bear" if version == "BEAR" else "uwac") and step == 1
    assert (agent.args.num_seeds, agent.args.batch_size) == (2, 4)
    assert [tuple(array.shape[1:]) for array in data] == [(11,), (3,), (), (11,), ()]
    if version != "BEAR":
        variance = "analytic" if version == "UWAC analytic" else "mc"
        assert (agent.args.variance, agent.args.passes) == (variance, 7)
    assert getattr(agent.target_critic, "num_candidates", None) == candidates
    assert (data[-1] == 0).all() and data[0].min() < -0.9 < 0.9 < data[0].max()
    assert getattr(agent.critic, "num_candidates", None) == (candidates and 1)
    assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == ("medium", 1)


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
    launch = speed.prepared(Case("BEAR", batch_size=3), Args(threads=1, cuda_graph=True))
    launch()
    assert calls == [("eager", "agent", "data", 1)] + [("graph", 1)] * 5


class InThisProcess:
    """In place of a process pool with one worker."""

    def __init__(self, workers, context):
        assert workers == 1 and context.get_start_method() == "spawn"

    def submit(self, function, *given):
        result = function(*given)
        return SimpleNamespace(result=lambda: result)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def test_a_row_of_each_version_with_a_time_of_each_round(monkeypatch):
    """They take turns; d3rlpy's BEAR has no seeds side by side."""
    args = Args(rounds=2, versions=("BEAR", "UWAC mc"), d3rlpy=Path("python"))
    turns = []

    def time_updates(case, given):
        assert given is args
        turns.append(case)
        return len(turns), 7.0

    monkeypatch.setattr(speed, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(speed, "time_updates", time_updates)
    sizes = {"env_id": "hopper-medium", "num_seeds": 1, "batch_size": 4, "passes": 9}
    bear, uwac_mc, d3rlpy = speed.measure(sizes, args, {"date": "today"})
    assert (bear["ms"], uwac_mc["ms"], d3rlpy["ms"]) == ([1, 4], [2, 5], [3, 6])
    assert (
        turns[:3] == turns[3:] == [Case(row["version"], **sizes) for row in (bear, uwac_mc, d3rlpy)]
    )
    wanted = {"group": "hopper-medium", "date": "today", "peak_mb": 7.0} | sizes
    assert wanted.items() <= bear.items()
    assert len(speed.measure(sizes | {"num_seeds": 2}, args, {})) == 2


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
    monkeypatch.setattr(speed, "prepared", lambda case, args: update)
    ms, mb = speed.time_updates(Case("BEAR"), Args(seconds=20, threads=1))
    assert (ms, mb) == (500, 3) and 40 <= len(updates) < 80


def test_all_sizes_are_measured_and_kept(tmp_path, monkeypatch, capsys):
    """In the table are medians and ranges, and of ratios to the first version's of the round."""
    times = iter([[1.0, 2.0, 4.0], [10.0, 6.0, 8.0]] * 4)

    def measure(sizes, args, about):
        rows = [{"version": name, "peak_mb": 1, "ms": next(times)} for name in ("BEAR", "x")]
        return [row | sizes | about for row in rows]

    monkeypatch.setattr(speed, "measure", measure)
    sizes = {"num_seeds": (1, 5), "passes": (10, 100)}
    speed.main(Args(folder=tmp_path, threads=1, **sizes))
    rows = json.loads((tmp_path / "speed.json").read_text())
    found = [(row["num_seeds"], row["batch_size"], row["passes"]) for row in rows[::2]]
    assert found == [(1, 256, 10), (1, 256, 100), (5, 256, 10), (5, 256, 100)]
    first, *_ = capsys.readouterr().out.split("\n\n")
    _, row = rows_in(first, "version")
    sizes = {"env_id": "door-human", "num_seeds": "1", "batch_size": "256", "passes": "10"}
    times = {"ms": "8.00 (6.00 to 10.00)", "over BEAR": "3.00 (2.00 to 10.00)"}
    assert row == {"version": "x", "peak_mb": "1"} | sizes | times


D3RLPY = """
import torch

class Bear:
    def __init__(self, settings):
        self.settings = settings

    def create(self, device):
        return self

    def create_impl(self, obs_shape, action_size):
        assert (obs_shape, action_size) == ((11,), 3)

    def update(self, batch):
        assert len(batch) == 64 and torch.get_num_threads() == 1
        assert not {name: value for name, value in self.settings.items() if SAID.get(name) != value}

SAID = {"batch_size": 64, "imitator_encoder_factory": [750, 750], "n_target_samples": 10}
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
    args = Args(d3rlpy=Path(sys.executable), seconds=1e-4, threads=1)
    case = Case(speed.D3RLPY, "hopper-medium", batch_size=64)
    ms, mb = speed.time_updates(case, args)
    assert ms > 0 and 10 < mb < 10_000


def test_a_python_without_d3rlpy_is_named():
    with pytest.raises(ValueError, match="--d3rlpy false: d3rlpy does not run there"):
        speed.time_updates(Case(speed.D3RLPY), Args(d3rlpy=Path("false")))
