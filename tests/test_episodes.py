"""benchmark/datasets/episodes.py: what is played, in which order, and what a file's ends are."""

import numpy as np
import pytest
from conftest import Point, write_hdf5

import d4rl
from benchmark.datasets import episodes


@pytest.mark.parametrize("steps, played", [(79, 80), (80, 80), (81, 160)])
def test_a_roll_out_plays_until_it_has_its_steps(points, steps, played):
    """In 16 environments at once, of 5 steps each. The last step ends an episode."""
    arrays = episodes.roll_out(lambda obs: obs[:, :2].clip(-1, 1), "Point-v0", steps, seed=3)
    assert {len(array) for array in arrays.values()} == {steps} and len(Point.played) == played
    assert arrays["timeouts"][-1] and arrays["timeouts"][:-1].sum() == (steps - 1) // 5
    firsts = [Point().reset(seed=3 + i)[0] for i in range(3)]
    np.testing.assert_array_equal(arrays["observations"][:15:5], firsts)
    units = 2 * arrays["observations"][:, :2].clip(-1, 1)  # actions go to 2
    np.testing.assert_allclose(arrays["actions"], units, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*share an object")
def test_a_state_that_the_environment_changes_in_place_stays_as_it_was(points, monkeypatch):
    """Of episodes that end at different steps, the first of them by a terminal one."""

    def reset(self, seed=None, options=None):
        self.obs, self.last = np.zeros(3, np.float32), seed
        return self.obs, {}

    def step(self, action):
        self.obs += 1
        return self.obs, 1.0, self.obs[0] == self.last, False, {}

    monkeypatch.setattr(Point, "reset", reset)
    monkeypatch.setattr(Point, "step", step)
    envs = [d4rl.make("Point-v0") for _ in range(3)]
    played = episodes.play(lambda obs: np.zeros((len(obs), 2)), envs, range(2, 8, 2))
    for episode, length in zip(played, (2, 4, 5)):
        assert episode["observations"][:, 0].tolist() == list(range(length))
        assert episode["terminals"].tolist() == [*[False] * (length - 1), length < 5]


@pytest.mark.parametrize("shape", [(9,), (9, 1)])
@pytest.mark.parametrize("timeouts", [True, False])
def test_rewards_and_ends_of_a_file_are_those_of_training(shape, timeouts, points):
    """In any shape that training takes. Without timeouts, time ends an episode after five steps."""
    arrays = {
        "rewards": np.arange(9.0).reshape(shape),
        "terminals": np.arange(9).reshape(shape) == 1,
    }
    if timeouts:
        arrays["timeouts"] = np.float32(np.arange(9).reshape(shape) == 6)
    write_hdf5("a.hdf5", arrays)
    found = episodes.rewards_and_ends("a.hdf5", "Point-v0")
    assert found["timeouts"].tolist() == [step == 6 for step in range(9)]
    assert found["terminals"].tolist() == [step == 1 for step in range(9)]
    assert episodes.returns_of(found).tolist() == [1, 2 + 3 + 4 + 5 + 6]
    obs = np.arange(9.0)[:, None]
    after = np.where(found["terminals"] | found["timeouts"], 70, obs[:, 0] + 1)[:, None]
    write_hdf5("a.hdf5", arrays | {"observations": obs, "next_observations": after})
    episodes.rewards_and_ends("a.hdf5", "Point-v0")
    after[3] = 7  # as where rows stand in any order
    write_hdf5("a.hdf5", arrays | {"observations": obs, "next_observations": after})
    with pytest.raises(ValueError, match="^a.hdf5: its rows are not in the order of time"):
        episodes.rewards_and_ends("a.hdf5", "Point-v0")
    if not timeouts:
        with pytest.raises(ValueError, match="^a.hdf5: has no timeouts, so where its episodes end"):
            episodes.rewards_and_ends("a.hdf5")
