"""verify_correctness: its measures, and its findings."""

import math

import numpy as np
import pytest
import torch

import npu_ops
from npu_ops.errors import OperatorInputError, VerificationError
from npu_runtime.errors import KindError


def verify(actual, expected, *arguments, **options):
    return npu_ops.verify_correctness(actual, expected, *arguments, **options)


def test_errors_are_the_ones_of_the_definition():
    expected = torch.tensor([1.0, 2.0, 4.0, 0.0])
    actual = torch.tensor([1.0, 2.5, 3.0, 0.25])
    report = verify(actual, expected, 0.0, 0.3)
    assert not report.passed
    assert report.max_absolute_error == 1.0
    assert report.mean_absolute_error == pytest.approx((0 + 0.5 + 1 + 0.25) / 4)
    assert report.max_relative_error == 0.25
    assert report.mean_relative_error == pytest.approx((0 + 0.25 + 0.25) / 3)
    assert report.outlier_share == 0.5


def test_an_npu_tensor_is_compared_with_a_cpu_one():
    x = torch.randn(64, 64)
    report = verify(x.to("npu") @ x.to("npu"), x @ x)
    assert report.passed
    assert "as expected" in str(report)


def test_worst_outliers_come_first_with_their_place():
    expected = torch.zeros(3, 4)
    actual = expected.clone()
    actual[1, 2], actual[2, 0] = 0.5, -2.0
    (part,) = verify(actual, expected).comparisons
    assert [outlier.index for outlier in part.worst] == [(2, 0), (1, 2)]
    assert (part.worst[0].actual, part.worst[0].expected) == (-2.0, 0.0)
    assert part.outlier_count == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ulp_counts_steps_between_neighbours(dtype):
    expected = torch.tensor([1.0, -1.0, 0.0], dtype=dtype)
    actual = expected.clone()
    for _ in range(3):
        actual = torch.nextafter(actual, torch.full_like(actual, 10))
    (part,) = verify(actual, expected, 1.0, 1.0).comparisons
    assert part.max_ulp == 3
    assert part.mean_ulp == 3


def test_ulp_across_zero_and_of_opposite_extremes():
    tiny = torch.nextafter(torch.zeros(()), torch.ones(()))
    assert verify(tiny, -tiny).max_ulp == 2
    assert verify(torch.tensor(-0.0), torch.tensor(0.0)).max_ulp == 0
    largest = torch.tensor(torch.finfo(torch.float64).max, dtype=torch.float64)
    assert verify(-largest, largest).max_ulp == pytest.approx(2.0**64, rel=1e-3)


def test_integers_have_no_ulp_and_must_be_equal():
    big = torch.tensor([2**62, -(2**63), 2**63 - 1])
    assert verify(big, big).max_ulp is None
    report = verify(big + torch.tensor([1, 0, 0]), big)
    assert not report.passed
    assert report.max_absolute_error == 1.0
    far = verify(torch.tensor([-(2**63)]), torch.tensor([2**63 - 1]))
    assert far.max_absolute_error == 2.0**64


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.bool, torch.uint64, torch.complex64, torch.float8_e4m3fn, torch.complex32],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_other_dtypes(dtype):
    ones, zeros = torch.ones(4).to(dtype), torch.zeros(4).to(dtype)
    assert verify(ones, ones).passed
    report = verify(zeros, ones)
    assert not report.passed
    assert report.max_absolute_error == 1.0


def test_nan_in_the_same_place_is_right_unless_told_otherwise():
    x = torch.tensor([1.0, math.nan])
    assert verify(x, x.clone()).passed
    (part,) = verify(x, x.clone(), equal_nan=False).comparisons
    assert part.nan_mismatches == 1
    assert not part.passed


def test_nan_and_infinity_in_the_wrong_place_are_counted_and_not_averaged():
    expected = torch.tensor([1.0, 2.0, math.inf, -math.inf, 5.0])
    actual = torch.tensor([math.nan, 2.5, math.inf, math.inf, 5.0])
    (part,) = verify(actual, expected).comparisons
    assert (part.nan_mismatches, part.inf_mismatches, part.outlier_count) == (1, 1, 3)
    assert part.max_absolute_error == 0.5
    assert {outlier.index for outlier in part.worst[:2]} == {(0,), (3,)}


def test_another_shape_is_a_result():
    report = verify(torch.ones(2, 3), torch.ones(3, 2))
    assert not report.passed
    assert "expected shape (3, 2), got (2, 3)" in str(report)


