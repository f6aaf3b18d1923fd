"""benchmark/make_dataset.py: sets that replay and say what made them."""

import glob
import shutil
from dataclasses import replace
from unittest.mock import Mock

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from conftest import Point, command_line, short

import d4rl
from benchmark import make_dataset
from benchmark.datasets import sac
from benchmark.datasets.episodes import COLUMNS
from benchmark.datasets.players import load_player, task_of
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
        assert kind == "medium-replay" or len(arrays["rewards"]) == 301
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


def test_a_training_replaces_no_set_unless_it_is_told_to(tmp_path, monkeypatch):
    """It says so before it trains, and so of the last of its sets."""
    monkeypatch.setattr(make_dataset, "train", Mock(side_effect=ArithmeticError("it trains")))
    (tmp_path / "hopper-medium-replay-rebuilt.hdf5").touch()
    args = Args(env="hopper", folder=tmp_path)
    with pytest.raises(ValueError, match="hopper-medium-replay-rebuilt.hdf5 exists: give --force"):
        make_dataset.main(args)
    with pytest.raises(ArithmeticError):
        make_dataset.main(replace(args, force=True))


def test_the_same_data_are_the_same_file_wherever_it_goes(tmp_path, monkeypatch):
    """What is recorded has no word on its place, and every other word of the command."""
    words = "--policy hopper-random --steps 20"
    places = (
        f"--folder {tmp_path}",
        f"--out={tmp_path / 'b.hdf5'}",
        f"--force --folder={tmp_path}/c",
    )
    for place in places:
        assert command_line(make_dataset, f"{place} {words}", monkeypatch) == 0
        assert command_line(make_dataset, f"{words} --force {place}", monkeypatch) == 0
    files = [*tmp_path.rglob("*.hdf5")]
    assert len(files) == 3 and len({file.read_bytes() for file in files}) == 1
    command = f"python benchmark/make_dataset.py {words}"
    assert read(files[0])[1]["command"] == command


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
    assert metadata["command"].endswith("make_dataset.py --policy run --steps 198 --seed 3")
    assert metadata["environment"] == "Point-v0"
    assert f"{script.__name__}.py after 2 updates" in metadata["policy"]
    assert "points.hdf5" not in metadata["policy"]
    shutil.copytree("run", "Point-v0-human")  # makes no data set of this name
    words = "--policy Point-v0-human --steps 5 --folder ."
    assert command_line(make_dataset, words, monkeypatch) == 0
    assert glob.glob("*-rebuilt.hdf5") == ["Point-v0-run-Point-v0-human-rebuilt.hdf5"]
    words = "--policy run --steps 198 --seed 3 --force --out points.hdf5"
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

    class OwnError(Exception):
        """As that of a client of the web."""

    monkeypatch.setattr(minari, "load_dataset", Mock(side_effect=OwnError("no network")))
    line = refused(f"--minari mistyped-v0 --folder {tmp_path}", make_dataset)
    assert line == "error: --minari mistyped-v0: cannot be converted (no network)"


def test_cloned_set(tmp_path):
    demos = d4rl.HERE / d4rl.DEMO
    args = Args(env="door", folder=tmp_path, demos=demos, steps=10_400, clone_steps=2, seed=3)
    arrays, _ = read(make_dataset.main(args))
    first, _ = d4rl.make("door").reset(seed=3)
    np.testing.assert_array_equal(arrays["observations"][0], np.float32(first))
    for name, array in read(demos)[0].items():
        expected = np.concatenate([array, array[:199]])  # the last step ends an episode
        np.testing.assert_array_equal(arrays[name][5_200:-1], expected)
