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
def test_every_kind_once(script, case):
    _, failure, _ = fuzz_dataset.run_case(script, 0, case)
    assert failure == ""


def trusting(path):
    with h5py.File(path) as file:
        return {name: file[name][()] for name in file if name != "metadata"}, {}


@pytest.mark.parametrize(
    "read, kind, says",
    [
        (lambda path: os.kill(os.getpid(), signal.SIGKILL), "nothing wrong", "crash: SIGKILL"),
        (lambda path: time.sleep(60), "nothing wrong", "hang"),
        (lambda path: ({"rewards": 0}, {}), "nothing wrong", "not what the file holds"),
        (trusting, "not HDF5", "crash: raises OSError"),
        (trusting, "a link to another file", "loaded, should be refused"),
    ],
)
def test_the_campaign_sees(monkeypatch, read, kind, says):
    monkeypatch.setattr(fuzz_dataset, "SECONDS", 2)
    script = SimpleNamespace(read_file=read, InputError=ArithmeticError)
    script.to_transitions = lambda *arguments: None
    _, failure, _ = fuzz_dataset.run_case(script, 0, list(KINDS).index(kind))
    assert says in failure
