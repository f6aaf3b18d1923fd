"""benchmark/make_dataset.py: sets that replay and say what made them."""

import pickle

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from conftest import Code, Point, command_line, short
from torch.distributions import Normal, TanhTransform, TransformedDistribution
from torch.testing import assert_close

import d4rl
import uwac
from benchmark import make_dataset
from benchmark.lib import sac
from benchmark.lib.actors import POLICIES, load_player, task_of
from benchmark.lib.demonstrations import replay as replay_release
from benchmark.lib.episodes import COLUMNS, play
from benchmark.make_dataset import Args

HANDS = ("pen", "hammer", "door", "relocate")
SMALL = {"train_steps": 400, "learning_starts": 150, "eval_every": 100, "eval_episodes": 1}


def read(path):
    with h5py.File(path) as file:
        assert set(file) == {*COLUMNS, "metadata"}
        return {name: file[name][()] for name in COLUMNS}, dict(file["metadata"].attrs)


def replay(arrays, metadata):
    env = d4rl.make(task_of(metadata["environment"]))
    seed = int(metadata["seed"])
    ended = True
    for expected, action, reward, terminal, timeout in zip(*arrays.values(), strict=True):
        if ended:
            obs, _ = env.reset(seed=seed)
            seed += 1
        np.testing.assert_array_equal(np.float32(obs), expected)
        obs, *found, _, _ = env.step(action)
        assert np.float32(found).tolist() == [reward, terminal]
        ended = terminal or timeout


def test_a_training_leaves_d4rls_five_kinds(tmp_path):
    """Each replays; the expert's comes again from the policy that the training left."""
    make_dataset.main(Args(env="hopper", folder=tmp_path, seed=5, steps=301, **SMALL))
    assert torch.get_float32_matmul_precision() == "highest"  # of the roll-outs, as by --policy
    actions, about = {}, {}
    for kind in ("random", "medium", "expert", "medium-expert", "medium-replay"):
        arrays, about[kind] = read(tmp_path / f"hopper-{kind}-rebuilt.hdf5")
        actions[kind] = arrays["actions"]
        ends = arrays["terminals"] | arrays["timeouts"]
        assert ends[-1] and not (arrays["terminals"] & arrays["timeouts"]).any()
        mean_return = arrays["rewards"].sum() / ends.sum()
        assert about[kind]["mean_return"] == pytest.approx(mean_return, rel=1e-5)
        replay(arrays, about[kind])
    state = torch.load(tmp_path / "training/hopper-5/checkpoint.pt", weights_only=True)
    steps = sac.choose(state["progress"][2])["medium"]
    assert about["medium-replay"]["steps"] == len(actions["medium-replay"]) == steps
    assert (actions["medium-expert"][:150] == actions["medium"][:150]).all()
    expert = str(tmp_path / "training/hopper-5/hopper-expert.npz")
    again = Args(policy=(expert,), seed=5, steps=301, out=tmp_path / "again.hdf5")
    assert (read(make_dataset.main(again))[0]["actions"] == actions["expert"]).all()


def test_sacs_replay_has_its_own_steps_and_ends_by_time(tmp_path, monkeypatch):
    """Rows are drawn among those that are filled."""
    args = Args(**SMALL | {"train_steps": 60, "learning_starts": 20})
    args.env = "Point-v0"
    drawn = []
    monkeypatch.setattr(sac.SAC, "update", lambda self, batch: drawn.append(torch.cat(batch, -1)))
    (obs, _, _, next_obs, terminal, timeout), _ = sac.train(args, tmp_path)
    assert (obs == next_obs).all() and not terminal.any()
    assert timeout[:, 0].nonzero()[:, 0].tolist() == list(range(4, 60, 5))
    assert (torch.stack(drawn)[..., :3] != 0).any(-1).all()


def test_a_training_of_sac_that_was_stopped_goes_on_to_the_same_bits(points, tmp_path):
    """Also as one that was evaluated only in the end."""
    args = Args(**SMALL | {"train_steps": 42, "learning_starts": 10})
    args.env = "Point-v0"
    whole, _ = sac.train(args, tmp_path / "whole")
    args.eval_every = 10
    Point.at_step = {len(Point.played) + 45: lambda: 1 / 0}
    with pytest.raises(ZeroDivisionError):
        sac.train(args, tmp_path / "stopped")
    assert_close(sac.train(args, tmp_path / "stopped")[0], whole, rtol=0, atol=0)
    one, two = (torch.load(tmp_path / name / "checkpoint.pt") for name in ("whole", "stopped"))
    for name in ("agent", "adam", "generator"):
        assert_close(one[name], two[name], rtol=0, atol=0)


