"""benchmark/measure/diagnose.py: what is measured of known networks."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import short, write_hdf5, zeroed

import uwac
from benchmark.measure import diagnose


def test_known_networks(points, monkeypatch):
    """The first seed's actor has means of 0.5 and the second's of 1, the VAE 1.5 and 0.5, before
    the tanh. The critic's variance grows with the action, from 0 at the data's, which are all 0."""
    write_hdf5("points.hdf5", points | {"actions": np.zeros((50, 2))})
    uwac.main(short(uwac, variance="analytic", num_seeds=2))
    agent, saved = uwac.load_checkpoint("run")
    zeroed(agent.actor, agent.vae.decoder, agent.critic)
    with torch.no_grad():
        agent.actor.layers[2].bias[..., :2] = torch.tensor([0.5, 1])[:, None, None]
        agent.actor.layers[2].bias[..., 2:] = -9  # limited to -5
        agent.vae.decoder.layers[2].bias[:] = torch.tensor([1.5, 0.5])
        agent.critic.layers[0].weight[..., 3:, :2] = torch.eye(2)
        agent.critic.layers[1].weight[..., :2, :2] = torch.eye(2)
        agent.critic.layers[2].weight[..., :2, :] = 1
    monkeypatch.setattr(diagnose, "load", lambda run: (uwac, agent, saved))
    monkeypatch.setattr(diagnose, "FOR_MEANS", 200)
    found = diagnose.diagnose(Path("run"))
    assert json.loads(Path("run/diagnosis-6.json").read_text()) == found
    assert Path("run/variance-6.png").exists()
    assert found["gap"] == pytest.approx([0.5**0.5, 0.5])
    assert found["gap_saturated"] == pytest.approx([1, 0.5])  # of the first action alone
    assert found["saturated"] == [0.5, 0.5]
    for num in (4, 10, 100):
        mmd = [(2 - 2 * np.exp(-distance / 40)) ** 0.5 for distance in (1, 0.5)]
        assert found[f"mmd, {num}"] == pytest.approx(mmd, rel=3e-3)
        assert found[f"mmd_of_vae, {num}"] == pytest.approx([1e-3] * 2)  # the root of 1e-6
        assert max(found[f"mmd_centred, {num}"]) < 0.005
    assert found["actor_std"] == pytest.approx([np.exp(-5)] * 2) and found["vae_std"] == [0, 0]
    assert found["actor_error"] == pytest.approx(np.tanh([0.5, 1]))
    of_vae = (np.tanh([1.5, 0.5]) ** 2).mean() ** 0.5
    assert found["vae_error"] == pytest.approx([of_vae] * 2)
    assert found["auroc_shuffled"] == [0.5, 0.5]
    # A quarter of the random actions has no variance.
    assert found["auroc_uniform"] == pytest.approx([7 / 8] * 2, abs=0.1)
    assert found["auroc_action_norm"] == [1]  # a random action is never shorter than 0
    assert found["auroc_nearest"] == [1]
    untrained = found["auroc_untrained"]
    assert len(untrained) == 10 and max(untrained) < 0.75 and np.std(untrained) > 0.01


def test_the_same_run_has_the_same_diagnosis(points):
    uwac.main(short(uwac, num_seeds=2))
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(diagnose.diagnose(Path("run")))
    assert found[0] == found[1]


def test_random_actions_are_the_same_for_all_runs_on_the_data(points, monkeypatch):
    """Whatever was drawn before, and of however many seeds."""
    given = []
    monkeypatch.setattr(diagnose, "variances", lambda agent, obs, *actions: given.append(actions))
    monkeypatch.setattr(diagnose, "auroc", lambda known, other: torch.zeros(1))
    data, found = [torch.rand(50, 3), torch.rand(50, 2)], []
    for seed in (1, 2):
        given.clear()
        torch.manual_seed(seed)
        agent = uwac.Agent(short(uwac, num_seeds=seed), 3, 2)
        with pytest.raises(TypeError):  # as there is no variance
            diagnose.detection(agent, data, torch.arange(50))
        found.append(torch.stack(given[0]))
    assert torch.equal(*found)


def test_the_vaes_error_is_of_the_mean_of_its_actions_and_its_spread_of_a_states():
    """The actions are tanh(1 + 2 s + 2 z), z normal but limited to 0.5, s a state's first number:
    where s is 0, the tanh of the mean would be 0.76."""
    agent = uwac.Agent(short(uwac), 3, 2)
    zeroed(agent.vae.decoder)
    with torch.no_grad():
        first, second, last = agent.vae.decoder.layers
        first.weight[..., [0, 3], 0] = first.bias[..., 0] = second.weight[..., 0, 0] = 1
        last.weight[..., 0, :] = 2
        last.bias[:] = -1
    z = np.random.default_rng(0).normal(size=100_000).clip(-0.5, 0.5)
    with torch.no_grad():
        found = diagnose.errors(agent, torch.zeros(1, 400, 3), torch.zeros(1, 400, 2))
        found |= diagnose.constraint(agent, 5 * torch.rand(1, 40, 3))
    assert found["vae_error"].item() == pytest.approx(np.tanh(1 + 2 * z).mean(), abs=0.01)
    assert found["vae_std"].item() == pytest.approx(2 * z.std(), rel=0.02)


def test_what_is_printed_of_each_run(monkeypatch, capsys):
    """All seeds' numbers, with three digits."""
    found = {"gap": [0.12345, 1234.5], "q_share": [0.5, 0.00012345]}
    monkeypatch.setattr(diagnose, "diagnose", lambda run, path: found)
    diagnose.main((Path("a"), Path("b")))
    lines = ["  gap: 0.123, 1.23e+03", "  q_share: 0.5, 0.000123"]
    assert capsys.readouterr().out.splitlines() == ["a", *lines, "b", *lines]


