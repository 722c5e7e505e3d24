"""The place of refusals in which the compiler names no operation."""

from __future__ import annotations

import openvino as ov
import openvino.opset15 as ops
import pytest

from npu_compiler.target_compiler import compile_if_installed, find_target, target_compiler
from npu_compiler.target_compiler import installed as module
from npu_compiler.target_compiler.sources import CompilerSource

TARGET = find_target("4000")


def chain(place: int) -> ov.Model:
    """Twenty operations, each read by the next, of which one is refused."""
    x, unused = ops.parameter([2], name="x"), ops.parameter([3], name="unused")
    value = x
    for index in range(20):
        value = ops.sin(value)
        value.set_friendly_name("refuse_me" if index == place else f"sin_{index}")
    return ov.Model([value, ops.relu(x), ops.relu(unused)], [x, unused], "chain")


@pytest.mark.parametrize("place", [0, 7, 8, 19])
def test_refusal_begins_with_the_operation_that_is_refused(installed, place):
    report, _ = compile_if_installed(chain(place), TARGET)
    assert not report.is_accepted
    assert report.operation == "refuse_me"


def test_place_is_kept(installed, monkeypatch):
    refused = chain(3)
    first, _ = compile_if_installed(refused, TARGET)
    monkeypatch.setattr(CompilerSource, "start", lambda _: pytest.fail("started"))
    assert compile_if_installed(refused, TARGET)[0] == first


def test_search_without_time_leaves_the_place_open_and_keeps_nothing(installed, monkeypatch):
    refused = chain(3)
    monkeypatch.setattr(module, "_SEARCH_S", 0.0)
    assert compile_if_installed(refused, TARGET)[0].operation == ""
    monkeypatch.setattr(module, "_SEARCH_S", 60.0)
    assert compile_if_installed(refused, TARGET)[0].operation == "refuse_me"


def test_refusal_that_names_an_operation_is_not_searched(installed, model, monkeypatch):
    monkeypatch.setattr(
        "npu_compiler.target_compiler.installed.find_beginning", lambda *_: pytest.fail("searched")
    )
    with target_compiler() as compiler:
        assert compiler.compile(model, "4000", {"FAKE": "refuse"}).operation == "the_sum"
    assert compile_if_installed(model, TARGET)[0].is_accepted


def test_without_a_compiler_the_error_says_how_to_have_one(home):
    report, failure = compile_if_installed(chain(0), TARGET)
    assert report is None
    assert failure.code == "target-absent"
