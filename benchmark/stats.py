"""Numbers as they are printed, and what is known of a mean: effects with 95% intervals."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95
FEW = 3  # seeds from which on a mean has an interval


class Estimate(NamedTuple):
    """A mean, its 95% interval (nan where there is none), of how many seeds, and over what."""

    mean: float
    low: float
    high: float
    n: int
    over: str  # "seeds", or "episodes" of a single seed


def plain(value: float, digits: int = 0) -> str:
    """With commas, halves up, and no -0; a dash for what was not measured."""
    if np.isnan(value):
        return "–"
    text = f"{value + np.copysign(1e-9, value):,.{digits}f}"
    return text if text.strip("-0.") else text.removeprefix("-")


def of_q(value: float) -> str:
    """A Q or a return; large ones as 4.3e8."""
    large = f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
    return large if abs(value) >= 1e6 else plain(value)


def short(value: float) -> str:
    """Two digits."""
    return plain(value) if value >= 10 or np.isnan(value) else f"{value:.2g}"


def fraction(value: float) -> str:
    """Two digits after the point, one of what is less than 0.01."""
    if value >= 1 or value == 0 or np.isnan(value):
        return short(value)
    return f"{value:.2f}" if value >= 0.01 else f"{value:.1g}"


def small(value: float) -> str:
    """With a digit after the point where it is below 10."""
    return plain(value, 1 if abs(value) < 10 else 0)


def excess(value: float) -> str:
    """One digit of what exceeds 1."""
    if value >= 10 or np.isnan(value):
        return plain(value)
    return f"{1 + float(f'{value - 1:.1g}'):g}"


def mean_error(mean: float, error: float, digits: int = 1) -> str:
    """ "104.4 ± 3.1"; without an error where a single value has none."""
    text = plain(mean, digits)
    return text if np.isnan(error) else f"{text} ± {error:.{digits}f}"


def estimate(values: pd.Series, errors: pd.Series | None = None) -> Estimate:
    """Of values of seeds, by Student's t from three on; of a single seed by the standard error over
    its episodes, in `errors`; of two there is no interval."""
    mean, n = values.mean(), len(values)
    if n >= FEW and values.sem() > 0:
        low, high = stats.t.interval(LEVEL, n - 1, mean, values.sem())
        return Estimate(mean, low, high, n, "seeds")
    if n == 1 and errors is not None and errors.notna().all():
        half = stats.norm.ppf((1 + LEVEL) / 2) * errors.iloc[0]
        return Estimate(mean, mean - half, mean + half, 1, "episodes")
    return Estimate(mean, np.nan, np.nan, n, "seeds")


def difference(one: pd.Series, other: pd.Series) -> Estimate:
    """Of the means of two methods' seeds, by Welch's t; n is the smaller number. No interval where
    either has one seed."""
    n = min(len(one), len(other))
    gap = one.mean() - other.mean()
    if n < 2 or one.sem() + other.sem() == 0:
        return Estimate(gap, np.nan, np.nan, n, "seeds")
    with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):  # of equal values
        found = stats.ttest_ind(one, other, equal_var=False).confidence_interval(LEVEL)
    return Estimate(gap, found.low, found.high, n, "seeds")


def interquartile_mean(*scores: np.ndarray) -> float:
    """Of all tasks' seeds together, the mean of the middle half."""
    return float(stats.trim_mean(np.concatenate(scores), 0.25))


def probability_of_improvement(*scores: np.ndarray) -> float:
    """That a seed of the first method scores more than one of the second, a tie counting half,
    averaged over tasks: the first half of `scores` is the first method's, the rest the second's."""
    pairs = zip(scores[: len(scores) // 2], scores[len(scores) // 2 :])
    return float(np.mean([(np.sign(a[:, None] - b).mean() + 1) / 2 for a, b in pairs]))


def bootstrapped(name: str, statistic: Callable, scores: list[np.ndarray]) -> dict[str, float]:
    """The statistic, and the bounds of its interval."""
    settings = {"vectorized": False, "method": "percentile", "n_resamples": 2000, "rng": 0}
    bounds = stats.bootstrap(scores, statistic, **settings).confidence_interval
    return {name: statistic(*scores), f"{name} low": bounds.low, f"{name} high": bounds.high}
