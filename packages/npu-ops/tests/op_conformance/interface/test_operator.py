from pathlib import Path

import pytest
import torch

from npu_ops.errors import OperatorInputError
from npu_ops.op_conformance.cases import interface_cases
from npu_ops.op_conformance.interface import Operator, aten_operator, left_out, load_operators

NAMES = Path(__file__).with_name("diopi_op_names.txt").read_text(encoding="utf-8").split()


def test_the_interface_has_every_op_of_diopi_or_says_why_not():
    operators = load_operators()
    assert len(NAMES) == 220
    assert set(NAMES) <= operators.keys() | left_out().keys()
    assert not operators.keys() & left_out().keys()
    assert all(left_out().values())


def test_every_op_has_a_signature_a_call_and_cases():
    called = {case.op for case in interface_cases().values()}
    for operator in load_operators().values():
        assert operator.schema.arguments
        assert callable(operator.function())
        assert callable(operator.host_function())
        assert not operator.inplace or callable(operator.function("in-place"))
        assert operator.name in called


def test_what_stands_after_the_star_is_passed_by_keyword():
    operator = load_operators()["softmax"]
    positional, keywords = operator.bind({"input": 1, "dim": 2, "dtype": torch.float32})
    assert (positional, keywords) == ([1, 2], {"dtype": torch.float32})


def test_an_argument_left_out_in_the_middle_gets_its_default():
    positional, _ = load_operators()["sum"].bind({"input": 1, "keepdim": True})
    assert positional == [1, None, True]


@pytest.mark.parametrize("given", [{"x": 1}, {"input": 1, "other": 2, "y": 3}])
def test_arguments_that_the_signature_does_not_have_are_an_error(given):
    operator = Operator("add", "(Tensor input, Tensor other) -> Tensor", "torch.add")
    with pytest.raises(OperatorInputError, match="match the signature") as error:
        operator.bind(given)
    assert error.value.code == "case-argument"


def test_an_op_of_aten_brings_its_own_signature_and_is_judged_by_pattern():
    addmm = aten_operator("aten.addmm.default")
    assert addmm.tensors == {"self", "mat1", "mat2"}
    assert addmm.tolerance == "sums"
    assert aten_operator("aten.convolution_backward.default").tolerance == "long_chains"
