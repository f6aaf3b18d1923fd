import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import bear
import uwac


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(params=[bear, uwac], ids=["bear", "uwac"])
def script(request):
    """A test that takes `script` runs for both."""
    return request.param
