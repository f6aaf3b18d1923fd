"""The scripts used from Python, on data of one's own."""

import numpy as np
from conftest import short


def test_arrays_and_an_environment_of_ones_own(script, points):
    """Actions have its units, [-2, 2]; the score is the return. The policy acts: (N, D) for all
    seeds, or (S, N, D)."""
    points["actions"] = points["actions"] * 2
    result = script.main(short(script, dataset_path=None, num_seeds=2), dataset=points)
    assert result["transitions"] == 40
    for row in result["history"]:
        assert np.allclose(row["score"], row["return"]) and row["return"][0] > 0

    agent, _ = script.load_checkpoint("run")
    obs = points["observations"]
    action = agent.act(obs)
    assert action.shape == (2, 50, 2)
    assert 1 < np.abs(action).max() <= 2
    assert agent.act(np.stack([obs, obs])).shape == (2, 50, 2)
    mean = agent.act(obs, deterministic=True)
    assert np.allclose(agent.act(obs[7], deterministic=True), mean[:, 7])
    assert agent.act(obs[7]).shape == (2, 2)
