"""benchmark/datasets/demonstrations.py: demonstrations replayed, and a policy fitted to some."""

import pickle

import numpy as np
import pytest
import torch
from conftest import Code
from test_make_dataset import HANDS, read

import d4rl
from benchmark import make_dataset
from benchmark.datasets.demonstrations import behavior_cloning
from benchmark.datasets.demonstrations import replay as replay_release
from benchmark.datasets.episodes import COLUMNS
from benchmark.make_dataset import Args


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


def test_a_clone_has_the_mean_and_spread_of_the_actions_before_the_tanh():
    """Of actions tanh(x), x normal with mean 0.9 and std 0.4, the same in every state."""
    x = np.random.default_rng(0).normal(0.9, 0.4, size=(5_000, 1)).astype(np.float32)
    demos = {"observations": np.ones((5_000, 2), np.float32), "actions": np.tanh(x)}
    actor = behavior_cloning(demos, updates=400, seed=0)
    with torch.no_grad():
        mean, log_std = actor(torch.ones(1, 1, 2))
    assert mean.item() == pytest.approx(0.9, abs=0.05)
    assert log_std.exp().item() == pytest.approx(0.4, abs=0.05)
