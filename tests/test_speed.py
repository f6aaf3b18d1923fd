"""What makes an update fast and must not change it: no wait for the host, a CUDA graph, environments in processes."""

import contextlib
import copy
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import bear
import uwac

SCRIPTS = [(bear, {}), (uwac, {"variance": "analytic"}), (uwac, {"variance": "mc", "passes": 5})]
each_script = pytest.mark.parametrize("script, changes", SCRIPTS, ids=["bear", "analytic", "mc"])
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def make_agent(script, changes, device="cpu"):
    """Sizes and arguments of door-human, but for a batch of 8 on a CPU."""
    rng, sizes = np.random.default_rng(0), {"obs": (39,), "action": (28,), "reward": (), "next_obs": (39,), "done": ()}
    dataset = {name: rng.uniform(-1, 1, (500, *size)).astype(np.float32) for name, size in sizes.items()}
    torch.manual_seed(0)
    args = script.Args(**{"batch_size": 8 if device == "cpu" else 256, "warmup_steps": 2} | changes)
    return script.Agent(args, dataset, torch.device(device))


class NoWaiting(TorchDispatchMode):
    """Fails where a value or a size would have to reach the host, which a CUDA graph cannot hold."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "is_nonzero"}, name
        return function(*args, **(kwargs or {}))


@each_script
def test_update_talks_to_no_other_device(script, changes):
    """Nothing is read back, and nothing is made elsewhere than where the data are: "meta" tensors hold no numbers, so
    that the first operation on one of them and one of ours would fail."""
    agent = make_agent(script, changes)
    agent.update()  # allocates the optimizers' state
    with NoWaiting(), torch.device("meta"):
        agent.update()
    assert agent.step == 2


@each_script
def test_update_works_in_the_same_memory_each_time(script, changes):
    """A graph's replay reads and writes the addresses that it was recorded with."""

    def addresses():
        state = [value for name in names for of in vars(agent)[name].state.values() for value in of.values()]
        return [value.data_ptr() for value in (*agent.parameters(), *agent.buffers(), *state, *sums())]

    def sums():
        return agent.metric_sums, agent.finite_updates

    agent = make_agent(script, changes)
    names = [name for name in vars(agent) if name.endswith("_optimizer")]
    agent.update()
    before = addresses()
    for _ in range(2):
        agent.update()
    assert addresses() == before
    agent.read_metrics(3, 3)
    agent.update()
    assert addresses() == before and agent.finite_updates.min() == 1


@each_script
def test_every_step_of_graphed_updates_is_one_update(script, changes, monkeypatch):
    """With stand-ins for CUDA's part: recording leaves all as it was, and a replay does what was recorded."""
    eager, graphed = (make_agent(script, changes) for _ in range(2))

    @contextlib.contextmanager
    def record(graph, stream):
        before = copy.deepcopy(graphed.state_dict())
        yield
        graphed.load_state_dict(before)

    stand_ins = {"Stream": SimpleNamespace, "stream": lambda _: contextlib.nullcontext(), "graph": record}
    stand_ins |= {"synchronize": lambda: None, "CUDAGraph": lambda: SimpleNamespace(replay=graphed.update)}
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    updates = graphed.graphed_updates()
    for agent, update in ((eager, eager.update), (graphed, updates.__next__)):
        torch.manual_seed(1)
        for _ in range(6):
            update()
    assert graphed.step == 6
    assert_close(graphed.state_dict(), eager.state_dict(), rtol=0, atol=0)


@on_a_gpu
@each_script
def test_graph_and_eager_updates_agree(script, changes):
    """The first 100 updates from the same state, with an evaluation's random numbers drawn in between."""
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    eager, graphed = (make_agent(script, changes, "cuda") for _ in range(2))
    updates = graphed.graphed_updates()
    for agent, update in ((eager, eager.update), (graphed, updates.__next__)):
        torch.manual_seed(1)
        for i in range(100):
            update()
            if i % 20 == 0:
                agent.ood_auroc(i)
    assert_close(
        dict(graphed.state_dict(), _extra_state=0), dict(eager.state_dict(), _extra_state=0), rtol=1e-3, atol=1e-4
    )
    expected = eager.read_metrics(100, 100)
    for name, value in graphed.read_metrics(100, 100).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


