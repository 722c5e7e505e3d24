"""How far two figures may lie apart by chance: bounds from Student's t distribution.

Formulas: the pooled two-sample t interval for means; for medians the same with the deviation by the
median absolute deviation (times 1.4826) and the median's lower efficiency (times 1.2533, both of
normal values; Huber, Robust Statistics). The distribution function is the regularized incomplete
beta function, its continued fraction by Lentz's method (Press et al., Numerical Recipes, 6.4): by
hand, because Python's statistics has no t distribution, and nothing else here needs scipy.
"""

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

__all__ = ["block_means", "mean", "noise_of_means", "noise_of_medians", "t_bound"]

# Of a hundred comparisons where nothing changed one is taken for a change.
CONFIDENCE = 0.99

# Of so few values the median deviation is often small by chance.
_FEW = 6
_NORMAL_SPREAD = 1.4826
_NORMAL_MEDIAN = 1.2533

_TINY = 1e-300
_PRECISE = 1e-12


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def block_means(values: Sequence[float], blocks: int) -> list[float]:
    """Means of consecutive values, in so many blocks of about equal size.

    Calls that follow each other are alike, and calls of one op differ by their shapes: blocks are
    more independent, and more equal.

    Args:
        values: in the order of time.
        blocks: how many; the values themselves if there are not two for each.
    """
    if len(values) < 2 * blocks:
        return list(values)
    edges = [round(at * len(values) / blocks) for at in range(blocks + 1)]
    return [mean(values[start:end]) for start, end in pairwise(edges)]


def noise_of_means(base: Sequence[float], new: Sequence[float]) -> float | None:
    """How far means may lie apart though nothing changed; None if there are too few values.

    Values are independent and of one variance if nothing changed; one side may have only one.
    """
    freedom = len(base) + len(new) - 2
    if freedom < 1 or not base or not new:
        return None
    squares = sum((value - mean(side)) ** 2 for side in (base, new) for value in side)
    deviation = math.sqrt(squares / freedom * (1 / len(base) + 1 / len(new)))
    return t_bound(freedom) * deviation


def noise_of_medians(base: Sequence[float], new: Sequence[float]) -> float | None:
    """The same for medians, of which a few values far off change nothing; of two values or more."""
    if len(base) < 2 or len(new) < 2:
        return None
    variance = sum((_NORMAL_MEDIAN * _deviation(side)) ** 2 / len(side) for side in (base, new))
    return t_bound(len(base) + len(new) - 2) * math.sqrt(variance)


def _deviation(values: Sequence[float]) -> float:
    if len(values) < _FEW:
        return statistics.stdev(values)
    middle = statistics.median(values)
    spread = statistics.median(abs(value - middle) for value in values)
    # Where most values are equal, those that are not still say that there is noise.
    return _NORMAL_SPREAD * spread if spread else statistics.stdev(values)


@lru_cache(maxsize=1024)
def t_bound(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The value that Student's t stays within with this confidence, for degrees of freedom."""
    low, high = 0.0, 1e4
    while high - low > 1e-6 * max(high, 1.0):
        middle = (low + high) / 2
        outside = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + middle * middle))
        if outside > 1 - confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _continued_fraction(a, b, x) / a
    return 1 - front * _continued_fraction(b, a, 1 - x) / b


def _continued_fraction(a: float, b: float, x: float) -> float:
    c = 1.0
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            result *= d * c
        if abs(d * c - 1) < _PRECISE:
            break
    return result


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
