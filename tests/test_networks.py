"""Networks: what a stack, a pair layer and a sampler must do."""

import torch
from torch.testing import assert_close

import uwac


def test_a_stacked_layer_is_that_many_linear_layers(script):
    """Values and initial range of torch.nn.Linear, and weights that differ from layer to layer."""
    layer, x = script.StackedLinear(3, 50, 40), torch.randn(3, 7, 50)
    expected = [torch.nn.functional.linear(x[k], layer.weight[k].T, layer.bias[k, 0]) for k in range(3)]
    assert_close(layer(x), torch.stack(expected))
    for parameter in layer.parameters():
        assert 0.9 * 50**-0.5 < parameter.abs().max() <= 50**-0.5
        assert abs(parameter.mean()) < 0.2 * 50**-0.5
    assert not torch.equal(layer.weight[0], layer.weight[1])


def test_gradients_of_a_stack_are_those_of_its_members(script):
    stack, obs, action = script.Critic(3, 5, 2, hidden_dim=8), torch.randn(3, 6, 5), torch.rand(3, 6, 2)
    stack(obs, action).square().sum().backward()
    for k in range(3):
        single = script.Critic(1, 5, 2, hidden_dim=8)
        single.load_state_dict({name: value[k : k + 1] for name, value in stack.state_dict().items()})
        single(obs[k : k + 1], action[k : k + 1]).square().sum().backward()
        for mine, theirs in zip(single.parameters(), stack.parameters()):
            assert_close(mine.grad[0], theirs.grad[k])


def test_a_critic_on_many_actions_of_a_state_is_the_critic_on_each(script):
    """The first layer takes a state once for all its actions; the values are those of whole rows."""
    critic, obs, actions = script.Critic(2, 5, 3, hidden_dim=8), torch.randn(2, 6, 5), torch.rand(2, 6, 4, 3)
    values = critic(obs, actions)
    assert values.shape == (2, 6, 4)
    for n in range(4):
        assert_close(values[:, :, n], critic(obs, actions[:, :, n]))
    h = torch.cat([obs, actions[:, :, 1]], -1)  # and by hand, so that the order [obs, action] is fixed
    for layer in critic.layers:
        h = h @ layer.weight + layer.bias
        h = h if layer is critic.layers[-1] else h.relu()
    assert_close(values[:, :, 1], h.squeeze(-1))


def test_dropout_keeps_the_mean_and_drops_at_both_layers():
    """Where all is positive Q is linear in the masks, so that its mean over passes is the dropout-off value; its variance
    there is known: the share of each layer and that of both together."""
    p, critic = 0.3, uwac.Critic(1, 5, 2, hidden_dim=16)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.abs_()
        obs, action = torch.rand(1, 1, 5), torch.rand(1, 1, 2)
        q = critic(obs.expand(1, 100_000, 5), action.expand(1, 100_000, 2), dropout=p)[0]
        h1 = critic.layers[0](torch.cat([obs, action], -1))[0].T  # (H, 1)
        w2, w3 = critic.layers[1].weight[0], critic.layers[2].weight[0].T  # (H, H), (1, H)
        h2 = critic.layers[1](h1.T[None])[0]  # (1, H)
        first, second, both = (h1 * (w2 @ w3.T)).square().sum(), (h2 * w3).square().sum(), (h1 * w2 * w3).square().sum()
        v = p / (1 - p)
        variance = v * (first + second) + v**2 * both
    assert abs(q.mean() - critic(obs, action)).item() < 5 * (variance / 100_000) ** 0.5
    assert_close(q.var(), variance, rtol=0.03, atol=0)
    many = obs.expand(1, 100_000, 5), action.expand(1, 100_000, 2)
    assert_close(uwac.mc_dropout_variance(critic, *many, p, 5).mean(), variance, rtol=0.03, atol=0)


def test_masks_of_other_units_rows_critics_and_passes_are_independent():
    """Correlations within five standard errors."""
    p = 0.3
    masks = [mask.double() for _, mask in zip(range(4), uwac.dropout_masks(torch.empty(2, 64, 1000), p))]
    masks = torch.stack(masks) - (1 - p)
    for dim in range(4):  # pass, critic, row, unit: each with its next and with the one half of them further
        for distance in {1, masks.shape[dim] // 2}:
            correlation = (masks * masks.roll(distance, dim)).mean() / (p * (1 - p))
            assert abs(correlation) < 5 / masks.numel() ** 0.5, (dim, distance)


def test_log_stds_are_clamped(script):
    """[-20, 2] for the actor; [-4, 15] for the VAE, where -4 shows in the loss: KL of a standard deviation of exp(-4)."""
    actor = script.Actor(1, 5, 2, hidden_dim=8)
    vae = script.BehaviorVAE(1, 5, 2, hidden_dim=8)
    for bias, low, high in ((-1e3, -20, -4), (1e3, 2, 15)):
        with torch.no_grad():
            for network, dim in ((actor, 2), (vae.encoder, 4)):
                network.layers[2].weight.zero_()
                network.layers[2].bias.zero_()
                network.layers[2].bias[..., dim:] = bias
            for parameter in vae.decoder.parameters():
                parameter.zero_()
        assert (actor(torch.randn(1, 6, 5))[1] == low).all()
        log_std = torch.tensor(float(high))
        kl = -0.5 * (1 + 2 * log_std - (2 * log_std).exp())
        loss = vae.loss(torch.randn(1, 6, 5), torch.zeros(1, 6, 2), torch.randn(1, 6, 4))
        assert_close(loss, (0.5 * kl)[None])


def test_actor_samples_its_gaussian(script):
    """Mean and standard deviation of 20,000 samples a state, before the tanh, within five standard errors."""
    actor, obs = script.Actor(2, 5, 3, hidden_dim=8), torch.randn(2, 4, 5)
    with torch.no_grad():
        (mean, log_std), samples = actor(obs), actor.sample(obs, 20_000)
    assert samples.shape == (2, 4, 20_000, 3)
    assert ((samples.mean(2) - mean).abs() < 5 * log_std.exp() / 20_000**0.5).all()
    assert ((samples.std(2) / log_std.exp() - 1).abs() < 5 / 40_000**0.5).all()
