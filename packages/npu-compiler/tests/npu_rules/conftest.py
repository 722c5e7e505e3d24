"""Operations of detection, of colours, of state and with bodies, as the compiler's tests use them.

Sizes, types and attributes are those of tests/functional and tests/lit in the compiler's source, at
the commit of the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import openvino as ov
import openvino.opset3 as opset3
import openvino.opset4 as opset4
import openvino.opset8 as opset8
import openvino.opset14 as ops
import pytest
from openvino.op import Result
from openvino.utils.node_factory import NodeFactory


@pytest.fixture(scope="session")
def rarer() -> Mapping[str, Callable[[str], ov.Node]]:
    """Name -> makes an operation for an element type of its data."""
    return RARER


def given(shape, dtype="f16"):
    return ops.parameter(shape, getattr(ov.Type, dtype))


def whole(*values, dtype=np.int64):
    return np.array(values, dtype)


def number(value, dtype, shape=()):
    return ops.constant(np.full(shape, value), getattr(ov.Type, dtype))


def bitwise(make):
    return lambda t: make(given([1, 10], "i32"), given([1, 10], "i32"))


def transformed(make, *shape):
    return lambda t: make(given(shape, t), whole(0, 1), whole(-1, -1))


def sequence(make, gates, directions, *, with_cell):
    """Two steps of batches of three, and states of four."""

    def made(t):
        states = [given([3, directions, 4], t) for _ in range(1 + with_cell)]
        weights = [
            number(1, t, [directions, gates * 4, 5]), number(1, t, [directions, gates * 4, 4]),
            number(1, t, [directions, gates * 4]),
        ]  # fmt: skip
        lengths = whole(2, 2, 2)
        direction = "bidirectional" if directions == 2 else "forward"
        return make(given([3, 2, 5], t), *states, lengths, *weights, 4, direction)

    return made


def detected(t):
    """Ten priors, one batch, three classes."""
    attributes = {
        "num_classes": 3, "background_label_id": 0, "top_k": -1, "keep_top_k": [10],
        "code_type": "caffe.PriorBoxParameter.CORNER", "share_location": True,
        "nms_threshold": 0.5, "confidence_threshold": 0.3, "clip_after_nms": False,
        "clip_before_nms": False, "decrease_label_id": False, "normalized": True,
        "input_height": 1, "input_width": 1, "objectness_score": 0.0,
        "variance_encoded_in_target": True,
    }  # fmt: skip
    inputs = [given([1, 40], t), given([1, 30], t), given([1, 1, 40], t)]
    return NodeFactory("opset1").create(
        "DetectionOutput", [one.output(0) for one in inputs], attributes
    )


def proposed(t):
    attributes = {
        **{name: np.uint32(value) for name, value in (
            ("base_size", 16), ("pre_nms_topn", 100), ("post_nms_topn", 100), ("feat_stride", 16),
            ("min_size", 16),
        )},
        "nms_thresh": np.float32(0.7), "ratio": np.array([0.5, 2.0], np.float32),
        "scale": np.array([4.0, 8.0], np.float32), "clip_before_nms": True,
        "clip_after_nms": False, "normalize": False, "box_size_scale": np.float32(2.0),
        "box_coordinate_scale": np.float32(2.0), "framework": "",
    }  # fmt: skip
    return opset4.proposal(
        given([1, 8, 24, 16], t), given([1, 16, 24, 16], t), number(225, t, [3]), attributes
    )


def chosen(t):
    condition, left, right = given([1], "boolean"), given([1, 1, 4, 4], t), given([1, 1, 4, 4], t)
    then_left, then_right = given([1, 1, 4, 4], t), given([1, 1, 4, 4], t)
    else_left = given([1, 1, 4, 4], t)
    then = ops.result(ops.multiply(ops.power(then_left, then_right), then_right))
    other = ops.result(ops.cos(else_left))
    node = opset8.if_op(condition.output(0))
    node.set_then_body(ov.Model([then], [then_left, then_right], "then"))
    node.set_else_body(ov.Model([other], [else_left], "else"))
    node.set_input(left.output(0), then_left, else_left)
    node.set_input(right.output(0), then_right, None)
    node.set_output(then, other)
    return node


def looped(t):
    value, inner = given([1, 3, 2, 2], "i32"), given([1, 3, 2, 2], "i32")
    added = Result(ops.add(inner, number(1, "i32", [1])).output(0))
    again = Result(ops.constant(np.array([True])).output(0))
    node = ops.loop(ops.constant(whole(3)), ops.constant(np.array([True])))
    node.set_special_body_ports([-1, 1])
    node.set_function(ov.Model([added, again], [inner], "body"))
    node.set_merged_input(inner, value.output(0), added.output(0))
    node.get_iter_value(added.output(0), -1)
    return node


def iterated(t):
    """A cell of a GRU for each of two steps."""
    value, state = given([4, 2, 4], t), given([4, 4], t)
    step, inner = given([4, 1, 4], t), given([4, 4], t)
    cell = ops.gru_cell(
        ops.squeeze(step, whole(1)), inner, number(1, t, [12, 4]), number(1, t, [12, 4]),
        number(1, t, [12]), 4,
    )  # fmt: skip
    after = Result(cell.output(0))
    piece = Result(ops.unsqueeze(cell, whole(1)).output(0))
    node = ops.tensor_iterator()
    node.set_body(ov.Model([after, piece], [step, inner], "body"))
    node.set_sliced_input(step, value.output(0), 0, 1, 1, -1, 1)
    node.set_merged_input(inner, state.output(0), after.output(0))
    node.get_iter_value(after.output(0), -1)
    node.get_concatenated_slices(piece.output(0), 0, 1, 1, -1, 1)
    return node


def kept(t):
    return opset3.assign(opset3.read_value(number(1, t, [1, 768]), "memory"), "memory")


RARER = {
    "bits of both": bitwise(ops.bitwise_and), "bits of either": bitwise(ops.bitwise_or),
    "bits of one": bitwise(ops.bitwise_xor),
    "bits inverted": lambda t: ops.bitwise_not(given([1, 10], "i32")),
    "characters": lambda t: ops.ctc_greedy_decoder(given([20, 8, 128], t), given([20, 8], t)),
    "characters of lengths": lambda t: ops.ctc_greedy_decoder_seq_len(
        given([1, 1, 1], t), number(1, "i32", [1]), number(0, "i32", [1])
    ),
    "converted like": lambda t: ops.convert_like(given([1, 2, 3], t), given([1, 2], "i32")),
    "transformed": transformed(ops.dft, 10, 4, 2), "back": transformed(ops.idft, 10, 4, 2),
    "back to real": transformed(ops.irdft, 10, 4, 2),
    "deformed convolution": lambda t: opset8.deformable_convolution(
        given([1, 2, 4, 4], t), given([1, 18, 4, 4], t), number(1, t, [4, 2, 3, 3]), [1, 1],
        [1, 1], [1, 1], [1, 1], mask=given([1, 9, 4, 4], t)
    ),
    "deformed pooling": lambda t: ops.deformable_psroi_pooling(
        given([1, 441, 8, 8], t), given([30, 5], t), 49, 0.0625, 3, "bilinear_deformable", 4, 4,
        0.1, 3
    ),
    "detected": detected, "proposed": proposed,
    "packed bag of embeddings": lambda t: ops.embedding_bag_packed_sum(
        given([5, 10], t), number(1, "i32", [3, 2])
    ),
    "segments of embeddings": lambda t: ops.embedding_segments_sum(
        given([5, 6], t), whole(0, 1, 2, 2, 3, dtype=np.int32),
        whole(0, 1, 2, 3, 4, dtype=np.int32), np.int32(7)
    ),
    "diagonal": lambda t: ops.eye(whole(8), whole(8), given([1], "i32"), t),
    "scale of eight bits": lambda t: ops.fake_convert(
        given([1, 3, 10, 10], t), number(1, t, [1]), destination_type="f8e4m3"
    ),
    "normalized over channels": lambda t: ops.grn(given([1, 24, 32, 32], t), 0.33),
    "sequence of lstm": sequence(ops.lstm_sequence, 4, 2, with_cell=True),
    "sequence of gru": sequence(ops.gru_sequence, 3, 1, with_cell=False),
    "beams": lambda t: ops.gather_tree(
        given([5, 7, 3], "i32"), given([5, 7, 3], "i32"), given([7], "i32"), given([], "i32")
    ),
    "groups of transposed convolution": lambda t: ops.group_convolution_backprop_data(
        given([1, 32, 23, 30], t), number(1, t, [2, 16, 32, 2, 1]), [2, 2]
    ),
    "i420 to bgr": lambda t: ops.i420_to_bgr(given([1, 15, 10, 1], t)),
    "i420 to rgb": lambda t: ops.i420_to_rgb(
        given([1, 10, 10, 1], t), given([1, 5, 5, 1], t), given([1, 5, 5, 1], t)
    ),
    "nv12 to bgr": lambda t: ops.nv12_to_bgr(given([1, 15, 10, 1], t)),
    "nv12 to rgb": lambda t: ops.nv12_to_rgb(given([1, 10, 10, 1], t), given([1, 5, 5, 2], t)),
    "boxes that overlap": lambda t: ops.non_max_suppression(
        given([3, 100, 4], "f32"), given([3, 5, 100], "f32"), np.int32(5), np.float32(0.3),
        np.float32(0.3)
    ),
    "places that are not zero": lambda t: ops.non_zero(given([8, 32], "i32")),
    "pooled by position": lambda t: ops.psroi_pooling(
        given([1, 200, 42, 64], t), given([1, 5], t), 50, 2, 1.0, 1, 1, "average"
    ),
    "aligned regions": lambda t: ops.roi_align(
        given([2, 18, 20, 20], t), given([2, 4], t), given([2], "i32"), 8, 8, 2, 0.03125, "avg",
        "half_pixel"
    ),
    "pooled regions": lambda t: ops.roi_pooling(
        given([1, 3, 8, 8], t), given([1, 5], t), [1, 1], 0.625, "max"
    ),
    "drawn": lambda t: ops.random_uniform(
        whole(1, 200), number(0, t), number(1, t), t, 0, 11
    ),
    "regions": lambda t: ops.region_yolo(
        given([1, 125, 13, 13], t), 4, 20, 5, False, [0, 1, 2, 3, 4], 1, 3
    ),
    "reordered": lambda t: ops.reorg_yolo(given([1, 64, 26, 26], t), [2, 2]),
    "state": kept, "choice of programs": chosen, "loop": looped, "iterations": iterated,
}  # fmt: skip
