"""benchmark/measure/speed.py: what is counted and compared."""

from pathlib import Path

import pytest

from benchmark.measure import speed


def test_a_ratio_is_the_median_of_the_rounds_own():
    """Without the rounds that a slow version sat out."""
    row = {"ms": [300.0, None, 1200.0, 900.0]}
    assert speed.ratio(row, [3.0, 4.0, 6.0, 6.0]) == "150.00 (100.00 to 200.00)"


def test_a_python_without_d3rlpy_is_named():
    timer = speed.d3rlpy_timer(speed.Args(d3rlpy=Path("false")))
    with pytest.raises(ValueError, match="--d3rlpy false: d3rlpy does not run there"):
        timer(0.1)
