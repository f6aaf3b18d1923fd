"""A short run of the fuzz campaign, and proof that the campaign sees what can go wrong."""

import os
import signal
import time
from types import SimpleNamespace

import fuzz_dataset
import h5py
import numpy as np
import pytest


def failures(script, cases, **options):
    found = []
    for case, kind, _, failure, *_ in fuzz_dataset.campaign(script, 0, cases, **options):
        if failure:
            found.append((case, kind, failure))
    return found


def test_short_campaign(script):
    """Every kind of damage once for each script; other cases for bear than for uwac."""
    first = len(fuzz_dataset.KINDS) * (script.__name__ == "bear")
    assert failures(script, range(first, first + len(fuzz_dataset.KINDS))) == []


def trusting(path):
    with h5py.File(path) as file:
        return {name: file[name][()] for name in fuzz_dataset.WIDTHS if name in file}, {}


def greedy(path):
    return trusting(path) if np.ones(2 * 10**8).all() else None


def converted(arrays, *rest):
    return fuzz_dataset.reference(arrays) or {}


@pytest.mark.parametrize(
    "read, kind, says",
    [
        (lambda path: os.kill(os.getpid(), signal.SIGKILL), "nothing wrong", "SIGKILL"),
        (lambda path: time.sleep(60), "nothing wrong", "hang"),
        (greedy, "nothing wrong", "MemoryError"),
        (trusting, "stored outside", "opens a file beside its own"),
        (trusting, "not HDF5", "raises OSError"),
        (trusting, "gzip taken for numbers", "wrong load"),
    ],
)
def test_the_campaign_sees(read, kind, says):
    script = SimpleNamespace(read_file=read, to_transitions=converted, InputError=ArithmeticError)
    case = list(fuzz_dataset.KINDS).index(kind)
    ((_, _, failure),) = failures(script, [case], patience=5)
    assert says in failure