def test_data_that_moved(points, refused):
    uwac.main(short(uwac, variance="analytic"))
    Path("points.hdf5").rename("moved.hdf5")
    file = Path("points.hdf5").absolute()
    problem = f"run: learned from {file}, which is no file here: give --dataset-path"
    assert refused("run", diagnose) == f"error: {problem}"
    of_run = diagnose.data_of(Path("run"), uwac.load_checkpoint("run")[1], Path("moved.hdf5"))
    kept = np.arange(50) % 5 != 4  # time ends an episode after five steps
    assert of_run[0].numpy() == pytest.approx(points["observations"][kept], rel=1e-6)
    write_hdf5("other.hdf5", points | {"rewards": np.zeros(50)})
    line = refused("run --dataset-path other.hdf5", diagnose)
    assert line == "error: run: other.hdf5 is not the data that it learned from"


def test_a_spread_needs_two_transitions(points, refused):
    write_hdf5("points.hdf5", {name: array[:2] for name, array in points.items()})
    uwac.main(short(uwac, variance="analytic"))
    assert "run: learned from one transition, which has no spread" in refused("run", diagnose)


def test_the_picture_shows_all_states_and_seeds_of_both_critics(tmp_path, monkeypatch):
    """In the data's bins and the random actions' stand as many states as there are."""
    figures = []
    monkeypatch.setattr(diagnose, "save", lambda figure, path: figures.append(figure))
    variance = torch.rand(2, 30) + 0.5
    shown = {"auroc_uniform": [variance, 100 * variance], "auroc_untrained": [variance, variance]}
    found = {"auroc_uniform": torch.tensor([1.0, 0.5]), "auroc_untrained": torch.full((10,), 0.5)}
    diagnose.draw(tmp_path, 6_000, found, shown)
    trained, untrained = figures[0].axes
    assert trained.get_title() == "after 6,000 updates: AUROC 0.75, 2 seeds"
    assert untrained.get_title() == "untrained: AUROC 0.50, 10 seeds"
    labels = {(axes.get_xlabel(), axes.get_ylabel()) for axes in (trained, untrained)}
    assert labels == {("log10 of Var[Q1] + Var[Q2]", "states")}
    legend = untrained.get_legend()
    handles = zip(legend.texts, legend.legend_handles, strict=True)
    said = {text.get_text(): handle.get_facecolor() for text, handle in handles}
    kinds = {"the data's actions": -0.5, "random actions": 1.5}
    for bars, (kind, low) in zip(trained.containers, kinds.items(), strict=True):
        edges = [bar.get_x() for bar in bars if bar.get_height()]
        assert sum(bar.get_height() for bar in bars) == 60
        assert low < min(edges) and max(edges) < low + 0.8
        assert len(bars) == 50 and said[kind] == bars[0].get_facecolor()


