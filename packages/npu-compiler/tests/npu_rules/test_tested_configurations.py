"""The NPU compiler's tests of single layers: accepted as they are, refused when mutated.

The configurations (shapes, attributes, element types) are those of tests/functional/
shared_tests_instances/single_layer_tests in the compiler's source, at the commit of the rules.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset1 as opset1
import openvino.opset14 as ops
import openvino.opset15 as opset15
import pytest

from npu_compiler.npu_rules.operations import check_operations
from npu_compiler.npu_rules.source_rules import GENERATIONS, source_rules


def given(shape, dtype="f16"):
    return ops.parameter(shape, getattr(ov.Type, dtype))


def whole(*values):
    return np.array(values, np.int64)


def number(value, dtype, shape=()):
    return ops.constant(np.full(shape, value), getattr(ov.Type, dtype))


def unary(make, *shape):
    return lambda t: make(given(shape or (1, 50, 1, 1), t))


def binary(make, left, right):
    return lambda t: make(given(left, t), given(right, t))


def reduced(make):
    return lambda t: make(given([10, 20, 30, 40], t), whole(1, 3), True)


PAIRS = ((1, 16, 32), (1, 1, 32))
# Computed with: each takes an element type, float16 unless named otherwise.
COMPUTED = {
    "sigmoid": unary(ops.sigmoid), "sign": unary(ops.sign), "tanh": unary(ops.tanh),
    "sine": unary(ops.sin), "cosine": unary(ops.cos), "relu": unary(ops.relu),
    "elu": unary(lambda x: ops.elu(x, 1.0)), "hswish": unary(ops.hswish), "mish": unary(ops.mish),
    "softplus": unary(ops.softplus), "floor": unary(ops.floor), "root": unary(ops.sqrt),
    "sinh": unary(ops.sinh), "cosh": unary(ops.cosh), "asinh": unary(ops.asinh),
    "acosh": unary(ops.acosh), "atanh": unary(ops.atanh), "erf": unary(ops.erf),
    "gelu": unary(lambda x: ops.gelu(x, "erf")), "exponential": unary(ops.exp),
    "logarithm": unary(ops.log),
    "swish": lambda t: ops.swish(given([1, 50, 1, 1], t), number(1, t)),
    "absolute": unary(ops.abs), "atan": unary(ops.atan),
    "asin": unary(ops.asin), "acos": unary(ops.acos), "hsigmoid": unary(ops.hsigmoid),
    "tangent": unary(ops.tan), "ceiling": unary(ops.ceiling),
    "round half to even": unary(lambda x: ops.round(x, "half_to_even")),
    "round half away": unary(lambda x: ops.round(x, "half_away_from_zero")),
    "selu": lambda t: ops.selu(given([1, 50, 1, 1], t), number(1, t), number(1, t)),
    "hard sigmoid": lambda t: ops.hard_sigmoid(
        given([1, 50, 1, 1], t), number(0.2, t), number(0.5, t)
    ),
    "prelu": lambda t: ops.prelu(given([1, 50, 1, 1], t), number(0.01, t, [50])),
    "softmax": unary(lambda x: ops.softmax(x, 3), 1, 12, 2, 148),
    "log softmax": unary(lambda x: ops.log_softmax(x, 1), 1, 20, 256),
    "convolution": lambda t: ops.convolution(
        given([1, 16, 64], t), given([4, 16, 5], t), [3], [3], [2], [2]
    ),
    "group convolution": lambda t: ops.group_convolution(
        given([1, 16, 30], t), given([2, 4, 8, 3], t), [1], [2], [2], [2]
    ),
    "group normalization": lambda t: ops.group_normalization(
        given([4, 4, 16, 16], t), given([4], t), given([4], t), 2, 1e-4
    ),
    "batch normalization": lambda t: ops.batch_norm_inference(
        given([5, 7, 6, 3], t), *(number(1, t, [7]) for _ in range(4)), 0.001
    ),
    "adaptive average": lambda t: ops.adaptive_avg_pool(given([1, 128, 32, 64], t), whole(3, 3)),
    "adaptive maximum": lambda t: ops.adaptive_max_pool(given([2, 3, 7], t), whole(3), "i32"),
    "shuffle channels": unary(lambda x: ops.shuffle_channels(x, 1, 4), 3, 12, 28, 28),
    "matrix product": binary(
        lambda a, b: ops.matmul(a, b, False, False), (1, 2, 5, 16), (1, 2, 16, 4)
    ),
    "local normalization": unary(
        lambda x: ops.lrn(x, whole(1), 9.9e-5, 0.75, 1.0, 5), 1, 64, 56, 56
    ),
    "fake quantization": lambda t: ops.fake_quantize(
        given([1, 3, 10, 10], t), *(number(value, t, [1]) for value in (0, 255, 0, 255)), 255
    ),
    "inverse": unary(lambda x: ops.inverse(x, adjoint=False), 1, 10, 2, 2),
    "Fourier transform": unary(lambda x: ops.rdft(x, whole(0, 1)), 10, 4, 8),
    "sum": binary(ops.add, *PAIRS), "product": binary(ops.multiply, *PAIRS),
    "difference": binary(ops.subtract, *PAIRS), "quotient": binary(ops.divide, *PAIRS),
    "power": binary(ops.power, *PAIRS), "floor mod": binary(ops.floor_mod, *PAIRS),
    "squared difference": binary(ops.squared_difference, *PAIRS),
    "minimum": binary(ops.minimum, *PAIRS), "maximum": binary(ops.maximum, *PAIRS),
    "equal": binary(ops.equal, *PAIRS), "not equal": binary(ops.not_equal, *PAIRS),
    "less": binary(ops.less, *PAIRS), "less or equal": binary(ops.less_equal, *PAIRS),
    "greater": binary(ops.greater, *PAIRS), "greater or equal": binary(ops.greater_equal, *PAIRS),
    "reduced maximum": reduced(ops.reduce_max), "reduced minimum": reduced(ops.reduce_min),
    "reduced mean": reduced(ops.reduce_mean), "reduced sum": reduced(ops.reduce_sum),
    "reduced product": reduced(ops.reduce_prod), "reduced L1": reduced(ops.reduce_l1),
    "reduced L2": reduced(ops.reduce_l2),
    "choice": lambda t: ops.select(given([3, 2, 3, 7, 3], "boolean"), given([3, 2, 3, 7, 3], t),
                                   given([3, 2, 3, 7, 3], t)),
    "clamp": unary(lambda x: ops.clamp(x, -1.0, 1.0)), "negative": unary(ops.negative),
    "average of pools": unary(
        lambda x: ops.avg_pool(x, [2, 2], [0, 0], [0, 0], [3, 3], True), 1, 3, 30, 30
    ),
    "normalized": unary(lambda x: ops.mvn(x, whole(2, 3), True, 1e-4, "inside_sqrt"), 1, 3, 8, 9),
    "normalized by L2": unary(
        lambda x: ops.normalize_l2(x, whole(1), 1e-9, "max"), 1, 8, 24, 64
    ),
    "cumulative sum": unary(lambda x: ops.cum_sum(x, np.int64(-1), True, True), 5, 14, 5, 7),
    "greatest": unary(lambda x: ops.topk(x, np.int64(5), 1, "max", "value"), 5, 5, 5),
    "sampled on a grid": lambda t: ops.grid_sample(
        given([2, 2, 3, 4], t), given([2, 2, 2, 2], t), {"mode": "bilinear"}
    ),
}  # fmt: skip

# Moved, not computed with: bytes in another order, without a limit on the type.
MOVED = {
    "transposed": unary(lambda x: ops.transpose(x, whole(0, 3, 1, 2)), 1, 3, 100, 100),
    "tiled": unary(lambda x: ops.tile(x, whole(1, 2, 1, 3)), 1, 4, 3, 2),
    "split": unary(lambda x: ops.split(x, np.int64(1), 2), 6, 6, 12, 24),
    "split by lengths": unary(
        lambda x: ops.variadic_split(x, np.int64(3), whole(1, 3)), 1, 144, 30, 4
    ),
    "squeezed": unary(lambda x: ops.squeeze(x, whole(1)), 2, 1, 3, 4),
    "unsqueezed": unary(lambda x: ops.unsqueeze(x, whole(0)), 1, 2, 3, 4),
    "reshaped": unary(lambda x: ops.reshape(x, whole(10, 0, 100), True), 10, 10, 10, 10),
    "joined": binary(lambda a, b: ops.concat([a, b], 1), (1, 16, 10, 10), (1, 8, 10, 10)),
    "padded": lambda t: ops.pad(
        given([1, 5, 10, 11], t), whole(0, 3, 0, 1), whole(0, 3, 2, 4), "constant", number(-1, t)
    ),
    "sliced": unary(lambda x: ops.slice(x, whole(4), whole(10), whole(2), whole(0)), 16),
    "sliced by strides": unary(
        lambda x: ops.strided_slice(
            x, whole(0, 0, 1, 0), whole(1, 32, 12, 64), whole(1, 1, 1, 1), [1, 1, 0, 1],
            [1, 1, 1, 1]
        ), 1, 32, 12, 64
    ),
    "gathered": unary(lambda x: ops.gather(x, whole(0, 3, 2, 1), np.int64(2)), 5, 6, 7, 8),
    "gathered by place": lambda t: ops.gather_nd(given([5, 7, 3], t), given([5, 1], "i32"), 1),
    "gathered elements": lambda t: ops.gather_elements(
        given([3, 7, 7], t), given([3, 7, 7], "i32"), 0
    ),
    "scattered": lambda t: ops.scatter_nd_update(
        given([4, 4, 4], t), given([2, 1], "i32"), given([2, 4, 4], t)
    ),
    "scattered elements": lambda t: ops.scatter_elements_update(
        given([2, 3, 4], t), given([1, 3, 1], "i32"), given([1, 3, 1], t), np.int64(1)
    ),
    "scattered rows": lambda t: ops.scatter_update(
        given([10, 16, 12, 15], t), given([8], "i32"), given([8, 16, 12, 15], t), np.int64(0)
    ),
    "broadcast": unary(lambda x: ops.broadcast(x, whole(2, 3, 6)), 3, 1),
    "rolled": unary(lambda x: ops.roll(x, whole(10), whole(1)), 4, 16, 3),
    "depth to space": unary(lambda x: ops.depth_to_space(x, "blocks_first", 2), 1, 4, 3, 3),
    "space to depth": unary(lambda x: ops.space_to_depth(x, "blocks_first", 2), 1, 1, 4, 4),
    "reversed": lambda t: ops.reverse_sequence(given([3, 10, 12], t), given([3], "i32"), 0, 1),
}  # fmt: skip

ACCEPTED = {
    **COMPUTED, **MOVED,
    "interpolation": lambda t: ops.interpolate(
        given([1, 10, 30, 30], t), whole(40, 40), "linear_onnx", "sizes", axes=whole(2, 3)
    ),
    "pooled maximum": lambda t: ops.max_pool(
        given([1, 3, 30, 30], t), [1, 1], [1, 1], [0, 0], [0, 0], [3, 3]
    ),
    "transposed convolution": lambda t: ops.convolution_backprop_data(
        given([1, 3, 30, 30], t), given([3, 16, 3, 3], t), [1, 1]
    ),
    "lstm cell": lambda t: ops.lstm_cell(
        given([1, 512], t), given([1, 128], t), given([1, 128], t), given([512, 512], t),
        given([512, 128], t), given([512], t), 128
    ),
    "gru cell": lambda t: ops.gru_cell(
        given([1, 30], t), given([1, 10], t), given([30, 30], t), given([30, 10], t),
        given([30], t), 10
    ),
    "batch to space": lambda t: ops.batch_to_space(
        given([4, 1, 2, 2], t), whole(1, 1, 2, 2), whole(0, 0, 0, 0), whole(0, 0, 0, 0)
    ),
    "space to batch": lambda t: ops.space_to_batch(
        given([1, 1, 4, 4], t), whole(1, 1, 2, 2), whole(0, 0, 0, 0), whole(0, 0, 0, 0)
    ),
    "bucketized": lambda t: ops.bucketize(given([1, 20, 20], t), given([100], t), "i32", False),
    "patches": lambda t: ops.extract_image_patches(
        given([1, 1, 10, 10], t), [3, 3], [5, 5], [1, 1], "valid"
    ),
    "or of all": lambda t: ops.reduce_logical_or(given([2, 9], "boolean"), whole(1), True),
    "and of all": lambda t: ops.reduce_logical_and(given([2, 9], "boolean"), whole(1), True),
    "shape": lambda t: ops.shape_of(given([1, 2, 3], t)),
    "modulo": binary(ops.mod, *PAIRS),
    "bag of embeddings": lambda t: ops.embedding_bag_offsets_sum(
        given([5, 6], t), np.array([0, 1, 2, 2, 3], np.int32), np.array([0, 2], np.int32)
    ),
    "negation": lambda t: ops.logical_not(given([1, 2, 4], "boolean")),
    "conjunction": lambda t: ops.logical_and(*(given([2, 200], "boolean") for _ in range(2))),
    "disjunction": lambda t: ops.logical_or(*(given([2, 200], "boolean") for _ in range(2))),
    "one of two": lambda t: ops.logical_xor(*(given([2, 200], "boolean") for _ in range(2))),
    "one hot": lambda t: ops.one_hot(
        given([2, 3], "i32"), np.int64(3), number(1, t), number(0, t), 1
    ),
    "sum of int32": lambda t: COMPUTED["sum"]("i32"),
    "comparison of int32": lambda t: COMPUTED["less"]("i32"),
    "converted": lambda t: ops.convert(given([1, 2, 3, 4], t), "i32"),
}  # fmt: skip


# Computed with in any type, by the source's rule for its operands.
UNLIMITED = {
    "floor mod", "minimum", "maximum", "reduced maximum", "reduced minimum", "reduced mean",
    "reduced sum", "reduced product", "reduced L1", "reduced L2", "clamp", "normalized",
    "normalized by L2", "cumulative sum", "greatest", "sampled on a grid",
}  # fmt: skip
# Of an opset that no front end has: passes of OpenVINO make them, RMSFusion of a root mean square
# and ConvertNMS9ToNMSIEInternal of NonMaxSuppression.
MADE_BY_PASSES = {"NonMaxSuppressionIEInternal", "RMS"}
# Inputs that the source reads as a number of the model, and the way it reads them.
CONSTANT = {
    "local normalization": 1, "normalized": 1, "transposed": 1, "tiled": 1, "split": 1,
    "squeezed": 1, "padded": 3, "rolled": 1,
}  # fmt: skip


def models(table, dtype="f16"):
    for name, make in table.items():
        yield name, model_of(make(dtype))


def model_of(node):
    stack, parameters = [node], {}
    while stack:
        current = stack.pop()
        if current.get_type_name() == "Parameter":
            parameters[current.get_name()] = current
        stack += [source.get_node() for source in current.input_values()]
    return ov.Model(node.outputs(), list(parameters.values()), "tested")


def refused(model, generation="4000"):
    found = check_operations(model, generation=generation, release="")
    return {one.rule for one in found if one.verdict == "refused"}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_the_compiler_is_tested_with_is_accepted(generation):
    found = {name: refused(model, generation) for name, model in models(ACCEPTED)}
    assert {name: rules for name, rules in found.items() if rules} == {}


def test_bfloat16_is_refused_where_it_is_computed_with_and_nowhere_else():
    found = {name: refused(model) for name, model in models(COMPUTED, "bf16")}
    assert {name for name, rules in found.items() if not rules} == UNLIMITED
    assert {rule for rules in found.values() for rule in rules} == {"operand types"}
    moved = {name for name, model in models(MOVED, "bf16") if refused(model)}
    assert moved == {"depth to space", "reversed", "space to depth"}


@pytest.mark.parametrize("name", CONSTANT)
def test_number_that_becomes_an_input_is_refused(name):
    model, index = model_of(ACCEPTED[name]("f16")), CONSTANT[name]
    node = next(one for one in model.get_ordered_ops() if one.get_input_size())
    source = node.input_value(index)
    assert source.get_node().get_type_name() == "Constant"
    other = ops.parameter(list(source.get_shape()), source.get_element_type())
    node.input(index).replace_source_output(other.output(0))
    model.add_parameters([other])
    model.validate_nodes_and_infer_types()
    assert refused(model) == {"constant inputs"}


def test_versions_that_the_importer_lacks_are_refused():
    older = opset1.reshape(given([2, 3]), whole(3, 2), True)
    assert refused(model_of(older)) == set()
    newer = opset15.slice_scatter(
        given([15, 5]), given([7, 5]), whole(0), whole(14), whole(2), whole(0)
    )
    assert refused(model_of(newer)) == {"operation types"}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_rarer_operations_that_the_compiler_is_tested_with_are_accepted(rarer, generation):
    found = {name: refused(model_of(make("f16")), generation) for name, make in rarer.items()}
    assert {name: rules for name, rules in found.items() if rules} == {}


def test_a_program_inside_an_operation_is_checked():
    value, inner = given([3]), given([3])
    node = ops.loop(ops.constant(whole(3)), ops.constant(np.array([True])))
    again, last = (opset15.result(one) for one in (np.array([True]), ops.is_inf(inner)))
    node.set_special_body_ports([-1, 0])
    node.set_function(ov.Model([again, last], [inner], "body"))
    node.set_invariant_input(inner, value.output(0))
    node.get_iter_value(last.output(0), -1)
    assert refused(model_of(node)) == {"operation types"}


def test_all_operations_that_the_importer_takes_and_a_front_end_makes_are_among_these(rarer):
    taken = {row["type"] for row in source_rules("").content["operations"]}
    made = [*(model for _, model in models(ACCEPTED))]
    made += [model_of(make("f16")) for make in rarer.values()]
    kinds = {node.get_type_name() for model in made for node in model.get_ops()}
    assert taken - kinds == MADE_BY_PASSES
