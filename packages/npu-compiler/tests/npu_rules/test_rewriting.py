"""Programs of bfloat16 for a compiler with layers that do not support it."""

from __future__ import annotations

import re

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest
import torch

from npu_compiler.npu_rules.operations import check_operations
from npu_compiler.npu_rules.rewriting import computes_in_bfloat16, rewrite_for_npu, widen_bfloat16
from npu_compiler.npu_rules.source_rules import NEWEST, OLDEST
from npu_compiler.openvino_core import openvino_core

BF16 = ov.Type.bf16


def planted():
    x = ops.parameter([3, 8], BF16)
    weight = ops.constant(np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)).output(0)
    narrow = ops.convert(weight, BF16)
    product = ops.matmul(x, narrow, False, True)
    wide = ops.convert(product, ov.Type.f32)
    results = [ops.gelu(product, "erf"), ops.convert(ops.tanh(wide), BF16), wide, x]
    return ov.Model([one.output(0) for one in results], [x], "planted")


def test_ports_stay_and_all_inside_is_float32():
    model = planted()
    ports = [port.get_element_type() for port in [*model.inputs, *model.outputs]]
    names = [sorted(port.get_names()) for port in model.outputs]
    assert computes_in_bfloat16(model)
    assert widen_bfloat16(model) == 2
    assert [port.get_element_type() for port in [*model.inputs, *model.outputs]] == ports
    assert [sorted(port.get_names()) for port in model.outputs] == names
    found = check_operations(model, generation="4000")
    assert [one for one in found if one.verdict == "refused"] == []


def test_results_are_those_of_one_rounding():
    before, after = planted(), planted()
    widen_bfloat16(after)
    x = torch.linspace(-2, 2, 24).reshape(3, 8).bfloat16()
    given = ov.Tensor(x.view(torch.int16).numpy().copy(), [3, 8], BF16)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    found, expected = (
        openvino_core().compile_model(model, "CPU", options)({0: given})
        for model in (after, before)
    )
    for index in range(4):
        left, right = (
            torch.from_numpy(np.asarray(one[index]).view(np.int16).copy()).view(torch.bfloat16)
            if np.asarray(one[index]).dtype.itemsize == 2
            else torch.from_numpy(np.array(one[index]))
            for one in (found, expected)
        )
        torch.testing.assert_close(left.float(), right.float(), rtol=2e-2, atol=2e-2)


def test_a_program_of_float32_is_left_alone():
    x = ops.parameter([2], ov.Type.f32)
    assert not computes_in_bfloat16(ov.Model([ops.exp(x).output(0)], [x], "plain"))


EDGES = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -1e-40, 1.5], np.float32)


def floats(*shape):
    values = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    values.reshape(-1)[: min(values.size, EDGES.size)] = EDGES[: values.size]
    return values


def booleans(*shape):
    return np.random.default_rng(4).integers(0, 2, shape).astype(bool)


def bytes_(*shape):
    return np.random.default_rng(5).integers(-128, 128, shape).astype(np.int8)


def whole(*values):
    return np.array(values, np.int64)


WHOLE = np.array([0, 1, -1, 7, -16777215, 16777215, -3], np.int64)
MASK = np.arange(9).reshape(1, 3, 3) % 4 != 1
ATTENDED = np.random.default_rng(6).standard_normal((1, 2, 3, 4)).astype(np.float32)


def rows(data, updates):
    return ops.slice_scatter(data, updates, whole(1), whole(-1), whole(2), whole(0))


def block(data, updates):
    return ops.slice_scatter(data, updates, whole(-1, 1), whole(0, 5), whole(-2, 2), whole(0, 1))


def no_rows(data):
    updates = ops.slice(data, whole(3), whole(3), whole(1), whole(0))
    return ops.slice_scatter(data, updates, whole(3), whole(3), whole(1), whole(0))


def normal(*shape):
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def grouped(query, key, value, mask):
    """Attention of six heads, three of which share keys."""
    keys = ops.broadcast(ops.unsqueeze(key, whole(2)), whole(2, 2, 3, 3, 4))
    keys = ops.reshape(keys, whole(2, 6, 3, 4), False)
    return ops.scaled_dot_product_attention(query, keys, value, mask)


def turned(vector):
    """Rotary embeddings' halves: the second one negated, before the first."""
    first, second = ops.split(vector, 3, 2).outputs()
    return ops.concat([ops.negative(second), first], 3)


