"""benchmark/speed.py and variance.py: their own numbers."""

from pathlib import Path

import pytest
import speed
import torch
import variance

import uwac


def test_a_ratio_is_the_median_of_the_rounds_own():
    """Without the rounds that a slow version sat out."""
    row = {"ms": [300.0, None, 1200.0, 900.0]}
    assert speed.ratio(row, [3.0, 4.0, 6.0, 6.0]) == "150.00 (100.00 to 200.00)"


def test_estimates_of_a_known_variance():
    """Q is m2 * (10 + 3 * m1) in every state, under masks m1 and m2 of one unit of each hidden
    layer. At a rate of 0.5 a mask is 0 or 2, and Var[Q] is 2 * (13^2 + 3^2) - 13^2 = 187. The
    closed form is exact here, so its error is that of the reference. Masks are of each row."""
    agent = uwac.Agent(uwac.Args(spectral_norm=False), 39, 28)
    with torch.no_grad():
        for parameter in agent.critic.parameters():
            parameter.zero_()
        for layer, bias in zip(agent.critic.layers, (3, 10, 0)):
            layer.bias[..., 0] = bias
            layer.weight[..., 0, 0] = float(layer is not agent.critic.layers[0])
    settings = {"passes": (2, 8), "reference_passes": 4_000, "states": 5, "repetitions": 20}
    data = [torch.rand(2_000, 39), torch.rand(2_000, 28) * 2 - 1]
    rows = variance.study(variance.Args(**settings), agent, data, 0.5)
    analytic, *of_passes = (row["rmse"] for row in rows if row["actions"] == "data")
    assert analytic < 0.1 < min(of_passes) and len(of_passes) == 4
    inputs = agent.critic, data[0][None], data[1][None], 0.5, 4
    of_rows = variance.row_masks_variance(*inputs)
    assert uwac.mc_dropout_variance(*inputs).std(-1).max() == 0 and of_rows.std(-1).min() > 50
    assert of_rows.mean().item() == pytest.approx(187, rel=0.1)


def test_errors_by_hand():
    truth = torch.tensor([[[1.0, 10.0, 100.0]]])
    found = variance.compare(truth * torch.tensor([1.5, 0.5, 1.0]), truth)
    assert found["mse"] == pytest.approx(0.5 / 3)
    assert variance.compare(1 / truth, truth)["log_correlation"] == pytest.approx(-1)


def test_a_python_without_d3rlpy_is_named():
    timer = speed.d3rlpy_timer(speed.Args(d3rlpy=Path("false")))
    with pytest.raises(ValueError, match="--d3rlpy false: d3rlpy does not run there"):
        timer(0.1)
