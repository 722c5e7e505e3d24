"""Verdicts of rules and compiler on one program, with a compiler that is not there."""

from types import SimpleNamespace

import openvino as ov
import openvino.opset15 as ops
import pytest

import npu_verdicts
from npu_confusion import _as_is, _given, _told
from npu_verdicts import Row, Verdicts, judge, short


def model_of(make) -> ov.Model:
    x = ops.parameter([2, 3], ov.Type.f32)
    return ov.Model([make(x)], [x], "one")


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    """Takes all but IsNaN and tangents."""

    def compiled(model, target):
        kinds = {node.get_type_name() for node in model.get_ops()} & {"IsNaN", "Tan"}
        return SimpleNamespace(reason=f"no {kinds.pop()} on {target}" if kinds else "")

    monkeypatch.setattr(npu_verdicts, "_compiler", lambda: SimpleNamespace(compile=compiled))


def test_a_program_that_both_take_is_whole():
    found = judge(model_of(ops.relu), ("4000",))
    assert (found.rules, found.given) == ("whole", {"4000": ""})


def test_an_equal_form_is_given_and_the_program_as_it_is_judged_too():
    found = judge(model_of(ops.is_nan), ("4000", "5010"))
    assert found.rules == "rewritten"
    assert found.as_is == {"4000": "no IsNaN on 4000", "5010": "no IsNaN on 5010"}
    assert found.given == {"4000": "", "5010": ""}


def test_a_refusal_without_an_equal_form_names_its_rule():
    found = judge(model_of(ops.tan), ())
    assert (found.rules, found.left) == ("refused", ("Tan (opset1), operation types",))


def test_disagreements_are_counted_by_target_and_named():
    taken, refused = ("", ("a rule",)), {"4000": "its words"}
    rows = [
        Row("a", "decode", Verdicts((), (), False, {"4000": taken[0]}, {"4000": ""})),
        Row("b", "decode", Verdicts((), (), False, refused, refused)),
        Row("c", "decode", Verdicts(taken[1], (), True, {"4000": ""}, {"4000": ""})),
    ]
    ((target, counts),) = _as_is(rows)
    assert (target, dict(counts)) == (
        "4000", {(False, False): 1, (False, True): 1, (True, False): 1}
    )  # fmt: skip
    assert list(_given(rows)) == [("4000", 2, 3)]
    assert list(_told(rows)) == [
        'b, decode, NPU 4000: compiler: "its words"', "c, decode, NPU 4000: rules: a rule",
    ]  # fmt: skip


def test_a_long_reason_is_cut_between_words():
    assert short("nothing\0" * 40).endswith("nothing …")
