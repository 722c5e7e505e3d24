"""Programs of bfloat16 for a compiler whose layers have none."""

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import torch

from npu_compiler.npu_rules.bfloat16 import computes_in_bfloat16, widen_bfloat16
from npu_compiler.npu_rules.operations import check_operations
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
