"""What makes an update fast and must not change it: no wait for the host, a CUDA graph."""

import contextlib
import copy
from types import SimpleNamespace

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
