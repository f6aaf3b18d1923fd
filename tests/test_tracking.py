"""Weights & Biases by two lines of Python, as the README has them."""

from pathlib import Path

import pytest
from conftest import short

import uwac

pytestmark = pytest.mark.usefixtures("points")


def test_weights_and_biases_offline(monkeypatch):
    """The run's record holds its arguments and TensorBoard's metrics."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    args = short(uwac, gamma=0.875, total_steps=3)
    wandb.init(project="our-project", config=vars(args), sync_tensorboard=True)
    uwac.main(args)
    wandb.teardown()  # all is written
    (record,) = Path("wandb").glob("offline-run-*/run-*.wandb")
    content = record.read_bytes()  # whose strings stand in the file as they are
    for text in ("our-project", "0.875", "critic_loss/seed-0", "score/seed-0"):
        assert text.encode() in content, text
