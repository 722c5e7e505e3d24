"""To which bucket a size is rounded, and when there are buckets."""

import pytest
import sympy

from npu_compiler.buckets.sizes import (
    Factor,
    product,
    regroup,
    round_up,
    wants_static_programs,
    whole,
)
from npu_compiler.options import CompilerConfig

FAR = 2**40


@pytest.mark.parametrize("size, bucket", [(1, 1), (2, 2), (3, 4), (33, 64), (64, 64), (0, 0)])
def test_powers_of_two(size, bucket):
    assert round_up(size, None, FAR) == bucket


@pytest.mark.parametrize("size, bucket", [(3, 32), (32, 32), (33, 96), (97, 192), (200, 288)])
def test_listed_sizes_and_multiples_of_the_last(size, bucket):
    assert round_up(size, (32, 96), FAR) == bucket


@pytest.mark.parametrize("size, bucket", [(60, 64), (70, 96), (96, 96)])
def test_a_bucket_ends_where_the_graph_does(size, bucket):
    assert round_up(size, None, 96) == bucket


class _Device:
    def __init__(self, device):
        self.device = device


@pytest.mark.parametrize(
    "device, buckets, wanted",
    [
        ("CPU", None, False),
        ("CPU", "powers of two", True),
        ("CPU", (8, 16), True),
        ("NPU", None, True),
        ("NPU.3720", None, True),
        ("SIM", None, False),
    ],
)
def test_static_programs_where_the_device_needs_them(monkeypatch, device, buckets, wanted):
    monkeypatch.setattr("npu_runtime.device_info", lambda: _Device(device))
    assert wants_static_programs(CompilerConfig(buckets=buckets)) is wanted


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
