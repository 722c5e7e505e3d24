import pytest
import torch

from npu_ops.errors import OperatorInputError
from npu_ops.op_conformance.cases.case import (
    LAYOUTS,
    TensorSpec,
    lay_out,
    make_tensor,
    parse_tensor,
    restride,
)


def made(line, dtype=torch.float32, seed=0):
    return make_tensor(parse_tensor(line), dtype, torch.Generator().manual_seed(seed))


def test_a_line_says_shape_dtype_range_kind_and_strides():
    assert parse_tensor("[2,3] int64 0..5 distinct constant @1,2") == TensorSpec(
        (2, 3), "int64", 0, 5, "distinct", is_constant=True, strides=(1, 2)
    )
    assert parse_tensor("[]") == TensorSpec(())


@pytest.mark.parametrize("line", ["2,3", "[2,3] floaty", "[2;3]"])
def test_a_word_that_says_nothing_is_an_error(line):
    with pytest.raises(OperatorInputError, match="A case's tensor") as error:
        parse_tensor(line)
    assert error.value.code == "case-tensor"


def test_the_same_seed_makes_the_same_values_and_another_seed_others():
    assert torch.equal(made("[50]"), made("[50]"))
    assert not torch.equal(made("[50]"), made("[50]", seed=1))


def test_values_are_known_numbers():
    # On any machine: whole numbers of the generator, scaled.
    assert made("[3] 0..65536").tolist() == [32302.0, 4715.0, 61280.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8])
def test_values_stay_in_their_range(dtype):
    values = made("[500] 1..9", dtype)
    assert values.dtype is dtype
    assert (values.min(), values.max()) >= (1, 8.9)
    assert values.max() <= 9


def test_distinct_values_are_distinct_in_16_bits():
    assert made("[200] distinct", torch.bfloat16).unique().numel() == 200


def test_a_permutation_is_one_in_each_row():
    rows = made("[3,6] int64 permutation")
    assert rows.sort(-1).values.tolist() == [list(range(6))] * 3


def test_matrices_are_what_their_kind_says():
    matrix = made("[4,4] spd", torch.float64)
    assert torch.equal(matrix, matrix.mT)
    assert torch.linalg.eigvalsh(matrix).min() > 0
    assert made("[4,4] lower", torch.float64).triu(1).count_nonzero() == 0


def test_special_values_are_there():
    values = made("[40] special")
    assert values.isnan().any()
    assert values.isinf().any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_moves_values_and_changes_none(layout):
    tensor = made("[2,3,4,5]")
    there = lay_out(tensor, layout)
    expected = tensor[:1].expand_as(tensor) if layout == "expanded" else tensor
    assert torch.equal(there, expected)
    moved = there.stride() != tensor.stride() or there.storage_offset() > 0
    assert moved == (layout != "contiguous")


@pytest.mark.parametrize("strides", [(1, 2), (3, 1), (0, 1), (6, 2)])
def test_recorded_strides_are_given_back(strides):
    assert restride(made("[2,3]"), strides).stride() == strides
