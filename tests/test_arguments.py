"""benchmark/lib/arguments.py: a critic in place of an agent's own."""

import pytest
import torch

from benchmark.variants import ensembles, uwac_code


@pytest.mark.parametrize("script", [ensembles, uwac_code], ids=["ensembles", "uwac_code"])
def test_another_critic_learns_at_its_rate_and_has_a_target_that_follows(script):
    """By Adam's first step, which is the rate."""
    settings = {"critic_lr": 0.01, "tau": 0.1, "batch_size": 4, "spectral_norm": False}
    agent = script.Agent(script.Args(variance="analytic", **settings), 5, 2)
    critic, target = ([*net.parameters()] for net in (agent.critic, agent.target_critic))
    before = [weight.clone() for weight in critic]
    assert all(torch.equal(old, other) for old, other in zip(before, target))
    data = [torch.rand(9, *shape) for shape in ((5,), (2,), (), (5,), ())]
    script.update(agent, data, 1)
    for weight, old, other in zip(critic, before, target):
        assert (weight - old).abs().max().item() == pytest.approx(0.01, rel=1e-3)
        torch.testing.assert_close(other, 0.9 * old + 0.1 * weight)