def test_medium_is_near_a_third_of_the_way_and_expert_the_best():
    """From 0 to 90, so 30: 45 comes after it."""
    returns = [0, 5, 20, 45, 90, 60]
    history = [[100 * i, value] for i, value in enumerate(returns)]
    assert sac.choose(history) == {"medium": 200, "expert": 400}
    history[2][1] = 10
    assert sac.choose(history) == {"medium": 300, "expert": 400}


@pytest.mark.parametrize("name", sorted(file.stem for file in POLICIES.glob("*.npz")))
def test_shipped_policies(name, monkeypatch):
    monkeypatch.setattr(uwac, "DEVICE", "meta")  # as a GPU, which must not be used
    player = load_player(name, seed=0)
    envs = [d4rl.make(player.env_id) for _ in range(4)]
    returns = [episode["rewards"].sum() for episode in play(player.act, envs, range(4))]
    score = d4rl.normalized_score(player.env_id, np.mean(returns))
    assert player.env_id == name.split("-")[0]
    assert (40 if "expert" in name else 8) < score < 140
    assert ("DAPG" in player.about) == (player.env_id in HANDS)


def test_an_expert_of_the_dapg_release_by_hand():
    expert = np.load(POLICIES / "door-expert.npz")
    observations = np.random.default_rng(0).normal(size=(6, 39))
    player = load_player("door-expert", seed=0)
    torch.manual_seed(1)
    actions = player.act(observations)
    torch.manual_seed(1)
    noise = torch.randn(6, 28, dtype=torch.float32).numpy()
    for obs, action, one in zip(observations, actions, noise, strict=True):
        h = (obs - expert["in_shift"]) / (expert["in_scale"] + 1e-8)
        for layer in (0, 1):
            h = np.tanh(expert[f"w{layer}"] @ h + expert[f"b{layer}"])
        mean = (expert["w2"] @ h + expert["b2"]) * expert["out_scale"] + expert["out_shift"]
        expected = np.clip(mean + np.exp(expert["log_std"]) * one, -1, 1)
        np.testing.assert_allclose(action, expected, rtol=0, atol=1e-12)
    assert (abs(actions) == 1).any() and (abs(actions) < 1).any()


@pytest.mark.filterwarnings("ignore:.*inf value")
def test_policy_of_a_run(points, script, monkeypatch):
    """The first seed's, in 40 episodes, 16 at once; actions are in the environment's units."""
    script.main(short(script, total_steps=2, num_seeds=2))
    Point.played.clear()
    words = "--policy run --steps 198 --seed 3 --force --out points.hdf5"
    assert command_line(make_dataset, words, monkeypatch) == 0
    arrays, metadata = read("points.hdf5")
    assert {*map(tuple, arrays["actions"])} < {*map(tuple, Point.played)}
    assert arrays["timeouts"].nonzero()[0].tolist() == [*range(4, 195, 5), 197]
    env = gym.make("Point-v0")
    starts = [env.reset(seed=3 + episode)[0] for episode in range(40)]
    np.testing.assert_array_equal(arrays["observations"][::5], starts)
    assert words in metadata["command"] and metadata["environment"] == "Point-v0"
    assert f"{script.__name__}.py after 2 updates" in metadata["policy"]
    assert "points.hdf5" not in metadata["policy"]
    assert make_dataset.new_file(Args(), "module:ns/Env-v0").name == "module-ns-Env-v0.hdf5"
    agent, _ = script.load_checkpoint("run", script.Agent)
    player = load_player("run", seed=0)
    obs = np.ones((6, 3), np.float32)
    torch.manual_seed(0)
    first, second = agent.act(obs, 1)  # one sample of each seed's actor
    torch.manual_seed(0)
    actions = player.act(obs)
    assert (actions == first).all() and (actions != second).any()
    Point.at_step = {len(Point.played) + 1: lambda: 1e39}
    with pytest.warns(RuntimeWarning):  # 1e39 is infinite in float32
        assert command_line(make_dataset, words, monkeypatch) == 1


