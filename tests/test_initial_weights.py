"""Initial weights are drawn as the authors' (those of rlkit, on which their code stands)."""

import lockstep
import pytest
from test_lockstep import BEAR


def assert_uniform(x, limit):
    """Numbers from -limit to limit; their mean magnitude to five of its standard errors."""
    assert 0 < x.abs().max() <= limit
    assert x.abs().mean().item() == pytest.approx(limit / 2, rel=3 / x.numel() ** 0.5)


def assert_initial(weights, last_limit):
    w0, b0, w1, b1, w2, b2 = weights
    assert_uniform(w0, w0.shape[-1] ** -0.5)  # of a layer's outputs, not of its inputs
    assert_uniform(w1, w1.shape[-1] ** -0.5)
    assert (b0 == 0.1).all() and (b1 == 0.1).all()
    assert_uniform(w2, last_limit)
    assert_uniform(b2, last_limit)


def test_authors_initial_weights():
    recorded, _ = lockstep.read(BEAR)
    assert_initial(lockstep.weights(recorded, "init", "actor"), 0.001)
    assert_initial(lockstep.weights(recorded, "init", "critic"), 0.003)


def test_initial_weights(script):
    args = script.Args(env_id="hopper-medium-v2")  # no spectral norm
    agent = script.Agent(args, obs_dim=11, action_dim=3)
    assert_initial(agent.actor.parameters(), 0.001)
    assert_initial(agent.critic.parameters(), 0.003)
    for network in (agent.vae.encoder, agent.vae.decoder):
        for layer in network.layers:  # as torch.nn.Linear
            limit = layer.weight.shape[-2] ** -0.5
            assert_uniform(layer.weight, limit)
            assert_uniform(layer.bias, limit)


def test_targets_start_as_copies(script):
    agent = script.Agent(script.Args(), obs_dim=11, action_dim=3)
    pairs = ((agent.target_critic, agent.critic), (agent.target_actor, agent.actor))
    for target, network in pairs:
        state = network.state_dict()
        for name, tensor in target.state_dict().items():
            assert tensor.equal(state[name])
            assert tensor.data_ptr() != state[name].data_ptr()
