"""The scripts used from Python, on data of one's own."""

import gymnasium as gym
import numpy as np
from conftest import short


def test_data_of_a_random_policy_in_pendulum(script, tmp_path, monkeypatch):
    """Its actions, [-2, 2], are scaled to [-1, 1]; the score is the return. The policy acts:
    (N, D) for all seeds, or (S, N, D)."""
    monkeypatch.chdir(tmp_path)
    env = gym.make("Pendulum-v1")
    rng = np.random.default_rng(0)
    rows = []
    obs, _ = env.reset(seed=0)
    for _ in range(300):
        action = rng.uniform(-1, 1, 1)
        next_obs, reward, terminated, truncated, _ = env.step(2 * action)
        rows.append((obs, action, reward, terminated, truncated))
        obs = env.reset()[0] if truncated else next_obs
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    dataset = dict(zip(names, map(np.array, zip(*rows))))
    changes = {"env_id": "Pendulum-v1", "dataset_path": None, "num_seeds": 2}
    result = script.main(short(script, **changes), dataset=dataset)
    assert result["transitions"] == 298
    assert list(result["returns_of_scores_0_and_100"]) == [0, 100]
    for row in result["history"]:
        assert np.allclose(row["score"], row["return"]) and -2000 < row["return"][0] < 0

    agent, _ = script.load_checkpoint("run")
    obs = dataset["observations"]
    action = agent.act(obs)
    assert action.shape == (2, 300, 1)
    assert np.abs(action).max() <= 1 and action.std() > 0
    assert agent.act(np.stack([obs, obs])).shape == (2, 300, 1)