def test_the_floor_of_mmd_is_of_samples_of_their_own(monkeypatch):
    agent = uwac.Agent(short(uwac), 3, 2)
    with torch.no_grad():
        agent.vae.decoder.layers[2].weight.mul_(30)  # samples that differ
        found = diagnose.constraint(agent, torch.randn(1, 20, 3))
    floors = [found[f"mmd_of_vae, {num}"].item() for num in (4, 10, 100)]
    assert floors == sorted(floors, reverse=True) and floors[2] > 0.01


def test_states_are_drawn_from_all_of_the_data(points, monkeypatch):
    n = 3_000
    arrays = {"observations": np.arange(n)[:, None].repeat(3, axis=1) / n}
    arrays["actions"] = np.repeat(np.linspace(-1, 1, n)[:, None], 2, axis=1)
    write_hdf5("points.hdf5", arrays | dict.fromkeys(("rewards", "terminals"), np.zeros(n)))
    uwac.main(short(uwac, num_seeds=2))
    seen = []
    monkeypatch.setattr(diagnose, "errors", lambda agent, *arrays: seen.extend(arrays) or {})
    monkeypatch.setattr(diagnose, "constraint", lambda agent, obs: {})
    monkeypatch.setattr(diagnose, "detection", lambda *given: ({}, {}))
    monkeypatch.setattr(diagnose, "weights", lambda *given: {})
    monkeypatch.setattr(diagnose, "draw", lambda *given: None)
    diagnose.diagnose(Path("run"))
    state, action = (array[1, :, 0] for array in seen)
    assert len(state.unique()) == 1_000
    assert 0.4 < state.mean() < 0.6 and (state.diff() < 0).any()
    halves = state - 0.5  # of the data's actions, as the environment's go to 2
    torch.testing.assert_close(action, halves, atol=1e-3, rtol=0)


def test_distance_to_the_nearest_row_but_the_own(monkeypatch):
    """In standard deviations, across pieces of the data; a dimension that never changes is 0."""
    monkeypatch.setattr(diagnose, "AT_ONCE", 2)
    data = torch.tensor([[0.0, 0, 7], [3, 0, 7], [0, 40, 7], [9, 40, 7]])
    units = data.std(0)
    rows = torch.tensor([3, 0])
    points = torch.stack([data[3], torch.tensor([2.9, 0.0, 7.0])])
    wanted = [9 / units[0], 0.1 / units[0]]
    torch.testing.assert_close(diagnose.nearest(points, rows, data), torch.stack(wanted))


def test_a_dimension_that_never_changes_does_not_hide_the_others():
    """As a goal in all observations, which is a million times its deviation away from 0."""
    data, points = torch.randn(200, 4), torch.randn(40, 4)
    constant = lambda some: torch.cat([some, torch.full((len(some), 1), -0.3)], dim=1)
    rows = torch.arange(40)
    found = diagnose.nearest(constant(points), rows, constant(data))
    torch.testing.assert_close(found, diagnose.nearest(points, rows, data), rtol=1e-3, atol=1e-3)


