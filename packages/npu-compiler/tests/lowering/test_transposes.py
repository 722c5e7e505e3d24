"""Transposes of images behind the operations on them."""

from __future__ import annotations

import openvino as ov
import openvino.opset15 as ops
import torch

from npu_compiler.lowering.transposes import sink_transposes
from npu_compiler.openvino_core import openvino_core


def test_no_image_is_transposed():
    image = ops.parameter([2, 5, 7, 8])
    turned = ops.transpose(image, [0, 3, 1, 2])
    scaled = ops.multiply(turned, torch.rand(8, 1, 1).numpy())
    scaled = ops.subtract(ops.relu(scaled), ops.constant(torch.rand(5, 7).numpy()))
    repeated = ops.broadcast(ops.relu(ops.constant(torch.rand(2, 8, 1, 1).numpy())), [2, 8, 5, 7])
    added = ops.add(scaled, ops.divide(repeated, ops.constant(torch.tensor(3.0).numpy())))
    total = ops.reduce_sum(added, [0, 2, 3], False)
    cut = ops.slice(added, [0, 1], [5, 7], [2, 3], [2, 3])
    results = [added, cut]
    model = ov.Model(
        [*(ops.result(ops.transpose(one, [0, 2, 3, 1])) for one in results), ops.result(total)],
        [image],
        "images",
    )
    value = torch.rand(2, 5, 7, 8).numpy()

    def run():
        done = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return [torch.from_numpy(part.copy()) for part in done([value]).values()]

    expected = run()
    sink_transposes(model)
    shapes = {"Transpose": [], "Broadcast": []}
    for node in model.get_ordered_ops():
        shapes.get(node.get_type_name(), []).append(list(node.get_output_shape(0)))
    assert shapes == {"Transpose": [[1, 5, 7, 1]], "Broadcast": []}  # of the subtracted constant
    torch.testing.assert_close(run(), expected)


def test_an_operand_of_one_axis_of_places_keeps_the_transpose():
    image = ops.parameter([2, 5, 7, 8])
    turned = ops.transpose(image, [0, 3, 1, 2])
    added = ops.add(turned, torch.rand(5, 1).numpy())
    model = ov.Model([ops.result(added)], [image], "images")
    sink_transposes(model)
    assert [one.get_type_name() for one in model.get_ordered_ops()].count("Transpose") == 1
    assert list(model.output(0).shape) == [2, 8, 5, 7]


def test_an_unchanged_input_is_written():
    image = ops.parameter([2, 5, 7, 8])
    again = ops.transpose(ops.transpose(image, [0, 3, 1, 2]), [0, 2, 3, 1])
    model = ov.Model([ops.result(again)], [image], "images")
    sink_transposes(model)
    assert model.get_results()[0].input_value(0).get_node().get_type_name() == "Transpose"
