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
def seeded():
    torch.manual_seed(0)


@pytest.fixture(params=[bear, uwac], ids=["bear", "uwac"])
def script(request):
    """A test that takes `script` runs for both."""
    return request.param
