"""benchmark/measure/variance.py: errors of estimates of Var[Q]."""

import functools
import itertools
import json
from itertools import product
from unittest.mock import Mock

import pytest
import torch
from conftest import rows_in, zeroed
from torch.utils.benchmark import Timer

import d4rl
import uwac
from benchmark.measure import variance


def test_critics_are_trained_as_asked():
    args = variance.Args(total_steps=3, batch_size=4)
    agent, data = variance.train(args, 0.2, True)
    found = agent.args.dropout, agent.args.spectral_norm, agent.args.batch_size, agent.args.variance
    assert found == (0.2, True, 4, "analytic")
    states = agent.optimizers["critic"].state.values()
    assert {int(state["step"]) for state in states} == {3}
    arrays = d4rl.read(d4rl.download("door-demo"))
    kept = ~arrays["timeouts"]
    assert data[1].numpy() == pytest.approx(arrays["actions"][kept].clip(-1, 1))


def test_a_rerun_gives_the_same_numbers_and_times_are_in_ms(tmp_path, monkeypatch):
    """Whatever torch has drawn before; by a clock that moves on by 3 s whenever it is asked."""
    clock = itertools.count(0, 3)

    def tick():
        torch.rand(seed)  # as a faster machine draws more masks in the same time
        return next(clock)

    monkeypatch.setattr(variance, "Timer", functools.partial(Timer, timer=tick))
    few = {"total_steps": 1, "batch_size": 4, "states": 7, "repetitions": 2, "rates": (0.2,)}
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        folder = tmp_path / str(seed)
        variance.main(variance.Args(passes=(3,), reference_passes=9, folder=folder, **few))
        found.append((folder / "variance.json").read_text())
    assert found[0] == found[1]
    assert {row["ms"] for row in json.loads(found[0])} == {3_000}


def test_a_row_for_each_rate_norm_kind_of_actions_and_estimate(tmp_path, capsys):
    few = {"total_steps": 1, "batch_size": 4, "states": 7, "repetitions": 2, "rates": (0.2, 0.5)}
    args = variance.Args(passes=(2, 5), reference_passes=50, folder=tmp_path, **few)
    variance.main(args)
    rows = json.loads((tmp_path / "variance.json").read_text())
    found = [(row["rate"], row["spectral_norm"], row["actions"]) for row in rows[::5]]
    settings = product((0.2, 0.5), (True, False), ("data", "random"))
    assert found == [*settings]
    kinds = [(name, T) for T in (2, 5) for name in ("one mask", "per-sample masks")]
    assert [(row["estimate"], row["passes"]) for row in rows[:5]] == [("analytic", 0), *kinds]
    first = rows[0]
    row, *_ = rows_in(capsys.readouterr().out.split("\n\n")[0], "estimate")
    numbers = {name: f"{first[name]:.4g}" for name in ("rmse", "log_correlation", "ms")}
    words = {"actions": "data", "estimate": "analytic", "passes": "0"}
    assert row == {"rate": "0.2", "spectral_norm": "True"} | words | numbers


def test_estimates_are_of_the_datas_actions_and_of_random_ones(monkeypatch):
    estimate = Mock(wraps=uwac.analytic_dropout_variance)
    monkeypatch.setattr(uwac, "analytic_dropout_variance", estimate)
    args = variance.Args(passes=(2,), reference_passes=2, states=500, repetitions=1)
    numbers = torch.arange(600.0)[:, None]
    data = [numbers.expand(-1, 39), (numbers / 600).expand(-1, 28)]
    variance.study(args, uwac.Agent(uwac.Args(), 39, 28), data, 0.1)
    (_, obs, known, rate), *_, (_, again, uniform, _) = (
        call.args for call in estimate.call_args_list
    )
    assert rate == 0.1 and torch.equal(obs, again) and len(obs[0, :, 0].unique()) == 500
    assert torch.equal(known, obs[..., :28] / 600)
    assert uniform.abs().max() <= 1 and uniform.std() == pytest.approx(3**-0.5, rel=0.05)


def test_errors_of_estimates_of_a_known_variance():
    """Q is m2 * (10 + 3 * m1) in every state, under masks m1 and m2 of one unit of each hidden
    layer. At a rate of 0.5 a mask is 0 or 2, and Q is 0, 0, 20 or 32: its variance is 187, its
    fourth central moment 1.357 * 187^2. So the variance of T passes has a relative mean square
    error of (1.357 - (T - 3) / (T - 1)) / T. The closed form is exact here."""
    agent = uwac.Agent(uwac.Args(spectral_norm=False), 39, 28)
    with torch.no_grad():
        zeroed(agent.critic)
        for layer, bias in zip(agent.critic.layers, (3, 10, 0)):
            layer.bias[..., 0] = bias
            layer.weight[..., 0, 0] = float(layer is not agent.critic.layers[0])
    settings = {"passes": (2, 8), "reference_passes": 5_000, "states": 5, "repetitions": 150}
    data = [torch.rand(2_000, 39), torch.rand(2_000, 28) * 2 - 1]
    analytic, *rows = variance.study(variance.Args(**settings), agent, data, 0.5)[:5]
    assert analytic["rmse"] < 0.05
    for row in rows:
        T = row["passes"]
        assert row["rmse"] ** 2 == pytest.approx((1.357 - (T - 3) / (T - 1)) / T, rel=0.15)
    inputs = agent.critic, data[0][None], data[1][None], 0.5, 4
    of_rows = variance.row_masks_variance(*inputs)
    assert uwac.mc_dropout_variance(*inputs).std(-1).max() == 0 and of_rows.std(-1).min() > 50
    assert of_rows.mean().item() == pytest.approx(187, rel=0.1)


def test_errors_by_hand():
    truth = torch.tensor([[[1.0, 10.0, 100.0]]])
    found = variance.compare(truth * torch.tensor([1.5, 0.5, 1.0]), truth)
    assert found["mse"] == pytest.approx(0.5 / 3)
    assert variance.compare(1 / truth, truth)["log_correlation"] == pytest.approx(-1)
