"""A short run of the fuzz campaign, and proof that it sees what can go wrong."""

import os
import signal
import time
from types import SimpleNamespace

import fuzz_dataset
import h5py
import pytest
from fuzz_dataset import KINDS


@pytest.mark.parametrize("case", range(len(KINDS)), ids=KINDS)
def test_every_kind_once(script, case, tmp_path):
    fuzz_dataset.load(script, 0, case, tmp_path)


@pytest.mark.parametrize(
    "read, kind, code",
    [
        (lambda path: os.kill(os.getpid(), signal.SIGKILL), "nothing wrong", -signal.SIGKILL),
        (lambda path: time.sleep(60), "nothing wrong", None),
        (lambda path: (h5py.File(path), {}), "not HDF5", 1),  # raises OSError
        (lambda path: (h5py.File(path), {}), "missing", 1),  # loaded
    ],
)
def test_the_campaign_sees(monkeypatch, read, kind, code):
    monkeypatch.setattr(fuzz_dataset, "SECONDS", 2 if code is None else 60)
    script = SimpleNamespace(read_file=read, InputError=ArithmeticError)
    script.to_transitions = lambda *arguments: None
    assert fuzz_dataset.run_case(script, 0, list(KINDS).index(kind)) == code
