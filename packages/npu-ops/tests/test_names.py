import pytest

from npu_ops.errors import OperatorInputError
from npu_ops.names import check_patterns, dotted_name, first_match


def test_both_spellings_name_the_same_op() -> None:
    assert dotted_name("aten::add.Tensor") == dotted_name("aten.add.Tensor") == "aten.add.Tensor"


@pytest.mark.parametrize(
    "pattern", ["aten::add.Tensor", "aten.add", "add", "add.Tensor", "aten.a*", "*.Tensor"]
)
def test_a_pattern_fits_by_name_or_glob(pattern: str) -> None:
    assert first_match("aten::add.Tensor", ["sub", pattern]) == pattern


@pytest.mark.parametrize("pattern", ["ad", "add.Scalar", "npu.add", "aten.add_"])
def test_a_pattern_fits_whole_names_only(pattern: str) -> None:
    assert first_match("aten::add.Tensor", [pattern]) is None


def test_a_name_without_a_namespace_means_aten() -> None:
    assert first_match("npu::rms_norm", ["rms_norm"]) is None
    assert first_match("npu::rms_norm", ["npu.rms_norm"]) == "npu.rms_norm"


@pytest.mark.parametrize("pattern", ["aten.mm.default", "mm.default", "aten.mm", "aten::mm"])
def test_an_overload_without_a_name_is_pythons_default(pattern: str) -> None:
    assert first_match("aten::mm", [pattern]) == pattern
    assert first_match("aten::add.Tensor", ["aten.add.default"]) is None


@pytest.mark.parametrize(
    "pattern", ["mm", "aten.mm.default", "aten::add.Tensor", "aten.*norm*", "npu.*"]
)
def test_patterns_of_operators_pass(pattern):
    check_patterns("host_ops", [pattern])


def test_a_pattern_that_fits_no_operator_is_an_error_with_the_nearest_name():
    with pytest.raises(
        OperatorInputError, match=r"'cumsun', which matches none.*'aten.cumsum'"
    ) as e:
        check_patterns("host_ops", ["mm", "cumsun"])
    assert e.value.code == "unknown-op"
