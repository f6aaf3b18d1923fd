"""benchmark/variants/ensembles.py: members that learn by themselves, and REM."""

import pytest
import torch
from torch.testing import assert_close

from benchmark.variants import ensembles


@pytest.mark.parametrize("members", ["ensemble", "rem"])
def test_each_member_of_an_ensemble_learns_by_itself_and_rem_as_one(members):
    """On one transition that ends: the target is the reward, 2."""
    settings = {"num_seeds": 2, "ensemble_size": 3, "batch_size": 6, "spectral_norm": False}
    agent = ensembles.Agent(ensembles.Args(members=members, **settings), 5, 2)
    obs, action = torch.rand(1, 5), torch.rand(1, 2)
    inputs = obs.expand(2, 1, 5), action.expand(2, 1, 2)
    q = agent.critic.q_of_members(*inputs)  # (2, K, S, 1)
    assert_close(agent.critic(*inputs), q.mean(1))
    variance = agent.uncertainty(agent.critic, *inputs)
    assert_close(variance, q.var(1).sum(0), rtol=1e-4, atol=0)  # small numbers at the start
    torch.manual_seed(1)
    mixture = torch.rand(3, 2)
    mixture /= mixture.sum(0)
    if members == "rem":
        q = torch.einsum("ks,cksb->csb", mixture, q).unsqueeze(1)
    torch.manual_seed(1)
    data = [obs, action, torch.tensor([2.0]), obs, torch.tensor([1.0])]
    metrics = ensembles.update(agent, data, 1)
    assert_close(metrics["critic_loss"], metrics["weight"] * (q - 2).square().sum((0, 1, 3)))
    of_target = mixture if members == "rem" else torch.full((3, 2), 1 / 3)
    assert_close(agent.target_critic.mixture, of_target)
    assert (agent.critic.mixture == 1 / 3).all()  # what acts
