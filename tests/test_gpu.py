"""An update must not wait for the host; benchmark/gpu.sh compares CUDA graphs with eager runs."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bear
import uwac

VERSIONS = [(bear, {}), (uwac, {"variance": "analytic"}), (uwac, {"variance": "mc", "passes": 5})]
each_version = pytest.mark.parametrize("script, changes", VERSIONS, ids=["bear", "analytic", "mc"])
SHAPES = (39,), (28,), (), (39,), ()  # of door's obs, action, reward, next_obs, done


class NoWaiting(TorchDispatchMode):
    """Fails where a value or a size would have to reach the host."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "nonzero", "masked_select", "equal"}, name
        return function(*args, **(kwargs or {}))


@each_version
def test_update_talks_to_no_other_device(script, changes):
    """Nothing is read back, and nothing is made elsewhere than where the data are: "meta" tensors
    hold no numbers, so that an operation on one of them and one of ours fails."""
    args = script.Args(batch_size=8, warmup_steps=2, **changes)
    agent = script.Agent(args, 39, 28)
    data = [torch.rand(500, *shape, device=script.DEVICE) for shape in SHAPES]
    step = torch.full((), 3, device=script.DEVICE)
    script.update(agent, data, step, args)  # makes the optimizers' state
    with NoWaiting(), torch.device("meta"):
        script.update(agent, data, step, args)
