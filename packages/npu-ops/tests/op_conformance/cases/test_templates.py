import pytest

from npu_ops.errors import OperatorInputError
from npu_ops.op_conformance.cases import Case, interface_cases
from npu_ops.op_conformance.cases.templates import expand


def expanded(**template):
    return list(expand(template, {"pairs": [{"input": "[3]"}, {"input": "[2,3]"}]}))


def test_a_template_is_the_product_of_its_lists():
    cases = expanded(
        ops=["abs", "neg"], dtypes=["float32", "float64"], each="pairs", checks=["backward"]
    )
    assert len(cases) == 8
    assert {case.checks for case in cases} == {("forward", "backward")}


def test_a_layout_that_changes_nothing_is_no_case():
    cases = expanded(ops=["abs"], each="pairs", layouts=["contiguous", "transposed"])
    assert [(c.layout, c.arguments["input"]) for c in cases] == [
        ("contiguous", "[3]"),
        ("contiguous", "[2,3]"),
        ("transposed", "[2,3]"),
    ]


def test_a_check_that_does_not_apply_is_left_out():
    (case,) = expanded(ops=["isnan"], each=[{"input": "[3]"}], checks=["in-place"])
    assert case.checks == ("forward",)
    (case,) = expanded(ops=["abs"], dtypes=["int64"], each=[{"input": "[3]"}], checks=["backward"])
    assert case.checks == ("forward",)


def test_the_templates_range_is_for_tensors_without_their_own():
    (case,) = expanded(
        ops=["where"],
        each=[{"condition": "[3] bool", "input": "[3]", "other": "[3] 5..6"}],
        range="1..2",
    )
    assert case.arguments == {"condition": "[3] bool", "input": "[3] 1..2", "other": "[3] 5..6"}


@pytest.mark.parametrize(
    "template, name",
    [
        ({"ops": ["no_such_op"]}, "no_such_op"),
        ({"ops": ["abs"], "layouts": ["sideways"]}, "sideways"),
        ({"ops": ["abs"], "colour": "red"}, "colour"),
        ({"ops": "no_such_set"}, "no_such_set"),
    ],
)
def test_a_name_that_is_not_known_is_an_error(template, name):
    with pytest.raises(OperatorInputError, match=f"got '{name}'") as error:
        expanded(**template)
    assert error.value.code == "case-template"


def test_there_are_more_cases_than_any_suite_we_know_of_and_each_has_an_id():
    cases = interface_cases()
    assert len(cases) > 14_143
    assert all(case.id == name for name, case in cases.items())


def test_an_id_stays_when_a_tolerance_or_a_check_changes_and_not_when_the_call_does():
    case = Case("interface", "abs", "float32", "contiguous", {"input": "[3]"})
    assert case.id == "abs:float32:contiguous:bf9e21782a"
    tighter = Case("interface", "abs", "float32", "contiguous", {"input": "[3]"}, tolerance="sums")
    other = Case("interface", "abs", "float32", "contiguous", {"input": "[4]"})
    assert tighter.id == case.id != other.id


def test_inputs_are_the_same_at_each_call():
    case = Case("interface", "abs", "float32", "contiguous", {"input": "[30]"})
    assert case.make_arguments()["input"].equal(case.make_arguments()["input"])
