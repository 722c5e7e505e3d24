import pytest

from npu_profiler.comparison.statistics import (
    block_means,
    noise_of_means,
    noise_of_medians,
    t_bound,
)


# Two-sided bounds of Student's t at 99 %, as statistical tables have them.
@pytest.mark.parametrize(
    "freedom, bound", [(1, 63.657), (2, 9.925), (4, 4.604), (18, 2.878), (100, 2.626)]
)
def test_bounds_are_those_of_students_table(freedom, bound):
    assert t_bound(freedom) == pytest.approx(bound, abs=1e-3)


def test_bound_follows_the_confidence():
    assert t_bound(10, 0.95) == pytest.approx(2.228, abs=1e-3)


def test_noise_of_means_is_the_pooled_interval():
    # Variance 1 on both sides: bound(4) * sqrt(1/3 + 1/3).
    assert noise_of_means([1, 2, 3], [11, 12, 13]) == pytest.approx(4.604 * (2 / 3) ** 0.5, 1e-3)


def test_noise_of_one_value_each_is_unknown():
    assert noise_of_means([1], [2]) is None
    assert noise_of_medians([1], [2, 3]) is None
    assert noise_of_means([1], [2, 3]) is not None


def test_value_far_off_does_not_widen_the_noise_of_medians():
    quiet = [10.0, 11, 10, 9, 10, 11, 9, 10, 11, 9]
    loud = [*quiet[:-1], 1_000.0]
    assert noise_of_medians(quiet, loud) < 3 < noise_of_means(quiet, loud)


def test_blocks_hold_each_value_once():
    assert block_means(range(10), 5) == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert block_means([1, 2, 3], 2) == [1, 2, 3]