@on_a_gpu
@pytest.mark.parametrize("script", [bear, uwac])
def test_runs_with_and_without_a_graph_agree(script, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    args = {
        "env_id": "door-demo",
        "total_steps": 20,
        "eval_every": 10,
        "eval_episodes": 2,
        "warmup_steps": 5,
        "tf32": False,
    }
    graphed, eager = (script.main(script.Args(**args, cuda_graph=graph)) for graph in (True, False))
    for name, value in graphed["history"][-1].items():
        assert value == pytest.approx(eager["history"][-1][name], rel=0.02, abs=0.1), name


@on_a_gpu
def test_100_passes_need_less_than_2_gb():
    agent = make_agent(uwac, {"variance": "mc"}, "cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in zip(range(5), agent.graphed_updates()):
        pass
    assert torch.cuda.max_memory_allocated() < 2e9


def test_no_pass_more_than_asked_for(monkeypatch):
    """Two passes at once, seven in all: the mask of an eighth would turn all into NaN."""

    def masks(h, p):
        assert h.shape == (2, 2, 2, 1000, 32)  # (stack, layers, passes at once, N, H)
        for t in range(0, 8, 2):
            mask = torch.ones(h.shape)
            mask[:, :, 7 - t :] = np.nan
            yield mask

    monkeypatch.setattr(uwac, "dropout_masks", masks)
    critic = uwac.Critic(2, 5, 3, hidden_dim=32)
    assert (uwac.mc_dropout_variance(critic, torch.randn(2, 1000, 5), torch.rand(2, 1000, 3), 0.2, 7) == 0).all()


def test_passes_at_once_are_independent():
    """Many passes at once for a few states: unbiased, with the standard error of so many passes."""
    critic = uwac.Critic(2, 5, 3, hidden_dim=32)
    inputs = critic, torch.randn(2, 4, 5), torch.rand(2, 4, 3), 0.2
    truth = uwac.mc_dropout_variance(*inputs, 200_000)
    estimates = torch.stack([uwac.mc_dropout_variance(*inputs, 20) for _ in range(1000)]) / truth
    assert_close(estimates.mean(0), torch.ones(2, 4), rtol=0, atol=0.06)
    assert 0.8 < (estimates.std() / (2 / 19) ** 0.5).item() < 1.3


def processes(monkeypatch, script, num):
    """`num` environments of door-demo where there are cores for one more."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: num + 1)
    return script.make_envs("door-demo", num)


def test_environments_in_processes_give_the_same_returns(script, monkeypatch):
    """And there are processes only where each has a core, or for a video."""
    agent = make_agent(script, {})
    one_by_one = script.make_envs("door-demo", 3)
    parallel = processes(monkeypatch, script, 3)
    assert isinstance(parallel, gym.vector.AsyncVectorEnv) and isinstance(one_by_one, gym.vector.SyncVectorEnv)
    assert isinstance(script.make_envs("door-demo", 4), gym.vector.SyncVectorEnv)
    assert isinstance(script.make_envs("door-demo", 1), gym.vector.SyncVectorEnv)
    first, second = (script.evaluate(*agent.policy(), envs, 2, [0, 1]) for envs in (one_by_one, parallel))
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first)) == 3
    parallel.close()


def test_signals_do_not_stop_the_environments(script, monkeypatch):
    """Ctrl-C and a scheduler's SIGTERM reach every process of a run; those of the environments leave it to the run."""
    handlers = [signal.getsignal(number) for number in script.SIGNALS]
    envs = processes(monkeypatch, script, 2)
    assert [signal.getsignal(number) for number in script.SIGNALS] == handlers
    envs.reset(seed=0)
    for number in (signal.SIGINT, signal.SIGTERM):
        for process in envs.processes:
            os.kill(process.pid, number)
    time.sleep(0.2)
    envs.step(np.zeros((2, 28), np.float32))
    assert all(process.is_alive() for process in envs.processes)
    envs.close()


def is_zombie(pid):
    return " Z " in Path(f"/proc/{pid}/stat").read_text()


@pytest.mark.parametrize("end", ["", "raise ValueError", "os.kill(os.getpid(), 9)"], ids=["end", "error", "kill"])
def test_no_process_outlives_its_run(end, tmp_path):
    code = "import os, torch, uwac; torch.get_num_threads = lambda: 3; envs = uwac.make_envs('door-demo', 2)\n"
    code += f"envs.reset(); print(*(process.pid for process in envs.processes), flush=True)\nenvs.step_async(envs.action_space.sample())\n{end}"
    command, folder = [sys.executable, "-c", code], os.path.dirname(uwac.__file__)
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=60)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    for _ in range(100):
        alive = [pid for pid in pids if Path(f"/proc/{pid}").exists() and not is_zombie(pid)]
        if not alive:
            return
        time.sleep(0.1)
    raise AssertionError(f"still running: {alive}")
