"""On a GPU an update must not wait for the host, nor differ when it is a CUDA graph."""

import contextlib
import functools

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import bear
import uwac

VERSIONS = [(bear, {}), (uwac, {"variance": "analytic"}), (uwac, {"variance": "mc", "passes": 5})]
each_version = pytest.mark.parametrize("script, changes", VERSIONS, ids=["bear", "analytic", "mc"])
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHAPES = (39,), (28,), (), (39,), ()  # of door's obs, action, reward, next_obs, done


def make_update(script, changes: dict, device: str, mode=None):
    """An agent, and its update as a function of the step."""
    torch.manual_seed(0)
    args = script.Args(**{"batch_size": 8, "warmup_steps": 2} | changes)
    agent = script.Agent(args, 39, 28)
    with mode or contextlib.nullcontext():
        data = [torch.rand(500, *shape, device=device) for shape in SHAPES]
    return agent, functools.partial(script.update, agent, data, args=args)


class NoWaiting(TorchDispatchMode):
    """Fails where a value or a size would have to reach the host."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "nonzero", "masked_select", "equal"}, name
        return function(*args, **(kwargs or {}))


@each_version
def test_update_talks_to_no_other_device(script, changes, monkeypatch):
    """Nothing is read back, and nothing is made elsewhere than where the data are: "meta" tensors
    hold no numbers, so that an operation on one of them and one of ours fails."""
    monkeypatch.setattr(script, "DEVICE", torch.device("cpu"))
    _, update = make_update(script, changes, "cpu")
    step = torch.tensor(3)
    update(step)  # makes the optimizers' state
    with NoWaiting(), torch.device("meta"):
        update(step)


@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch, but no GPU")
@each_version
def test_update_of_fake_cuda_tensors(script, changes, monkeypatch):
    """As above, by the rules of CUDA's operations. Without a GPU there is no backward pass: all
    gradients are 0."""
    mode = FakeTensorMode()

    def to_fake(agent: nn.Module, _):
        for module in agent.modules():
            for name, weight in list(module.named_parameters(recurse=False)):
                module.register_parameter(name, nn.Parameter(fake(weight)))
            for name, buffer in list(module.named_buffers(recurse=False)):
                module.register_buffer(name, fake(buffer))

    def fake(tensor: Tensor) -> Tensor:
        with mode:
            return torch.empty(tensor.shape, device="cuda")

    def backward(loss: Tensor, inputs: list[Tensor]):
        assert loss.requires_grad
        for weight in inputs:
            weight.grad = torch.zeros_like(weight)

    monkeypatch.setattr(script.Agent, "to", to_fake)
    monkeypatch.setattr(Tensor, "backward", backward)
    _, update = make_update(script, changes, "cuda", mode)
    with mode:
        metrics = update(torch.ones((), device="cuda"))
    assert all(metric.device.type == "cuda" for metric in metrics.values())


@on_a_gpu
@each_version
def test_update_never_waits_for_the_gpu(script, changes):
    _, update = make_update(script, changes, "cuda")
    step = torch.ones((), device="cuda")
    update(step)  # makes the optimizers' state
    torch.cuda.set_sync_debug_mode("error")
    try:
        update(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_a_gpu
@each_version
def test_graph_and_eager_updates_agree(script, changes):
    """Metrics and weights of 100 updates from the same state, with an evaluation's random numbers
    drawn in between, which must not change those of the updates."""
    graphs = pytest.importorskip("tensordict.nn")
    torch.set_float32_matmul_precision("highest")
    results = []
    for wrap in (lambda update: update, graphs.CudaGraphModule):
        agent, update = make_update(script, changes, "cuda")
        update = wrap(update)
        torch.manual_seed(1)
        for step in range(1, 101):
            metrics = update(torch.full((), step, device="cuda"))
            if step % 20 == 0:
                with torch.random.fork_rng():
                    torch.manual_seed(step)
                    agent.act(torch.rand(4, 39).numpy())
        results.append(metrics | agent.state_dict())
    eager, graphed = results
    assert_close(graphed, eager, rtol=1e-3, atol=1e-4)


@on_a_gpu
def test_100_passes_need_less_than_2_gb():
    torch.cuda.reset_peak_memory_stats()
    _, update = make_update(uwac, {"variance": "mc", "batch_size": 256}, "cuda")
    for step in range(3):
        update(torch.full((), step, device="cuda"))
    assert torch.cuda.max_memory_allocated() < 2e9