def scaled(rows):
    parts = ops.variadic_split(rows, 1, whole(1, 2, 1)).outputs()
    factors = (np.float32(0.3), np.array([[-7.0]], np.float32))
    pairs = zip(parts[:2], factors, strict=True)
    return ops.concat([*(ops.multiply(part, factor) for part, factor in pairs), parts[2]], -3)


CASES = {
    "is nan": (ops.is_nan, [floats(3, 4)]),
    "is finite": (ops.is_finite, [floats(3, 4)]),
    "is inf": (ops.is_inf, [floats(3, 4)]),
    "is positive inf": (lambda x: ops.is_inf(x, {"detect_negative": False}), [floats(3, 4)]),
    "is negative inf": (lambda x: ops.is_inf(x, {"detect_positive": False}), [floats(3, 4)]),
    "choice between booleans": (ops.select, [booleans(4, 1), booleans(4, 5), booleans(5)]),
    "choice of six dimensions": (
        ops.select, [booleans(1, 2, 1, 2, 2, 3), floats(1), floats(1, 2, 1, 2, 2, 3)]
    ),
    "bytes compared": (ops.less, [bytes_(3, 4), bytes_(4)]),
    "booleans compared": (ops.equal, [booleans(3, 4), booleans(3, 4)]),
    "choice between bytes": (ops.select, [booleans(4, 1), bytes_(4, 5), bytes_(5)]),
    "absolute integers": (ops.absolute, [WHOLE]),
    "absolute int32": (ops.absolute, [WHOLE.astype(np.int32)]),
    "signs of integers": (ops.sign, [WHOLE]),
    "signs of int32": (ops.sign, [WHOLE.astype(np.int32)]),
    "attention with a mask of booleans": (
        ops.scaled_dot_product_attention,
        [ATTENDED, ATTENDED, ATTENDED, MASK[0]],
    ),
    "halves of a batch swapped, one negated": (turned, [floats(3, 2, 1, 8)]),
    "quarters of a batch by numbers": (scaled, [floats(2, 4, 3, 3)]),
    "mask of each sequence": (
        grouped, [normal(2, 6, 3, 4), normal(2, 2, 3, 4), normal(2, 6, 3, 4), normal(2, 1, 3, 3)]
    ),
    "mask of each head": (
        ops.scaled_dot_product_attention, [normal(2, 6, 3, 4)] * 3 + [normal(6, 3, 3)]
    ),
    "mask of booleans of each head": (
        ops.scaled_dot_product_attention, [normal(2, 2, 3, 4)] * 3 + [MASK.repeat(2, 0)]
    ),
    "no rows written": (no_rows, [floats(5, 4)]),
    "written rows": (rows, [floats(5, 4), floats(2, 4)]),
    "written block": (block, [floats(5, 4), floats(2, 2)]),
}  # fmt: skip

# The CPU plugin's IsFinite (OpenVINO 2026.4.1) is false for denormal numbers.
EXACT = {"is finite": np.isfinite}


def model_of(make, values):
    parameters = [ops.parameter(value.shape, value.dtype.type) for value in values]
    return ov.Model([make(*parameters).output(0)], parameters, "planted")


def results(model, values):
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    return openvino_core().compile_model(model, "CPU", options)(values)[0]


def refused(model, release=OLDEST):
    found = check_operations(model, generation="4000", release=release)
    return [finding.operation for finding in found if finding.verdict == "refused"]


@pytest.mark.parametrize("name", CASES)
def test_equal_form_gives_the_same_bits_and_is_accepted(name):
    make, values = CASES[name]
    model = model_of(make, values)
    assert refused(model)
    expected = EXACT[name](*values) if name in EXACT else results(model, values)
    (done,) = rewrite_for_npu(model, generation="4000")
    assert re.search(r"( at [0-9a-f]{12}|\[seen in the compiler of OpenVINO 2026.4.1)\]", str(done))
    assert refused(model) == refused(model, NEWEST) == []
    found = results(model, values)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_what_has_no_equal_form_stays_refused():
    model = model_of(lambda x: ops.search_sorted(x, x), [floats(2, 8)])
    assert rewrite_for_npu(model, generation="4000") == ()
    assert refused(model) == ["SearchSorted (opset15)"]


def test_what_is_taken_stays():
    def choice(value):
        return ops.select(ops.greater(value, np.float32(0)), value, np.float32(1))

    model = model_of(choice, [floats(3, 4)])
    before = [node.get_name() for node in model.get_ordered_ops()]
    assert rewrite_for_npu(model, generation="4000") == ()
    assert [node.get_name() for node in model.get_ordered_ops()] == before
