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
    outcome, message = fuzz_dataset.run_case(script, 0, case)
    assert outcome in (fuzz_dataset.LOADED, fuzz_dataset.REFUSED), message


def trusting(path):
    with h5py.File(path) as file:
        return {name: file[name][()] for name in file if name != "metadata"}, {}


@pytest.mark.parametrize(
    "read, kind, found",
    [
        (lambda path: os.kill(os.getpid(), signal.SIGKILL), "nothing wrong", "crash: exit code -9"),
        (lambda path: time.sleep(60), "nothing wrong", "hang: takes more than 2 s"),
        (lambda path: ({"rewards": 0}, {}), "nothing wrong", "wrong: not what the file holds"),
        (trusting, "not HDF5", "crash: raises OSError"),
        (trusting, "a link to another file", "wrong: loaded, should be refused"),
    ],
)
def test_the_campaign_sees(monkeypatch, read, kind, found):
    monkeypatch.setattr(fuzz_dataset, "SECONDS", 2)
    script = SimpleNamespace(read_file=read, InputError=ArithmeticError)
    script.to_transitions = lambda *arguments: None
    outcome = fuzz_dataset.run_case(script, 0, list(KINDS).index(kind))
    assert ": ".join(outcome).startswith(found)
