"""Weights & Biases by two lines of Python, as the README has them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PROGRAM = """
import uwac, wandb
from conftest import short

args = short(uwac, gamma=0.875, total_steps=3)
wandb.init(project="our-project", config=vars(args), sync_tensorboard=True)
uwac.main(args)
"""


def test_weights_and_biases_offline(points):
    """The run's record holds its arguments and TensorBoard's metrics. In a process of its own, as
    wandb changes TensorBoard for good."""
    pytest.importorskip("wandb")
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    variables = os.environ | {"WANDB_MODE": "offline", "PYTHONPATH": path}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (record,) = Path("wandb").glob("offline-run-*/run-*.wandb")
    content = record.read_bytes()  # whose strings stand in the file as they are
    for text in ("our-project", "0.875", "critic_loss/seed-0", "score/seed-0"):
        assert text.encode() in content, text
