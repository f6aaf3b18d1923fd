"""An update does not wait for the host, and launches few kernels; a CUDA graph can hold it."""

import functools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import uwac
from benchmark.measure import speed

each_version = pytest.mark.parametrize("version", ["BEAR", "UWAC analytic", "UWAC mc"])
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def make_update(version: str, passes: int = 5, num_seeds: int = 1, cuda_graph: bool = False):
    """An update as a function of the step, which has made the optimizers' state."""
    case = speed.Case(version, num_seeds=num_seeds, batch_size=8, passes=passes)
    update = speed.make_update(case, speed.Args(cuda_graph=cuda_graph))
    agent, data, _ = update.args
    agent.args.warmup_steps = 2
    update()
    return functools.partial(update.func, agent, data)


class Operations(TorchDispatchMode):
    """Counts an update's operations, views included."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


class NoWaiting(TorchDispatchMode):
    """Fails where a value or a size would have to reach the host."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "nonzero", "masked_select", "equal"}, name
        return function(*args, **(kwargs or {}))


@each_version
def test_update_talks_to_no_other_device(version, monkeypatch):
    """An operation fails on one of ours and a new tensor, which is "meta" and holds no numbers."""
    monkeypatch.setattr(uwac, "DEVICE", "cpu")
    update = make_update(version)
    step = torch.tensor(3)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    with NoWaiting(), torch.device("meta"):
        update(step)


@each_version
def test_passes_and_seeds_are_no_kernels_of_their_own(version, monkeypatch):
    monkeypatch.setattr(uwac, "DEVICE", "cpu")
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    counts = set()
    for passes, num_seeds in ((10, 2), (100, 2), (10, 7)):
        update = make_update(version, passes, num_seeds)
        with Operations() as operations:
            update(torch.tensor(3))
        counts.add(operations.count)
    assert len(counts) == 1


@on_a_gpu
@each_version
def test_a_graph_gives_the_eager_numbers(version):
    """No update that waits for the GPU can be captured in one."""
    tensordict = pytest.importorskip("tensordict")
    found = []
    for graph in (False, True):
        update = make_update(version, cuda_graph=graph)
        launch = tensordict.nn.CudaGraphModule(update) if graph else update
        steps = [torch.full((), step, device="cuda") for step in range(2, 12)]
        metrics = [launch(step) for step in steps][-1]
        found.append({name: value.clone() for name, value in metrics.items()})
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-6, msg=name)
