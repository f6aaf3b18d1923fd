"""--critic ensemble and rem: targets, variances and losses against numbers worked out by hand."""

import json

import numpy as np
import pytest
import torch
from conftest import command_line
from test_update import ACTION_DIM, OBS_DIM, double, everything, make_agent, net, record
from torch.testing import assert_close

import uwac

__all__ = ["double"]  # float64 here, too

# Members of the two target critics, (C, K, N): at the first candidate and at the second.
MEMBERS = torch.tensor([[[1.0, 4.0], [3.0, 7.0], [2.0, 8.0]], [[0.0, 9.0], [2.0, 9.0], [1.0, 9.0]]]).double()


def with_members(agent, monkeypatch):
    """The target critics' members have these values at the candidates, and those of the second at the best."""
    q_values = agent.q_values

    def members(critic, obs, action, *dropout):
        if critic is not agent.target_critic:
            return q_values(critic, obs, action, *dropout)
        values = MEMBERS.flatten(0, 1)  # (C * K, N)
        return values[None, :, None] if action.dim() == 4 else values[None, :, 1:]

    monkeypatch.setattr(agent, "q_values", members)


@pytest.mark.parametrize(
    "critic, mixture, value, variance",
    [
        # Means 2, 19/3 and 1, 9: the mixtures are 0.75 * 1 + 0.25 * 2 = 1.25 and 0.75 * 19/3 + 0.25 * 9 = 7, of which the
        # second is larger; sample variances there: of 4, 7 and 8, 13/3, and of 9, 9 and 9, 0.
        ("ensemble", [1 / 3, 1 / 3, 1 / 3], 7.0, 13 / 3),
        # Weighted by 1/6, 2/6 and 3/6: 7 and 9 at the second: 0.75 * 7 + 0.25 * 9 = 7.5; the weighted squares of -3, 0
        # and 1 are 2 together, over 1 - (1 + 4 + 9) / 36 = 11/18.
        ("rem", [1 / 6, 2 / 6, 3 / 6], 7.5, 36 / 11),
    ],
)
def test_target_and_variance_by_hand(critic, mixture, value, variance, monkeypatch):
    agent = make_agent(uwac, critic=critic, ensemble_size=3, batch_size=1, num_candidates=2, beta=1.0, weight_clip=9.0)
    agent.data[2].fill_(3.0), agent.data[4].zero_()
    weights = {"rem": [mixture], "ensemble": [[1 / 3] * 3]}
    monkeypatch.setattr(agent, "mixture", lambda kind="ensemble": torch.tensor(weights[kind]).double())
    with_members(agent, monkeypatch)
    agent.update()
    metrics = agent.read_metrics(1, 1)
    assert metrics["target_q"] == pytest.approx(3 + 0.99 * value)
    assert metrics["variance"] == pytest.approx(variance)
    assert metrics["weight"] == pytest.approx(1 / variance)


@pytest.mark.parametrize("critic", ["ensemble", "rem"])
def test_loss_by_hand(critic, monkeypatch):
    """Each member of an ensemble learns the same target by itself; of REM their mixture does."""
    agent = make_agent(uwac, critic=critic, ensemble_size=3, num_seeds=2)
    mixtures, members = record(monkeypatch, agent, "mixture"), record(monkeypatch, agent, "q_values")
    weights, losses = record(monkeypatch, uwac, "uncertainty_weight"), []
    minimize = agent.minimize
    monkeypatch.setattr(agent, "minimize", lambda loss, optimizer: losses.append(loss) or minimize(loss, optimizer))
    targets = []
    monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.arange(6).expand(2, -1))
    agent.data[4].fill_(1)  # all end: the target is the reward
    agent.update()
    targets = agent.data[2][:6].expand(2, -1)
    q = next(x for x in members if x.shape == (2, 6, 6) and x.requires_grad).unflatten(1, (2, 3))
    for seed in range(2):
        expected = 0
        for c in range(2):
            rows = q[seed, c]  # (K, B)
            rows = (mixtures[0][seed] @ rows)[None] if critic == "rem" else rows
            expected += sum((weights[0][seed] * (row - targets[seed]).square()).mean() for row in rows)
        assert_close(losses[1][seed], expected)


