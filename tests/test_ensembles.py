"""benchmark/ensembles.py: variances and losses against numbers worked out by hand."""

import json
from pathlib import Path

import ensembles
import pytest
import torch
from conftest import command_line, words
from torch.testing import assert_close


@pytest.mark.parametrize("members", ["ensemble", "rem"])
def test_each_member_of_an_ensemble_learns_by_itself_and_rem_as_one(members, monkeypatch):
    """All transitions end: the target is the reward, 2."""
    settings = {"num_seeds": 2, "ensemble_size": 3, "batch_size": 6, "num_candidates": 4}
    args = ensembles.Args(members=members, **settings)
    agent = ensembles.Agent(args, obs_dim=5, action_dim=2)
    shapes = (40, 5), (40, 2), (40,), (40, 5), (40,)
    data = [torch.rand(shape) for shape in shapes]
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


def test_a_run_resumed(points, monkeypatch, capsys):
    size = {"members": "rem", "ensemble_size": 3}
    assert command_line(ensembles, words(ensembles, **size), monkeypatch) == 0
    assert command_line(ensembles, "--resume run --total-steps 7", monkeypatch) == 0
    result = json.loads(Path("run/result.json").read_text())
    assert result["algorithm"] == "ensembles" and result["args"]["members"] == "rem"
    assert [row["step"] for row in result["history"]] == [3, 6, 7]
    for wrong, message in (
        ("--resume run --ensemble-size 4", "ensemble_size is 3 and stays so"),
        ("--ensemble-size 1", "--ensemble-size 1: "),
    ):
        capsys.readouterr()
        assert command_line(ensembles, wrong, monkeypatch) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ") and message in line
