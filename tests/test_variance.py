"""benchmark/variance.py: which critics it compares, at which actions, against which truth."""

import json

import pytest
import torch
import variance

import d4rl
import uwac


def test_what_is_compared(tmp_path, monkeypatch):
    """Critics with the norm and without, each trained with its rate, at the data's actions and at
    uniform ones, by estimates that are 0.5 and 0.1 off."""
    few = {"total_steps": 3, "batch_size": 4, "states": 7, "repetitions": 3, "rates": (0.2, 0.5)}
    args = variance.Args(passes=(2, 5), reference_passes=50, folder=tmp_path / "new", **few)
    trained, seen = [], []
    update = uwac.update
    record = lambda agent, *given: trained.append(agent.args) or update(agent, *given)
    monkeypatch.setattr(uwac, "update", record)

    def estimate(critic, obs, action, p, T, factor):
        seen.append((critic.spectral_norm, p, action))
        truth = 1 + action.sum(-1).square().expand(2, 1, 7)
        return truth * (1 if T == 50 else factor)

    monkeypatch.setattr(uwac, "mc_dropout_variance", lambda *given: estimate(*given, 1.5))
    monkeypatch.setattr(variance, "row_masks_variance", lambda *given: estimate(*given, 0.9))
    variance.main(args)
    settings = [(rate, norm) for rate in (0.2, 0.5) for norm in (True, False)]
    found = [(one.dropout, one.spectral_norm, one.batch_size, one.variance) for one in trained]
    assert found == [(*setting, 4, "analytic") for setting in settings for _ in range(3)]
    rows = json.loads((tmp_path / "new" / "variance.json").read_text())
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
    assert uniform.min() < -0.9 and uniform.max() > 0.9
    with pytest.raises(ValueError, match="exists: choose another --folder"):
        variance.main(args)
