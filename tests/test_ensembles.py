"""benchmark/ensembles.py: targets, variances and losses against numbers worked out by hand."""

import json
import runpy
import sys

import pytest
import torch
from conftest import ROOT
from test_update import transitions
from torch.testing import assert_close

sys.path.insert(0, str(ROOT / "benchmark"))

import ensembles
import uwac

SMALL = {"ensemble_size": 3, "batch_size": 6, "num_candidates": 4, "spectral_norm": False}


def small(members, monkeypatch, **changes):
    """An agent of three members a critic, in uwac.py with ensembles.py in its place."""
    monkeypatch.setattr(uwac, "uncertainty", ensembles.uncertainty)
    args = ensembles.Args(members=members, **SMALL | changes)
    agent = ensembles.Agent(args, obs_dim=5, action_dim=2)
    for parameter in agent.critic.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return args, agent


def test_values_and_variance_are_those_of_the_members(monkeypatch):
    args, agent = small("ensemble", monkeypatch, num_seeds=2)
    obs = torch.randn(2, 4, 5)
    action = torch.rand(2, 4, 2)
    q = torch.cat([obs, action], -1)
    for layer in agent.critic.layers:
        q = q @ layer.weight.unflatten(1, (3, 2)) + layer.bias.unflatten(1, (3, 2))
        q = q if layer is agent.critic.layers[-1] else q.relu()
    q = q.squeeze(-1)  # (2, K, S, B)
    assert_close(agent.critic(obs, action), q.mean(1))
    assert_close(ensembles.uncertainty(agent.critic, obs, action, args), q.var(1).sum(0))
    mixture = torch.tensor([[0.5, 0.2], [0.3, 0.2], [0.2, 0.6]])  # (K, S)
    agent.critic.mixture.copy_(mixture)
    assert_close(agent.critic(obs, action), (mixture[:, :, None] * q).sum(1))
    many = torch.stack([action, -action], 2)  # (S, B, N, A)
    assert_close(agent.critic(obs, many)[..., 0], agent.critic(obs, action))


@pytest.mark.parametrize("members", ["ensemble", "rem"])
def test_each_member_of_an_ensemble_learns_by_itself_and_rem_as_one(members, monkeypatch):
    """All end: the target is the reward, 2."""
    args, agent = small(members, monkeypatch, num_seeds=2)
    data = transitions()
    data[2].fill_(2)
    data[4].fill_(1)
    mixtures = []
    seen = []
    forward = ensembles.Critic.forward

    def recorded(self, *inputs):
        mixtures.append(self.mixture.clone())
        if len(inputs) == 3:
            seen.append(self.q_of_members(*inputs[:2]))
        return forward(self, *inputs)

    monkeypatch.setattr(ensembles.Critic, "forward", recorded)
    metrics = ensembles.update(agent, data, 1, args)
    (q,) = seen  # (2, K, S, B)
    learning = q if members == "ensemble" else (mixtures[0][:, :, None] * q).sum(1, keepdim=True)
    errors = (learning - 2).square().sum((0, 1))  # (S, B)
    assert_close(metrics["critic_loss"], metrics["weight"] * errors.mean(1))
    assert len(mixtures) == 3  # target, regression, actor
    for mixture in mixtures:
        assert torch.equal(mixture, mixtures[0])
        assert_close(mixture.sum(0), torch.ones(2))
    assert len(mixtures[0].unique()) == (6 if members == "rem" else 1)
    assert (agent.critic.mixture == 1 / 3).all()  # what acts


def test_each_update_of_rem_has_a_mixture_of_its_own(monkeypatch):
    args, agent = small("rem", monkeypatch)
    data = transitions()
    ensembles.update(agent, data, 1, args)
    first = agent.target_critic.mixture.clone()
    ensembles.update(agent, data, 2, args)
    assert not torch.equal(agent.target_critic.mixture, first)


def test_one_member_has_no_variance():
    with pytest.raises(uwac.InputError, match="--ensemble-size 1: must be at least 2"):
        ensembles.Args(ensemble_size=1)


def test_a_run_resumed_and_evaluated(tmp_path, monkeypatch):
    words = "--env-id door-demo --batch-size 8 --ensemble-size 3 --members rem --total-steps 2"
    words += " --eval-episodes 1 --eval-candidates 3 --run-dir run"
    monkeypatch.chdir(tmp_path)

    def command_line(words):
        monkeypatch.setattr(sys, "argv", ["ensembles.py", *words.split()])
        runpy.run_path(ensembles.__file__, run_name="__main__")

    command_line(words)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["algorithm"] == "ensembles"
    assert result["args"]["members"] == "rem" and result["args"]["ensemble_size"] == 3
    command_line("--resume run --total-steps 3")
    history = json.loads((tmp_path / "run" / "result.json").read_text())["history"]
    assert [row["step"] for row in history] == [2, 3]
    command_line("--evaluate run --eval-episodes 1 --eval-candidates 3")
    scores = json.loads((tmp_path / "run" / "evaluation.json").read_text())["scores"]
    assert scores[0][0] == pytest.approx(history[-1]["score"][0])
    with pytest.raises(SystemExit) as end:  # what shapes training stays
        command_line("--resume run --total-steps 4 --ensemble-size 4")
    assert end.value.code == 2
    assert uwac.Args is not ensembles.Args
