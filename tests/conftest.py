import runpy
import signal
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import bear
import uwac

torch.set_num_threads(1)  # the tensors are small, and threads only wait for each other


@pytest.fixture(autouse=True)
def seeded_and_with_this_processs_signals():
    torch.manual_seed(0)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(params=[bear, uwac], ids=["bear", "uwac"])
def script(request):
    """A test that takes `script` runs for both."""
    return request.param


def command_line(script, words, monkeypatch):
    """The script as __main__ in this process, which saves the imports; returns its exit code."""
    monkeypatch.setattr(sys, "argv", [script.__file__, *words.split()])
    try:
        runpy.run_path(script.__file__, run_name="__main__")
    except SystemExit as end:
        return end.code
    return 0
