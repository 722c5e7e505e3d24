"""Targets of programs, by their known facts."""

from dataclasses import replace

import pytest

from npu_compiler.graph_compiler.targets import ProgramFacts, choose_target
from npu_compiler.options import CompilerConfig

SMALL = ProgramFacts(
    device="CPU", kind="inference", precision="float32", rows=2, multiplications=5000
)


def chosen(facts: ProgramFacts, **options) -> tuple[str, bool]:
    choice = choose_target(facts, CompilerConfig(**options))
    assert choice.reason
    return choice.target, choice.is_alone


def test_little_work_is_for_kernels():
    assert chosen(SMALL) == ("kernels", True)
    assert chosen(replace(SMALL, rows=8, multiplications=1 << 18)) == ("kernels", True)
    assert chosen(replace(SMALL, multiplications=1 << 22)) == ("kernels", False)
    assert chosen(replace(SMALL, rows=9)) == ("openvino", False)
    assert chosen(replace(SMALL, multiplications=(1 << 22) + 1)) == ("openvino", False)


def test_who_asks_gets_kernels_for_much_work_by_all_threads():
    much = replace(SMALL, rows=300, multiplications=1 << 30)
    assert chosen(much, target="kernels") == ("kernels", False)
    assert chosen(SMALL, target="openvino") == ("openvino", False)


@pytest.mark.parametrize(
    "facts, options, word",
    [
        ({"device": "NPU"}, {}, "NPU"),
        ({"kind": "forward"}, {}, "training"),
        ({"precision": "bfloat16"}, {}, "bfloat16"),
        ({"rows": None}, {}, "vary"),
        ({"rows": 0}, {}, "no rows"),
        ({"refusal": "was wrong"}, {}, "was wrong"),
        ({}, {"dtype": "int8"}, "compressed"),
        ({}, {"device_options": {"NUM_STREAMS": "1"}}, "device_options"),
    ],
)
def test_what_kernels_are_not_for_is_openvinos_even_if_asked(facts, options, word):
    choice = choose_target(replace(SMALL, **facts), CompilerConfig(target="kernels", **options))
    assert choice.target == "openvino"
    assert word in choice.reason