def test_sac_by_hand():
    agent = sac.SAC(obs_dim=5, action_dim=2)
    for network in (agent.critic, agent.target_critic):
        for parameter in network.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    agent.log_alpha.data.fill_(0.5)
    alpha = torch.tensor(0.5).exp()
    obs, next_obs = torch.randn(2, 1, 6, 5)
    action = torch.rand(1, 6, 2) * 2 - 1
    reward, terminal = torch.randn(1, 6), torch.tensor([[0, 1, 0, 0, 1, 0.0]])
    torch.manual_seed(1)
    with torch.no_grad():
        next_action, next_log_prob = agent.sample(next_obs)
        new_action, log_prob = agent.sample(obs)
        mean, log_std = agent.actor(obs)
        policy = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform())
        assert_close(log_prob, policy.log_prob(new_action).sum(-1), rtol=1e-4, atol=1e-4)
        value = agent.target_critic(next_obs, next_action).amin(0) - alpha * next_log_prob
        target = reward + 0.99 * (1 - terminal) * value
        critic_loss = (agent.critic(obs, action) - target).square().mean(-1).sum()
        actor_loss = (alpha * log_prob - agent.critic(obs, new_action).amin(0)).mean()
        alpha_loss = -alpha * (log_prob.mean() - 2)  # the target entropy is -A
        pairs = zip(agent.target_critic.parameters(), agent.critic.parameters())
        following = [0.995 * old + 0.005 * new for old, new in pairs]
    losses = []
    agent.minimize = lambda loss, parameters: losses.append(loss.detach())
    torch.manual_seed(1)
    agent.update([obs, action, reward[..., None], next_obs, terminal[..., None], None])
    assert_close(losses, [critic_loss, actor_loss + alpha_loss])
    assert_close([*agent.target_critic.parameters()], following)


def test_minari(tmp_path, monkeypatch, refused):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    parts = {"observations": np.random.rand(4, 11), "actions": np.random.rand(3, 3)}
    parts |= {"terminations": np.arange(3) == 2, "truncations": np.zeros(3, bool)}
    parts["rewards"] = np.arange(3)
    buffers = [minari.data_collector.EpisodeBuffer(**parts)] * 2
    minari.create_dataset_from_buffers("toy/test-v0", buffers, env="Hopper-v4")
    arrays, metadata = read(make_dataset.main(Args(minari="toy/test-v0", folder=tmp_path)))
    assert metadata["environment"] == "Hopper-v4"
    assert arrays["rewards"].tolist() == [0, 1, 2, 0, 1, 2]
    assert (arrays["observations"][3:] == np.float32(parts["observations"][:-1])).all()
    monkeypatch.setattr(minari.MinariDataset, "env_spec", None)
    line = refused(f"--minari toy/test-v0 --force --folder {tmp_path}", make_dataset)
    assert line.endswith("toy/test-v0: cannot be converted (it names no environment)")


@pytest.mark.parametrize("task", HANDS)
def test_demonstrations_of_the_dapg_release_are_replayed(task, tmp_path):
    """From their first states, with clipped actions, as D4RL's: no step is terminal, also where the
    pen has fallen (after 40 steps), or where there are more than an episode's 200."""
    length = {"pen": 60, "door": 230}.get(task, 20)
    env = d4rl.make(task).unwrapped
    rng = np.random.default_rng(0)
    demonstrations, rows = [], []
    for episode in range(2):
        obs, _ = env.reset(seed=episode)
        state = env.get_env_state()
        actions = rng.normal(size=(length, *env.action_space.shape))
        for action in actions.clip(-1, 1):
            next_obs, reward, *_ = env.step(action)
            rows.append((obs, action, reward))
            obs = next_obs
        demonstrations.append({"actions": actions, "init_state_dict": state})
    demos = tmp_path / "a.pickle"
    demos.write_bytes(pickle.dumps(demonstrations, protocol=3))
    path = make_dataset.main(Args(env=task, demos=demos, folder=tmp_path))
    assert path == tmp_path / f"{task}-human-rebuilt.hdf5"
    arrays, metadata = read(path)
    for name, column in zip(COLUMNS, zip(*rows)):
        np.testing.assert_array_equal(arrays[name], np.float32(column))
    assert not arrays["terminals"].any()
    assert arrays["timeouts"].nonzero()[0].tolist() == [length - 1, 2 * length - 1]
    assert metadata["environment"] == task and "a.pickle, replayed" in metadata["policy"]


@pytest.mark.parametrize("content", [[Code()], [{"actions": 1}], b"no pickle"])
def test_a_pickle_of_anything_else_is_refused_and_not_executed(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = content if isinstance(content, bytes) else pickle.dumps(content)
    (tmp_path / "a.pickle").write_bytes(content)
    with pytest.raises(ValueError, match="^--demos .*a.pickle: not the DAPG release's"):
        replay_release(tmp_path / "a.pickle", "door")
    assert not (tmp_path / "executed").exists()
    with pytest.raises(FileNotFoundError):
        replay_release(tmp_path / "b.pickle", "door")


def test_cloned_set(tmp_path):
    demos = d4rl.HERE / d4rl.DEMO
    args = Args(env="door", folder=tmp_path, demos=demos, steps=10_400, clone_steps=2)
    arrays, _ = read(make_dataset.main(args))
    for name, array in read(demos)[0].items():
        expected = np.concatenate([array, array[:199]])  # the last step ends an episode
        np.testing.assert_array_equal(arrays[name][5_200:-1], expected)
