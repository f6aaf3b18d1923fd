"""A short run of the fuzz campaign over load_dataset, and proof that the campaign sees what can go wrong."""

import os
import signal
import time
from types import SimpleNamespace

import fuzz_dataset
import h5py
import numpy as np
import pytest
from fuzz_dataset import BYTES, campaign


def failures(script, cases, **options):
    return [(case, kind, failure) for case, kind, _, failure, *_ in campaign(script, 0, cases, **options) if failure]


def test_short_campaign(script):
    """Every kind of mutation once for each script; other cases for bear than for uwac."""
    first = len(fuzz_dataset.KINDS) * (script.__name__ == "bear")
    assert failures(script, range(first, first + len(fuzz_dataset.KINDS))) == []


def trusting(path, obs_dim, action_dim, max_steps):
    """The arrays as h5py gives them."""
    with h5py.File(path) as file:
        return {name: file[name][()].astype(np.float32) for name in fuzz_dataset.NAMES if name in file}


def crash(*_):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "load, kind, says",
    [
        (crash, "nothing wrong", "SIGKILL"),
        (lambda *_: time.sleep(1.2) or {}, "nothing wrong", "takes 1.2 s"),
        (lambda *_: time.sleep(60), "nothing wrong", "hangs"),
        (lambda *_: np.ones(BYTES // 4), "nothing wrong", "MemoryError"),
        (trusting, "external link", "opens a file beside its own"),
        (trusting, "not HDF5", "raises OSError"),
        (trusting, "text that is a number", "should have been refused"),
    ],
)
def test_the_campaign_sees(load, kind, says):
    kinds = list(fuzz_dataset.KINDS)
    script = SimpleNamespace(load_dataset=load, InputError=ArithmeticError)
    ((_, _, failure),) = failures(script, [kinds.index(kind)], seconds=1, patience=1)
    assert says in failure
