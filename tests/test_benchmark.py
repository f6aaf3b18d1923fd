"""The benchmarks' own numbers: floors, ratios, the literal variance, errors of estimates, tables and figures."""

import sys
from pathlib import Path

import matplotlib.image
import pytest
import torch
from torch.testing import assert_close

import uwac

sys.path.insert(0, str(Path(uwac.__file__).parent / "benchmark"))
import speed
import variance
from speed import Case


def test_floor_of_a_layer_by_hand():
    """The actor: 256 rows through 39-256-256-56, forward and for the weights' gradient, and back from 56 to the first
    layer's output, whose input needs no gradient; two operations a weight and row."""
    forward = 39 * 256 + 256 * 256 + 256 * 56
    assert speed.count_flops(Case("BEAR"))["actor"] == 2 * 256 * (2 * forward + 256 * 256 + 256 * 56)
    assert speed.count_flops(Case("BEAR", num_seeds=5))["actor"] == 5 * speed.count_flops(Case("BEAR"))["actor"]
    assert speed.count_flops(Case("UWAC mc", passes=30))["variance"] == 30 * 2 * 2 * 2 * 256 * (256 * 256 + 256)
    assert "variance" not in speed.count_flops(Case("BEAR"))


def test_the_literal_variance_estimates_the_same():
    """At the candidate that attains the max, over both critics: T = 400 passes twice, independent of each other."""
    agent = speed.make_agent(Case("UWAC literal", batch_size=16, passes=400))
    obs, candidates = torch.randn(1, 16, 39), torch.rand(1, 16, 10, 28)
    agent.q_values(agent.target_critic, obs, candidates)
    best = candidates[:, :, 3]
    literal = agent.q_variance(agent.target_critic, obs, best)
    ours = uwac.Agent.q_variance(agent, agent.target_critic, obs, best)
    error = (literal / ours - 1).square().mean().sqrt()
    assert 0.3 < error / (2 / 399) ** 0.5 < 2  # of two estimates, and the sum of two critics


def test_delta_method_by_automatic_differentiation():
    critic, obs, action = uwac.Critic(1, 5, 2, hidden_dim=16), torch.randn(1, 3, 5), torch.rand(1, 3, 2)
    masks = torch.ones(2, 3, 16, requires_grad=True)

    def q(masks):
        h = critic.layers[0](torch.cat([obs, action], -1)).relu() * masks[0]
        return critic.layers[2](critic.layers[1](h).relu() * masks[1]).squeeze()

    slopes = torch.stack([torch.autograd.grad(q(masks)[i], masks)[0][:, i] for i in range(3)])
    expected = 0.2 / 0.8 * slopes.square().sum((1, 2))
    assert_close(variance.delta_variance(critic, obs, action, 0.2)[0], expected)


def test_errors_by_hand():
    found = variance.compare(torch.tensor([[1.1, 1.8, 4.0]]), torch.tensor([[1.0, 2.0, 4.0]]))
    assert found["relative_rmse"] == pytest.approx((0.02 / 3) ** 0.5)
    assert variance.compare(torch.tensor([2.0, 8.0, 18.0]), torch.tensor([1.0, 4.0, 9.0]))["log_correlation"] > 0.9999


def timed(version, ms, group="door-human", **sizes):
    case = Case(version, **sizes)
    row = {"version": version, "task": case.task, "num_seeds": case.num_seeds, "batch_size": case.batch_size}
    row |= {"passes": case.passes, "group": group, "ms": ms, "floor_ms": [1.0, 2.0, 2.0], "gflop": 1.0, "peak_mb": 7.0}
    return row


def test_speed_table_and_figure_by_hand(tmp_path):
    """Medians of the rounds' own ratios, rounds that a slow version sat out left aside; every curve is drawn."""
    rows = [timed("BEAR", [2.0, 4.0, 3.0]), timed("UWAC analytic", [3.0, 4.0, 6.0]), timed("UWAC mc", [8.0, 8.0, 9.0])]
    rows.append(timed("UWAC literal", [300.0, None, 1200.0]))
    others = [timed(row["version"], [1.0, 9.0, 9.0], group) for group in ("batch", "passes") for row in rows[:3]]
    text = speed.table(others + rows)  # the targets are for the sizes of door, in a group of their own
    assert "| BEAR | door-human | 1 | 256 |  | 3.0 (2.0 to 4.0) | 333.3 | 1.00 | 2.00 (1.50 to 2.00) | 7 |" in text
    assert "| UWAC analytic / BEAR | 1.50 (1.00 to 2.00) | <= 1.10 |" in text
    assert "| UWAC literal / UWAC analytic | 150.00 (100.00 to 200.00) | >= 60 |" in text
    assert "| BEAR / its floor | 2.00 (1.50 to 2.00) |" in text
    for group, name, values in (("seeds", "num_seeds", (1, 5)), ("batch", "batch_size", (256, 1024))):
        for version in ("BEAR", "UWAC analytic", "UWAC mc"):
            rows += [timed(version, [2.0 * value] * 3, group, **{name: value}) for value in values]
    rows += [timed("BEAR", [2.0] * 3, "passes"), timed("UWAC mc", [9.0] * 3, "passes")]
    speed.plot(rows, tmp_path / "speed.png")
    panels = torch.as_tensor(matplotlib.image.imread(tmp_path / "speed.png"))[..., :3].chunk(3, 1)
    vermillion = torch.tensor([0xD5, 0x5E, 0x00]) / 255
    assert all(((panel - vermillion).abs().amax(-1) < 0.02).sum() > 30 for panel in panels)


def test_variance_study_from_training_to_figure(tmp_path, capsys):
    out = tmp_path / "variance.json"
    sizes = {"total_steps": 2, "rates": (0.3,), "passes": (10, 100, 1000), "reference_passes": 2000, "states": 16}
    variance.main(variance.Args(**sizes, out=out))
    rows = [line.split("|")[2:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [[cell.strip() for cell in row[:2]] for row in rows[:4]] == [
        ["yes", "data"], ["yes", "random"], ["no", "data"], ["no", "random"],
    ]  # fmt: skip
    for row in rows[:4]:
        ten, hundred, thousand, delta, analytic = (float(cell.split("%")[0]) for cell in row[2:])
        assert ten > 30 > hundred > 8 > thousand and delta > analytic and analytic < 8
    assert out.with_suffix(".png").stat().st_size > 10_000
