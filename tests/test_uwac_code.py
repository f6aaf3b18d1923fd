"""benchmark/variants/uwac_code.py: the noise of ml-uwac's Q, and its defaults."""

import json

import numpy as np
import pytest
import torch
from conftest import zeroed
from test_lockstep import UWAC

import uwac
from benchmark.variants import uwac_code


@pytest.mark.parametrize("env_id", ["door-human", "hopper-medium"])
def test_defaults_are_those_of_the_recorded_trainer(env_id):
    """But for what was made smaller there, and spectral norm, which was left out there."""
    recorded = json.loads(str(np.load(UWAC)["hyperparameters"]))["args"]
    for name in ("warmup_steps", "batch_size", "passes", "spectral_norm", "variance"):
        del recorded[name]
    args = vars(uwac_code.Args(env_id))
    assert {name: args[name] for name in recorded} == recorded
    assert args["passes"] == 100 and args["spectral_norm"] is True


def test_noise_is_in_targets_and_in_the_actors_loss_and_in_the_choice(monkeypatch):
    """ml-uwac's, whose Var[Q] is 4 here: around Q, which is 0, noise has a std of 0.2, and the
    expected minimum of two normal numbers is -std / sqrt(pi)."""
    rates = set()

    def constant(critic, obs, action, rate):
        rates.add(rate)
        return torch.full((2, *action.shape[:-1]), 4.0)

    monkeypatch.setattr(uwac, "analytic_dropout_variance", constant)
    settings = {"batch_size": 5_000, "num_candidates": 1, "lmbda": 1.0, "passes": 100}
    settings |= {"variance": "analytic", "spectral_norm": False, "critic_lr": 0.0, "dropout": 0.3}
    noisy = uwac_code.Agent(uwac_code.Args(**settings), 3, 2)
    zeroed(noisy.critic.layers[2], noisy.target_critic.layers[2])
    assert noisy.optimizers["critic"].param_groups[0]["params"] == [*noisy.critic.parameters()]
    n = 100
    data = [torch.rand(n, 3), torch.rand(n, 2), torch.ones(n), torch.rand(n, 3), torch.zeros(n)]
    metrics = uwac.update(noisy, data, 1)
    smaller = -0.2 / np.pi**0.5
    mean = 1 + 0.99 * smaller
    spread = 0.99**2 * 0.04 * (1 - 1 / np.pi)
    weight = np.exp(-0.5 * (4 + 4))
    assert metrics["policy_q"].item() == pytest.approx(smaller, abs=0.01)
    assert metrics["target_q"].item() == pytest.approx(mean, abs=0.01)
    assert metrics["critic_loss"].item() == pytest.approx(2 * weight * (mean**2 + spread), rel=0.02)
    assert rates == {0.3}
    torch.manual_seed(1)
    chosen = noisy.act(np.zeros((1, 200, 3)), 10)
    torch.manual_seed(1)
    candidates = noisy.actor.sample(torch.zeros(1, 200, 3), 10).tanh()
    places = (candidates == torch.as_tensor(chosen)[:, :, None]).all(-1).float().argmax(-1)
    assert torch.bincount(places[0], minlength=10).min() > 5  # each is the best of some
