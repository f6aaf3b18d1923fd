"""benchmark/make_dataset.py: sets that replay and say what made them."""

from dataclasses import replace
from pathlib import Path

import h5py
import make_dataset
import numpy as np
import pytest
import torch
from conftest import command_line, resumed
from make_dataset import COLUMNS, Args
from torch.distributions import Normal, TanhTransform, TransformedDistribution
from torch.testing import assert_close

import uwac

DEMO = Path(uwac.__file__).parent / "data" / "door-demo.hdf5"
SMALL = {"train_steps": 400, "learning_starts": 150, "eval_every": 100, "eval_episodes": 1}


def read(path):
    with h5py.File(path) as file:
        assert set(file) == {*COLUMNS, "metadata"}
        return {name: file[name][()] for name in COLUMNS}, dict(file["metadata"].attrs)


def episode_ends(arrays):
    return np.flatnonzero(arrays["terminals"] | arrays["timeouts"])


def replay(arrays, metadata, episodes):
    """Every number of the first episodes again, from their seeds and actions alone."""
    env = make_dataset.make_env(metadata["environment"])
    begin = 0
    for i, end in enumerate(episode_ends(arrays)[:episodes] + 1):
        obs, _ = env.reset(seed=int(metadata["seed"]) + i)
        for step in range(begin, end):
            np.testing.assert_array_equal(np.float32(obs), arrays["observations"][step])
            obs, reward, terminal, _, _ = env.step(arrays["actions"][step])
            assert np.float32(reward) == arrays["rewards"][step]
            assert terminal == arrays["terminals"][step]
        begin = end


