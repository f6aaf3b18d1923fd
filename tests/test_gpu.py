"""An update must not wait for the host, and a CUDA graph can hold it."""

import functools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bear
import uwac

VERSIONS = [(bear, {}), (uwac, {"variance": "analytic"}), (uwac, {"variance": "mc", "passes": 5})]
each_version = pytest.mark.parametrize("script, changes", VERSIONS, ids=["bear", "analytic", "mc"])
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHAPES = (39,), (28,), (), (39,), ()  # of door's obs, action, reward, next_obs, done


def make_update(script, changes: dict, device: str):
    """An update as a function of the step, which has made the optimizers' state."""
    args = script.Args(**{"batch_size": 8, "warmup_steps": 2} | changes)
    agent = script.Agent(args, 39, 28).to(device)
    data = [torch.rand(500, *shape, device=device) for shape in SHAPES]
    update = functools.partial(script.update, agent, data, args=args)
    update(torch.ones((), device=device))
    return update


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
    update = make_update(script, changes, "cpu")
    step = torch.tensor(3)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    with NoWaiting(), torch.device("meta"):
        update(step)


@on_a_gpu
@each_version
def test_update_never_waits_for_the_gpu(script, changes):
    update = make_update(script, changes, "cuda")
    step = torch.ones((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        update(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_a_gpu
def test_devices_agree_on_the_variance(monkeypatch):
    critic, obs, action = uwac.Critic(2, 39, 28), torch.rand(2, 8, 39), torch.rand(2, 8, 28)
    draws = torch.rand(20, 2, 4, 256)
    monkeypatch.setattr(torch, "rand", lambda *shape, device: draws.view(shape).to(device))
    cpu = uwac.mc_dropout_variance(critic, obs, action, 0.1, 20)
    gpu = uwac.mc_dropout_variance(critic.cuda(), obs.cuda(), action.cuda(), 0.1, 20)
    torch.testing.assert_close(gpu.cpu(), cpu, rtol=1e-3, atol=0)
