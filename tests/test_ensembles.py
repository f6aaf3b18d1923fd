"""benchmark/ensembles.py: variances and losses against numbers worked out by hand."""

import json

import ensembles
import pytest
import torch
from conftest import command_line
from test_update import transitions
from torch.testing import assert_close


@pytest.mark.parametrize("members", ["ensemble", "rem"])
def test_each_member_of_an_ensemble_learns_by_itself_and_rem_as_one(members, monkeypatch):
    """All transitions end: the target is the reward, 2."""
    settings = {"num_seeds": 2, "ensemble_size": 3, "batch_size": 6, "num_candidates": 4}
    args = ensembles.Args(members=members, **settings)
    agent = ensembles.Agent(args, obs_dim=5, action_dim=2)
    data = transitions()
    data[2].fill_(2)
    data[4].fill_(1)
    mixtures = []
    learning = []
    forward = ensembles.Critic.forward

    def recorded(self, *inputs):
        mixtures.append(self.mixture.clone())
        if len(inputs) == 3:  # the regression
            q = self.q_of_members(*inputs[:2])  # (2, K, S, B)
            mixed = torch.einsum("ks,cksb->csb", self.mixture, q).unsqueeze(1)
            learning.append(q if members == "ensemble" else mixed)
        return forward(self, *inputs)

    monkeypatch.setattr(ensembles.Critic, "forward", recorded)
    metrics = ensembles.update(agent, data, 1, args)
    errors = (learning[0] - 2).square().sum((0, 1))  # (S, B)
    assert_close(metrics["critic_loss"], metrics["weight"] * errors.mean(1))
    ensembles.update(agent, data, 2, args)
    target, regression, actor, following, *_ = mixtures
    assert torch.equal(target, regression) and torch.equal(target, actor)
    assert torch.equal(target, following) == (members == "ensemble")
    assert_close(target.sum(0), torch.ones(2))
    assert (agent.critic.mixture == 1 / 3).all()  # what acts
    obs, action = (array.expand(2, -1, -1) for array in data[:2])
    q = agent.critic.q_of_members(obs, action)
    assert_close(agent.critic(obs, action), q.mean(1))
    assert_close(agent.uncertainty(agent.critic, obs, action), q.var(1).sum(0))


def test_a_run_resumed(tmp_path, monkeypatch, capsys):
    words = "--env-id door-demo --batch-size 8 --ensemble-size 3 --members rem --total-steps 2"
    words += " --eval-episodes 1 --eval-candidates 3 --run-dir run"
    monkeypatch.chdir(tmp_path)
    assert command_line(ensembles, words, monkeypatch) == 0
    assert command_line(ensembles, "--resume run --total-steps 3", monkeypatch) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["algorithm"] == "ensembles" and result["args"]["members"] == "rem"
    assert [row["step"] for row in result["history"]] == [2, 3]
    assert command_line(ensembles, "--resume run --ensemble-size 4", monkeypatch) == 2
    assert "--ensemble-size is 3" in capsys.readouterr().err
    assert command_line(ensembles, "--ensemble-size 1", monkeypatch) == 2
    assert "--ensemble-size 1: " in capsys.readouterr().err
