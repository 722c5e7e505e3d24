"""How views divide what dimensions are made of."""

import sympy

from npu_compiler.buckets.factors import Factor, product, regroup, whole

ROWS, LENGTH = sympy.symbols("rows length", positive=True, integer=True)
rows, length = Factor(ROWS, 4), Factor(LENGTH, 8)


def test_joined_dimensions_keep_both_factors():
    assert regroup(((rows,), (length,), whole(6)), (32, 6)) == ((rows, length), whole(6))


def test_joined_dimensions_come_apart_again():
    joined = ((rows, length), whole(6))
    assert regroup(joined, (4, 8, 2, 3)) == ((rows,), (length,), whole(2), whole(3))


def test_dimensions_of_one_come_and_go():
    assert regroup(((rows,), (), whole(6)), (1, 4, 6, 1)) == ((), (rows,), whole(6), ())


def test_a_size_that_varies_is_not_cut():
    assert regroup(((length,), whole(3)), (4, 6)) is None


def test_fixed_sizes_are_divided_and_joined():
    assert regroup((whole(12), whole(2)), (8, 3)) == (whole(8), whole(3))


def test_product_is_true_and_padded_size():
    assert product((rows, length, Factor(3, 3))) == (3 * ROWS * LENGTH, 96)
