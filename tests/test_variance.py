"""benchmark/measure/variance.py: errors of estimates of Var[Q]."""

import json
from unittest.mock import Mock

import pytest
import torch
from conftest import zeroed

import d4rl
import uwac
from benchmark.measure import variance


def test_what_variance_compares(tmp_path, monkeypatch):
    """Estimates are 0.5 and 0.1 off."""
    few = {"total_steps": 3, "batch_size": 4, "states": 7, "repetitions": 3, "rates": (0.2, 0.5)}
    args = variance.Args(passes=(2, 5), reference_passes=50, folder=tmp_path, **few)
    seen = []
    update = Mock(wraps=uwac.update)
    monkeypatch.setattr(uwac, "update", update)

    def estimate(critic, obs, action, p, T, factor):
        seen.append((critic.spectral_norm, p, action))
        truth = 1 + action.sum(-1).square().expand(2, 1, 7)
        return truth * (1 if T == 50 else factor)

    monkeypatch.setattr(uwac, "mc_dropout_variance", lambda *given: estimate(*given, 1.5))
    monkeypatch.setattr(variance, "row_masks_variance", lambda *given: estimate(*given, 0.9))
    variance.main(args)
    settings = [(rate, norm) for rate in (0.2, 0.5) for norm in (True, False)]
    trained = [call.args[0].args for call in update.call_args_list]
    found = [(one.dropout, one.spectral_norm, one.batch_size, one.variance) for one in trained]
    assert found == [(*setting, 4, "analytic") for setting in settings for _ in range(3)]
    rows = json.loads((tmp_path / "variance.json").read_text())
    found = [(row["rate"], row["spectral_norm"], row["actions"]) for row in rows[::5]]
    assert found == [(*setting, actions) for setting in settings for actions in ("data", "random")]
    kinds = [(name, T) for T in (2, 5) for name in ("one mask", "per-sample masks")]
    assert [(row["estimate"], row["passes"]) for row in rows[:5]] == [("analytic", 0), *kinds]
    errors = {"one mask": pytest.approx(0.5), "per-sample masks": pytest.approx(0.1)}
    assert all(row["rmse"] == errors.get(row["estimate"], row["rmse"]) for row in rows)

    data = torch.as_tensor(d4rl.read(d4rl.download("door-demo"))["actions"]).clamp(-1, 1)
    known, uniform = seen[0][-1], seen[13][-1]  # 13 estimates of each kind of actions
    assert seen[0][:2] == seen[13][:2] == (True, 0.2)
    assert all((data - action).abs().sum(1).min() < 1e-5 for action in known[0])
    assert all((data - action).abs().sum(1).min() > 1 for action in uniform[0])
    assert uniform.min() < -0.9 and uniform.max() > 0.9


def test_estimates_of_a_known_variance():
    """Q is m2 * (10 + 3 * m1) in every state, under masks m1 and m2 of one unit of each hidden
    layer. At a rate of 0.5 a mask is 0 or 2, and Var[Q] is 2 * (13^2 + 3^2) - 13^2 = 187. The
    closed form is exact here, so its error is that of the reference. Masks are of each row."""
    agent = uwac.Agent(uwac.Args(spectral_norm=False), 39, 28)
    with torch.no_grad():
        zeroed(agent.critic)
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
