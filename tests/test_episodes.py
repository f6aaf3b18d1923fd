"""benchmark/datasets/episodes.py: how many steps are played, and in which order they stand."""

import numpy as np
import pytest
from conftest import Point

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