def test_one_mixture_for_all_of_an_update(monkeypatch):
    """Target, regression and actor see the same random mixture, and Q of the policy is the smaller one's under it."""
    agent, given, policy = make_agent(uwac, critic="rem", ensemble_size=3), [], []
    for name in ("mix", "uncertainty"):
        original = getattr(agent, name)

        def recorded(*args, original=original):
            given.append(args[-1])
            policy.extend(args[:-1] if args[0] is agent.critic else ())
            return original(*args)

        monkeypatch.setattr(agent, name, recorded)
    minimize = agent.minimize

    def minimized(loss, optimizer):
        if optimizer is agent.actor_optimizer:
            members = agent.q_values(*policy).unflatten(1, (2, 3))
            policy.append(torch.einsum("sckb,sk->scb", members, given[0]).amin(1).mean())
        minimize(loss, optimizer)

    monkeypatch.setattr(agent, "minimize", minimized)
    agent.update()
    assert len(given) == 9 and all(mixture is given[0] for mixture in given)
    assert len(given[0].unique()) == 3
    assert agent.read_metrics(1, 1)["policy_q"] == pytest.approx(policy[-1].item())


def test_members_differ_and_each_seed_has_its_own():
    agent = make_agent(uwac, critic="ensemble", ensemble_size=3, num_seeds=2)
    obs, action = torch.randn(2, 4, OBS_DIM), torch.randn(2, 4, ACTION_DIM)
    q = agent.q_values(agent.critic, obs, action).unflatten(1, (2, 3))
    for index, (s, c, k) in enumerate(np.ndindex(2, 2, 3)):
        expected = net(agent.critic, torch.cat([obs[s], action[s]], -1), index).squeeze(-1)
        assert_close(q[s, c, k], expected)
    assert len(q[:, :, :, 0].detach().flatten().unique()) == 12
    assert_close(agent.uncertainty(agent.critic, obs, action, agent.mixture()), q.var(2).sum(1))


def test_variance_of_a_mixture():
    """As of a population in which a member of weight 3/6 stands three times among six, but for the small-sample factor."""
    agent = make_agent(uwac, critic="rem", ensemble_size=3)
    obs, action = torch.randn(1, 4, OBS_DIM), torch.randn(1, 4, ACTION_DIM)
    mixture = torch.tensor([[1 / 6, 2 / 6, 3 / 6]]).double()
    members = agent.q_values(agent.critic, obs, action)
    q = members.unflatten(1, (2, 3)).repeat_interleave(torch.tensor([1, 2, 3]), 2)
    expected = q.var(2, correction=0).sum(1) / (1 - (1 + 4 + 9) / 36)
    assert_close(agent.uncertainty(agent.critic, obs, action, mixture), expected)
    assert_close(agent.mix(members, mixture), q.mean(2))


def test_mixtures():
    """REM draws anew for each update and seed; an ensemble and dropout draw nothing."""
    agent = make_agent(uwac, critic="rem", ensemble_size=4, num_seeds=2)
    first, second = agent.mixture("rem"), agent.mixture("rem")
    assert_close(first.sum(1), torch.ones(2))
    assert (first != second).all() and (first[0] != first[1]).all() and (first > 0).all()
    before = torch.get_rng_state()
    assert (agent.mixture() == 0.25).all()
    assert torch.equal(torch.get_rng_state(), before)


def test_an_update_of_an_ensemble_moves_every_member():
    agent = make_agent(uwac, critic="ensemble", ensemble_size=3)
    before = everything(agent)
    agent.update()
    moved = everything(agent)
    for layer in range(3):
        name = f"critic.layers.{layer}.weight"
        assert ((moved[name] - before[name]).abs().amax((1, 2)) > 0).all()


def test_what_acts_is_the_first_critics_mean(monkeypatch):
    agent = make_agent(uwac, critic="ensemble", ensemble_size=3, num_seeds=2, spectral_norm=True)
    agent.update()
    obs, action = torch.randn(2, 4, OBS_DIM), torch.rand(2, 4, 5, ACTION_DIM)
    _, q1 = agent.policy()
    assert_close(q1(obs, action), agent.q_values(agent.critic, obs, action)[:, :3].mean(1))


@pytest.mark.parametrize("critic", ["ensemble", "rem"])
def test_a_run_and_its_evaluation(critic, tmp_path, monkeypatch, capsys):
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    words = "--env-id door-demo --total-steps 2 --eval-episodes 1 --eval-candidates 3 --batch-size 8 --num-seeds 2"
    assert command_line(uwac, f"{words} --critic {critic} --ensemble-size 3 --dropout 0.4", monkeypatch) == 0
    (run,) = (tmp_path / "runs").iterdir()
    result = json.loads((run / "result.json").read_text())
    assert result["args"]["dropout"] == 0 and result["args"]["ensemble_size"] == 3
    scores = uwac.main(uwac.Args(evaluate=str(run), eval_episodes=1, eval_candidates=3))["scores"]
    assert np.mean(scores, 1) == pytest.approx(result["history"][-1]["score"])
    assert command_line(uwac, f"--resume {run} --total-steps 3", monkeypatch) == 0
