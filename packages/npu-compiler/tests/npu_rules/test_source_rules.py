"""Rules that differ between the compiler's source of 2024 and the compilers of two releases."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import openvino.opset16 as opset16
import pytest

from npu_compiler.npu_rules import source_rules as module
from npu_compiler.npu_rules.operations import node_refusals
from npu_compiler.npu_rules.source_rules import NEWEST, OLDEST, source_rules


def given(*shape, dtype="f32"):
    return ops.parameter(list(shape), getattr(ov.Type, dtype))


def whole(*values):
    return np.array(values, np.int64)


def states(**options):
    parts = [given(2, 2, 4), whole(3, 3), given(2, 12, 5), given(2, 12, 4), given(2, 12)]
    return ops.gru_sequence(given(2, 3, 5), *parts, 4, "bidirectional", **options)


def deformed(group, deformable):
    shapes = ([1, 2, 4, 4], [1, 18 * deformable, 4, 4], [4, 2 // group, 3, 3])
    image, offsets, weights = (given(*shape) for shape in shapes)
    return ops.deformable_convolution(
        image, offsets, weights, *[[1, 1]] * 4, mask=given(1, 9 * deformable, 4, 4),
        group=group, deformable_group=deformable, bilinear_interpolation_pad=True,
    )  # fmt: skip


def interpolated():
    sizes, axes = whole(6, 6), whole(3, 4)
    return ops.interpolate(given(1, 2, 3, 4, 5), sizes, "nearest", "sizes", axes=axes)


def sequence():
    states, weights = [given(2, 1, 4)] * 2, [given(1, 16, 5), given(1, 16, 4), given(1, 16)]
    lengths = given(2, dtype="i64")
    return ops.lstm_sequence(given(2, 3, 5), *states, lengths, *weights, 4, "forward")


def compared(make):
    return lambda: make(given(3, dtype="boolean"), given(3, dtype="boolean"))


COMPARISONS = (ops.equal, ops.greater, ops.greater_equal, ops.less, ops.less_equal, ops.not_equal)
# Refusals of the source of 2024, and the first release that accepts each.
TAKEN = {
    "range": (lambda: ops.range(given(), given(), given(), "f32"), OLDEST),
    "both directions": (states, OLDEST),
    "groups of weights": (lambda: deformed(2, 1), OLDEST),
    "groups of offsets": (lambda: deformed(1, 2), OLDEST),
    "left shift": (
        lambda: ops.bitwise_left_shift(given(3, dtype="i32"), given(3, dtype="i32")), NEWEST
    ),
    "right shift": (
        lambda: ops.bitwise_right_shift(given(3, dtype="i32"), given(3, dtype="i32")), NEWEST
    ),
    "identity": (lambda: opset16.identity(given(3)), NEWEST),
    "is finite": (lambda: ops.is_finite(given(3)), NEWEST),
    "is infinite": (lambda: ops.is_inf(given(3)), NEWEST),
    "is NaN": (lambda: ops.is_nan(given(3)), NEWEST),
    "inverse short-time transform": (
        lambda: opset16.istft(given(9, 7, 2), given(16), whole(16)[0], whole(8)[0], False, False),
        NEWEST,
    ),
    "softsign": (lambda: ops.softsign(given(3)), NEWEST),
    "short-time transform": (
        lambda: ops.stft(given(1, 64), given(16), whole(16)[0], whole(8)[0], False), NEWEST
    ),
    "absolute integers": (lambda: ops.absolute(given(3, dtype="i64")), NEWEST),
    "rectified integers": (lambda: ops.relu(given(3, dtype="i8")), NEWEST),
    "signs of integers": (lambda: ops.sign(given(3, dtype="i32")), NEWEST),
    "floor of integers": (lambda: ops.floor(given(3, dtype="i64")), NEWEST),
    "product of bytes": (lambda: ops.multiply(*[given(3, dtype="i8")] * 2), NEWEST),
    "difference of bytes": (lambda: ops.subtract(*[given(3, dtype="i8")] * 2), NEWEST),
    **{f"{make.__name__} of booleans": (compared(make), NEWEST) for make in COMPARISONS},
    "choice between booleans": (lambda: ops.select(*[given(3, dtype="boolean")] * 3), NEWEST),
    "variable padding": (
        lambda: ops.pad(given(4), whole(1), whole(1), "constant", given()), NEWEST
    ),
    "variable lengths": (sequence, NEWEST),
    "five dimensions": (interpolated, NEWEST),
    "integers normalized": (
        lambda: ops.group_normalization(given(1, 4, 8, dtype="i32"), *[given(4, dtype="i32")] * 2,
                                        2, 1e-4),
        NEWEST,
    ),
}  # fmt: skip


def halves(*shape):
    first, second = ops.split(given(*shape), 3, 2).outputs()
    return ops.concat([ops.negative(second), first], 3)


def mean(size):
    return ops.avg_pool(given(1, 3, size, size), [1, 1], [1, 1], [1, 1], [3, 3], True)


def attention(*mask, batch=2, shared=False):
    own = given(batch, 4, 3, 8)
    keys = ops.broadcast(given(batch, 1, 3, 8), whole(batch, 4, 3, 8)) if shared else own
    return ops.scaled_dot_product_attention(own, keys, own, given(*mask))


# Programs that the source of 2024 accepts and a compiler refuses, and the corrected rule.
REFUSED = {
    "eight dimensions": (
        lambda: given(*[1] * 7), lambda: given(*[1] * 8), "operand ranks",
    ),
    "without elements": (
        lambda: ops.exp(given(2, 1)), lambda: ops.exp(given(2, 0)), "operand sizes",
    ),
    "mean over less than its kernel": (lambda: mean(3), lambda: mean(2), "attributes"),
    "pieces by numbers": (lambda: halves(1, 2, 3, 8), lambda: halves(2, 2, 3, 8), "operand sizes"),
    "mask of sequences": (
        lambda: attention(2, 1, 3, 3), lambda: attention(2, 1, 3, 3, shared=True), "operand sizes",
    ),
    "mask of heads, none of numbers": (
        lambda: attention(), lambda: attention(4, 3, 3), "operand sizes",
    ),
    "mask of heads": (
        lambda: attention(4, 3, 3, batch=1), lambda: attention(4, 3, 3), "operand sizes",
    ),
    "cell of float32": (
        lambda: ops.gru_cell(*cell("f16"), 4), lambda: ops.gru_cell(*cell("f32"), 4),
        "operand types",
    ),
    "choice of six dimensions": (
        lambda: ops.select(given(*[2] * 5, dtype="boolean"), *[given(*[2] * 5)] * 2),
        lambda: ops.select(given(*[2] * 6, dtype="boolean"), *[given(*[2] * 6)] * 2),
        "operand ranks",
    ),
    "variable slope": (
        lambda: ops.swish(given(3), np.float32(1)), lambda: ops.swish(given(3), given()),
        "constant inputs",
    ),
    "tangent": (lambda: ops.sin(given(3)), lambda: ops.tan(given(3)), "operation types"),
    "greatest of bfloat16": (
        lambda: ops.topk(given(3), whole(1)[0], 0, "max", "value"),
        lambda: ops.topk(given(3, dtype="bf16"), whole(1)[0], 0, "max", "value"),
        "operand types",
    ),
}  # fmt: skip


def cell(dtype):
    shapes = ([1, 5], [1, 4], [12, 5], [12, 4], [12])
    return [given(*shape, dtype=dtype) for shape in shapes]


def rules_of(node, release):
    return [one.rule for one in node_refusals(node, generation="4000", release=release)]


@pytest.mark.parametrize("name", TAKEN)
def test_what_a_release_takes_is_refused_before_it(name):
    make, release = TAKEN[name]
    assert rules_of(make(), "")
    assert bool(rules_of(make(), OLDEST)) == (release == NEWEST)
    assert rules_of(make(), NEWEST) == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_compiler_refuses_is_refused_from_the_oldest_on(name):
    taken, refused, rule = REFUSED[name]
    assert rules_of(refused(), "") == rules_of(taken(), NEWEST) == []
    assert rules_of(refused(), OLDEST) == rules_of(refused(), NEWEST) == [rule]
    (finding,) = node_refusals(refused(), generation="4000")
    assert finding.source == f"seen in the compiler of OpenVINO {NEWEST}"


def test_corrections_name_rules_that_there_are_and_releases_that_were_tried():
    content = json.loads((Path(module.__file__).parent / "corrections.json").read_text())
    assert set(content["compilers"]) == {OLDEST, NEWEST}
    conditions = source_rules("").content["conditions"]
    for row in content["rows"]:
        assert {row["release"], row.get("seen", NEWEST)} <= set(content["compilers"])
        dropped = row.get("drop")
        assert dropped is None or any(dropped.items() <= one.items() for one in conditions), row