def test_another_dtype_is_a_result_and_the_values_are_still_compared():
    report = verify(torch.ones(2, dtype=torch.float16), torch.ones(2))
    assert not report.passed
    assert "expected torch.float32, got torch.float16" in str(report)
    assert report.max_absolute_error == 0.0
    assert verify(torch.ones(2, dtype=torch.float16), torch.ones(2), check_dtype=False).passed


def test_numpy_arrays_and_numbers():
    expected = np.arange(6.0).reshape(2, 3)
    assert verify(expected.copy(), expected).passed
    assert verify(torch.from_numpy(expected.T.copy()).T, expected).passed
    assert verify(expected[::-1], expected[::-1].copy()).passed
    assert verify(
        np.frombuffer(b"npu", dtype=np.uint8), torch.tensor([110, 112, 117]).byte()
    ).passed
    assert verify(1.5, 1.5).passed
    assert not verify(np.float32(1), np.float32(2)).passed


def test_structures_are_compared_by_path():
    expected = {"a": [torch.ones(2), (torch.zeros(3), None)], "b": torch.ones(1)}
    actual = {"a": [torch.ones(2), (torch.ones(3), None)], "c": torch.ones(1)}
    failed = {part.path: part for part in verify(actual, expected).comparisons if not part.passed}
    assert set(failed) == {"['a'][1][0]", "['b']", "['c']"}
    assert failed["['b']"].problem == "missing"
    assert failed["['c']"].problem == "not expected"


def test_a_tensor_for_a_list_is_a_result():
    assert "expected list, got Tensor" in str(verify(torch.ones(2), [torch.ones(2)]))


def test_sparse_and_jagged_tensors():
    dense = torch.eye(3)
    assert verify(dense.to_sparse(), dense).passed
    jagged = [
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
        for _ in range(2)
    ]
    report = verify(*jagged)
    assert report.passed
    assert len(report.comparisons) == 2


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_are_compared_by_value():
    quantized = torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.1, 0, torch.qint8)
    assert verify(quantized, torch.tensor([0.5, 1.0])).passed


def test_an_empty_tensor_is_right():
    report = verify(torch.empty(0, 3), torch.empty(0, 3))
    assert report.passed
    assert report.outlier_share == 0.0
    assert verify(
        torch.empty(0, dtype=torch.complex64), torch.empty(0, dtype=torch.complex64)
    ).passed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32])
def test_default_tolerances_are_those_of_torch_testing(dtype):
    for scale in (1.0, 1e3):
        expected = (torch.randn(500) * scale).to(dtype)
        actual = (expected.float() * (1 + 2e-3 * torch.randn(500))).to(dtype)
        try:
            torch.testing.assert_close(actual, expected)
            agrees = True
        except AssertionError:
            agrees = False
        assert verify(actual, expected).passed is agrees


def test_raise_if_failed_carries_the_report():
    verify(torch.ones(2), torch.ones(2)).raise_if_failed()
    with pytest.raises(VerificationError, match=r"\[1\]: 3.0 instead of 1.0") as error:
        verify(torch.tensor([1.0, 3.0]), torch.ones(2)).raise_if_failed()
    assert error.value.code == "not-close"
    assert isinstance(error.value, AssertionError)


@pytest.mark.parametrize("tolerance", [-1.0, math.nan])
def test_a_tolerance_must_be_a_size(tolerance):
    with pytest.raises(OperatorInputError, match="`rtol` must be 0 or more") as error:
        verify(1.0, 1.0, tolerance)
    assert error.value.code == "verification-input"


def test_a_tolerance_must_be_a_number():
    with pytest.raises(KindError, match="`rtol` must be float") as error:
        verify(torch.ones(2), torch.ones(2), torch.zeros(4, 4))
    assert error.value.code == "argument-kind"


def test_what_is_no_array_is_refused():
    with pytest.raises(OperatorInputError, match="got str at \\['a'\\]") as error:
        verify({"a": "one"}, {"a": "one"})
    assert error.value.code == "verification-input"


def test_many_failures_are_counted_and_not_all_printed():
    report = verify([torch.ones(1)] * 30, [torch.zeros(1)] * 30)
    assert "30 of 30 tensors not as expected" in str(report)
    assert "... and 20 more" in str(report)


def test_a_meta_tensor_has_no_values():
    with pytest.raises(OperatorInputError, match="got a meta tensor") as caught:
        npu_ops.verify_correctness(torch.zeros(2), torch.zeros(2, device="meta"))
    assert caught.value.code == "verification-input"