def test_shuffled_actions_are_those_of_other_states(monkeypatch):
    """Var[Q] is the distance of an action from its state's in the data."""
    agent = uwac.Agent(short(uwac), 3, 2)
    distance = lambda critic, obs, action: (action - obs[..., :2]).abs().sum(-1)
    monkeypatch.setattr(agent, "uncertainty", distance)
    obs = torch.rand(60, 3) * 2 - 1
    found, shown = diagnose.detection(agent, [obs, obs[:, :2]], torch.arange(60))
    assert found["auroc_uniform"] == 1 and found["auroc_shuffled"].item() > 0.97
    assert shown["auroc_uniform"][0].max() == 0


def test_q_share_is_of_as_many_states_as_the_rest():
    agent = uwac.Agent(short(uwac, warmup_steps=5), 3, 2)
    updates = []

    def update(trial, data, step):
        updates.append((step, trial.args.batch_size))
        return uwac.update(trial, data, step)

    data = [torch.randn(50, *shape) for shape in ((3,), (2,), (), (3,), ())]
    diagnose.q_share(SimpleNamespace(update=update), agent, data)
    assert updates == [(0, 1_000), (6, 1_000)] and agent.args.batch_size == 8


def test_variances_of_several_actions_have_the_same_masks(monkeypatch):
    agent = uwac.Agent(short(uwac, num_seeds=2, variance="mc"), 3, 2)
    obs, action = torch.rand(20, 3), torch.rand(20, 2)
    one, same, other = diagnose.variances(agent, obs, action, action, -action)
    assert one.shape == (2, 20) and torch.equal(one, same)
    assert not torch.equal(one, other) and not torch.equal(one[0], one[1])


def test_weights(monkeypatch):
    """Var[Q] is 1 or 4 in half of the states each, with w = 0.1 / Var, and Q falls with it."""
    agent = uwac.Agent(short(uwac, beta=0.1, num_seeds=2), 3, 3)
    variance = torch.tensor([1.0, 4.0]).repeat(200) * torch.tensor([[1.0], [10.0]])  # of two seeds
    q = torch.stack([3 / variance, 5 + variance])
    with torch.no_grad():
        agent.actor.layers[2].bias[..., :3] = 9  # actions, of which the tanh is 1

    def asked(found):
        def answer(*given):
            obs, action = given[-2:]
            assert obs is states and torch.allclose(action, torch.ones(2, 400, 3), atol=0.01)
            return found

        return answer

    states = torch.rand(2, 400, 3)
    monkeypatch.setattr(agent.critic, "forward", asked(q))
    monkeypatch.setattr(agent, "uncertainty", asked(variance))
    found = diagnose.weights(agent, states)
    assert found["variance_spread"].tolist() == pytest.approx([1.5 / 2.5] * 2, rel=0.01)
    assert found["weight_spread"].tolist() == pytest.approx([0.375 / 0.625] * 2, rel=0.01)
    assert found["equal_weights"].tolist() == pytest.approx([2.5 * 0.625] * 2)
    assert found["rank_with_q2"].tolist() == pytest.approx([-1, -1])


def test_share_of_q():
    """Twice alpha halves Q's part over MMD's; the other seed and the agent stay as they are."""
    agent = uwac.Agent(short(uwac, num_seeds=2, warmup_steps=1_000), 3, 2)
    data = [torch.randn(50, *shape) for shape in ((3,), (2,), (), (3,), ())]
    with torch.no_grad():
        agent.log_alpha.fill_(-5)  # so that neither part is next to nothing
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    share = diagnose.q_share(uwac, agent, data)
    assert all(torch.equal(value, before[name]) for name, value in agent.state_dict().items())
    with torch.no_grad():
        agent.log_alpha[0] += np.log(2)
    half = diagnose.q_share(uwac, agent, data)
    ratio, halved = (of[0].item() / (1 - of[0].item()) for of in (share, half))
    assert ratio > 0.01 and halved == pytest.approx(ratio / 2, rel=1e-3)
    assert half[1] == share[1]