def test_door_demo_replays():
    replay(*read(DEMO), 3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    make_dataset.main(Args(env="Hopper-v4", folder=folder, seed=5, steps=301, **SMALL))
    assert torch.get_float32_matmul_precision() == "highest"  # of the roll-outs, as by --policy
    return folder


@pytest.mark.parametrize("kind", ["random", "medium", "medium-replay", "expert", "medium-expert"])
def test_a_training_leaves_d4rls_five_kinds(trained, kind, tmp_path):
    arrays, metadata = read(trained / f"hopper-{kind}-rebuilt.hdf5")
    ends = episode_ends(arrays)
    assert (metadata["environment"], metadata["origin"]) == ("Hopper-v4", "rebuilt")
    assert metadata["steps"] == len(arrays["rewards"]) == ends[-1] + 1
    assert kind == "medium-replay" or ends[-1] == 300
    assert metadata["mean_return"] == pytest.approx(arrays["rewards"].sum() / len(ends), rel=1e-5)
    assert not (arrays["terminals"] & arrays["timeouts"]).any()
    replay(arrays, metadata, len(ends))
    if kind == "expert":  # the same numbers from the policy that the training left
        policy = str(trained / "training" / "hopper-5" / "hopper-expert.npz")
        args = Args(policy=(policy,), seed=5, steps=301, out=tmp_path / "again.hdf5")
        again, _ = read(make_dataset.main(args))
        assert (again["actions"] == arrays["actions"]).all()
    if kind == "medium-expert":  # half and half
        medium, _ = read(trained / "hopper-medium-rebuilt.hdf5")
        assert (arrays["actions"][:150] == medium["actions"][:150]).all() and 149 in ends
        assert "hopper-medium, SAC" in metadata["policy"] and "hopper-expert" in metadata["policy"]


@pytest.mark.parametrize("name", sorted(file.stem for file in make_dataset.POLICIES.glob("*.npz")))
def test_shipped_policies(name, tmp_path, monkeypatch):
    monkeypatch.setattr(uwac, "DEVICE", "meta")  # as a GPU, which must not be used
    arrays, _ = read(make_dataset.main(Args(policy=(name,), folder=tmp_path, steps=3000)))
    score = uwac.normalized_score(name, make_dataset.returns_of(arrays)).mean()
    assert (30 if "expert" in name else 8) < score < 120


def test_policy_of_a_run(tmp_path, script, monkeypatch):
    """As door-demo is made: samples of its actor in a file of any name, and how it was trained."""
    sizes = {"total_steps": 2, "batch_size": 8, "eval_episodes": 1, "eval_candidates": 2}
    script.main(script.Args(env_id="door-demo", run_dir=str(tmp_path / "run"), **sizes))
    script.main(resumed(script, tmp_path / "run", total_steps=3))
    words = f"--policy {tmp_path / 'run'} --steps 450 --seed 3 --out {tmp_path / 'other.hdf5'}"
    assert command_line(make_dataset, words, monkeypatch) == 0
    arrays, metadata = read(tmp_path / "other.hdf5")
    assert episode_ends(arrays).tolist() == [199, 399, 449]
    assert words in metadata["command"]
    assert f"{script.__name__}.py after 3 updates" in metadata["policy"]
    assert str(tmp_path) not in metadata["policy"]
    replay(arrays, metadata, 3)


def test_a_killed_training_goes_on_as_if_it_had_not_been(trained, tmp_path, monkeypatch):
    args = Args(env="Hopper-v4", seed=5, **SMALL)
    update, calls = make_dataset.SAC.update, []

    def interrupted(self, batch):
        calls.append(update(self, batch))
        if len(calls) == 150:
            raise KeyboardInterrupt

    monkeypatch.setattr(make_dataset.SAC, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_dataset.train(args, tmp_path)
    make_dataset.train(args, tmp_path)
    assert len(calls) < 150 + 251  # not all once more
    whole = torch.load(trained / "training" / "hopper-5" / "checkpoint.pt", weights_only=True)
    resumed = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert resumed["progress"] == whole["progress"]
    for name in ("agent", "replay", "generator"):
        assert_close(resumed[name], whole[name], rtol=0, atol=0)


def test_sac_by_hand():
    """The densities of its actions by torch's own tanh, and both losses on one batch."""
    agent = make_dataset.SAC(obs_dim=5, action_dim=2)
    for network in (agent.critic, agent.target_critic):
        for parameter in network.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    agent.log_alpha.data.fill_(0.5)
    obs, next_obs = torch.randn(2, 1, 6, 5)
    reward, terminal = torch.randn(1, 6, 1), torch.tensor([0, 1, 0, 0, 1, 0.0])[None, :, None]
    action = torch.rand(1, 6, 2) * 2 - 1
    torch.manual_seed(1)
    with torch.no_grad():
        next_action, next_log_prob = agent.sample(next_obs)
        new_action, log_prob = agent.sample(obs)
        mean, log_std = agent.actor(obs)
        policy = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform())
        assert_close(log_prob, policy.log_prob(new_action).sum(-1), rtol=1e-4, atol=1e-4)
        alpha = torch.tensor(0.5).exp()
        q = agent.target_critic(next_obs, next_action)
        value = q.amin(0) - alpha * next_log_prob
        target = reward.squeeze(-1) + 0.99 * (1 - terminal.squeeze(-1)) * value
        critic_loss = (agent.critic(obs, action) - target).square().mean(-1).sum()
        actor_loss = (alpha * log_prob - agent.critic(obs, new_action).amin(0)).mean()
        alpha_loss = -alpha * (log_prob.mean() - 2)  # the target entropy is -A
    losses = []
    agent.minimize = lambda loss, parameters: losses.append(loss.detach())
    torch.manual_seed(1)
    agent.update([obs, action, reward, next_obs, terminal, None])
    assert_close(losses, [critic_loss, actor_loss + alpha_loss])


def test_minari(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    buffers = []
    for n in (3, 4):  # of the second one's end there is no word
        parts = {"observations": np.random.rand(n + 1, 11), "actions": np.random.rand(n, 3)}
        ends = {"terminations": np.arange(n) == 2, "truncations": np.zeros(n, bool)}
        parts |= {"rewards": np.arange(n) + n, **ends}
        buffers.append(minari.data_collector.EpisodeBuffer(**parts))
    minari.create_dataset_from_buffers("toy/hopper/some-v0", buffers, env="Hopper-v4")
    arrays, metadata = read(make_dataset.main(Args(minari="toy/hopper/some-v0", folder=tmp_path)))
    assert (metadata["origin"], metadata["environment"]) == ("Minari", "Hopper-v4")
    assert arrays["rewards"].tolist() == [3, 4, 5, 4, 5, 6, 7]
    assert (*arrays["terminals"].nonzero()[0], *arrays["timeouts"].nonzero()[0]) == (2, 5, 6)
    assert (arrays["observations"][3:] == np.float32(buffers[1].observations[:-1])).all()


def test_cloned_set(tmp_path):
    """Half roll-outs of a policy that acts like the demonstrations, then these over and over."""
    demos = {name: array[:600] for name, array in uwac.read_file(DEMO)[0].items()}
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        file.update(demos)
    settings = {"demos": tmp_path / "demos.hdf5", "steps": 1600, "clone_steps": 300}
    args = Args(env="AdroitHandDoor-v1", folder=tmp_path, **settings)
    arrays, metadata = read(make_dataset.main(args))
    for name, array in demos.items():
        expected = np.concatenate([array, array[:199]])
        np.testing.assert_array_equal(arrays[name][800:-1], expected)
    assert "demos.hdf5" in metadata["policy"]
    replay(arrays, metadata, 4)


@pytest.mark.parametrize("words, message", [
    ("", "say what to make"),
    ("--env Hoper-v4", "--env Hoper-v4: not one of Hopper-v4, "),
    ("--policy hopper-medium walker2d-medium", "made for Hopper-v4 and Walker2d-v4"),
    ("--policy nowhere.npz", "neither a run nor a policy; shipped: halfcheetah-expert"),
    (f"--env Hopper-v4 --demos {DEMO}", "has shape (5000, 39), expected is (5000, 11)"),
    ("--env Walker2d-v4 --train-steps 10", "checkpoint.pt: not a checkpoint"),
])  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(words, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "training" / "walker2d-0").mkdir(parents=True)
    (tmp_path / "training" / "walker2d-0" / "checkpoint.pt").touch()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert command_line(make_dataset, f"{words} --folder .", monkeypatch) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert message in line
    assert sorted(tmp_path.rglob("*")) == before


def test_a_set_is_replaced_only_with_force(tmp_path, capsys):
    args = Args(policy=("hopper-random",), folder=tmp_path, steps=40)
    path = make_dataset.main(args)
    before = path.read_bytes()
    assert "40 steps, 0.0 MB, mean return" in capsys.readouterr().out
    with pytest.raises(uwac.InputError, match=f"{path} exists: give --force"):
        make_dataset.main(replace(args, steps=20))
    assert path.read_bytes() == before
    make_dataset.main(replace(args, steps=20, force=True))
    assert len(read(path)[0]["rewards"]) == 20
