"""Findings on whole programs."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest

from npu_compiler.npu_rules import operations as module
from npu_compiler.npu_rules.operations import check_operations
from npu_compiler.npu_rules.source_rules import GENERATIONS, source_rules


@pytest.mark.parametrize("names, text", [(["a"], "a"), (list("abcde"), "a, b, c and 2 more")])
def test_long_lists_are_cut(names, text):
    assert module._some(names) == text


def given(shape, dtype="f16"):
    return ops.parameter(shape, getattr(ov.Type, dtype))


def model_of(node):
    stack, parameters = [node], {}
    while stack:
        current = stack.pop()
        if current.get_type_name() == "Parameter":
            parameters[current.get_name()] = current
        stack += [source.get_node() for source in current.input_values()]
    return ov.Model([node.output(0)], list(parameters.values()), "planted")


def refused(node, generation="4000"):
    found = check_operations(model_of(node), generation=generation)
    return {(one.rule, one.operation) for one in found if one.verdict == "refused"}


def four(dtype="f16"):
    return given([1, 5, 10, 11], dtype)


def whole(*values):
    return np.array(values, np.int64)


# Configurations of tests/functional/shared_tests_instances/single_layer_tests in the compiler's
# source, at the commit of the rules: element types, shapes and attributes that it is tested with.
TESTED = {
    "transpose": lambda: ops.transpose(given([50, 100]), np.array([1, 0])),
    "transpose of 4": lambda: ops.transpose(given([1, 3, 100, 100]), np.array([0, 3, 1, 2])),
    "softmax of 3": lambda: ops.softmax(given([1, 4300, 2]), 2),
    "softmax of 4": lambda: ops.softmax(given([1, 12, 2, 148]), 3),
    "matmul": lambda: ops.matmul(
        given([1, 2, 5, 16], "f32"), given([1, 2, 16, 4], "f32"), False, False
    ),
    "matmul transposed": lambda: ops.matmul(given([8, 64, 76]), given([64, 4]), True, False),
    "tile of bytes": lambda: ops.tile(given([1, 4, 3, 2], "u8"), whole(1, 2, 1, 3)),
    "split": lambda: ops.split(given([6, 6, 12, 24], "f32"), 1, 2),
    "one hot": lambda: ops.one_hot(
        given([2, 3], "i32"), np.int64(3), np.float16(1), np.float16(0), 1
    ),
    "cumulative sum": lambda: ops.cum_sum(
        given([5, 14, 5, 7], "f32"), np.int64(-1), True, True
    ),
    "top k": lambda: ops.topk(given([5, 5, 5], "f32"), np.int64(5), 1, "max", "value"),
    "pad": lambda: ops.pad(
        four(), whole(0, 3, 0, 1), whole(0, 3, 2, 4), "constant", np.float16(-1)
    ),
    "pad by reflection": lambda: ops.pad(
        four("f32"), whole(0, 0, 2, 0), whole(0, 1, 0, 3), "reflect"
    ),
}  # fmt: skip

# Each breaks one rule in one operation.
PLANTED = {
    "places searched": (
        lambda: ops.search_sorted(given([2, 3]), given([2, 3])),
        "operation types", "SearchSorted (opset15)",
    ),
    "tangent": (lambda: ops.tan(given([3])), "operation types", "Tan (opset1)"),
    "variable order": (
        lambda: ops.transpose(given([2, 3]), given([2], "i64")),
        "constant inputs", "Transpose (opset1)",
    ),
    "choice between bytes": (
        lambda: ops.select(given([3], "boolean"), given([3], "u8"), given([3], "u8")),
        "operand types", "Select (opset1)",
    ),
    "product of int64": (
        lambda: ops.matmul(given([2, 3], "i64"), given([3, 2], "i64"), False, False),
        "operand types", "MatMul (opset1)",
    ),
    "channels of 3 dimensions": (
        lambda: ops.shuffle_channels(given([1, 4, 5]), 1, 2),
        "operand ranks", "ShuffleChannels (opset1)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", TESTED)
def test_what_the_compiler_is_tested_with_is_accepted(name, generation):
    assert refused(TESTED[name](), generation) == set()


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_refused_by_the_rule_that_it_breaks(name):
    make, rule, operation = PLANTED[name]
    assert refused(make()) == {(rule, operation)}


def test_refusal_says_where_the_rule_was_read():
    found = check_operations(model_of(PLANTED["variable order"][0]()), generation="4000")
    (refusal,) = [one for one in found if one.verdict == "refused"]
    commit = source_rules().content["commit"][:12]
    assert refusal.source.startswith("src/vpux_compiler/src/dialect/IE/IR/ops/transpose.cpp:")
    assert refusal.source.endswith(f" at {commit}")
    assert "Make it a constant" in refusal.detail


def test_skipped_tests_of_a_generation_leave_its_operation_unknown():
    def unknown(generation):
        node = ops.dft(given([4, 4, 2], "f32"), np.array([0, 1]))
        found = check_operations(model_of(node), generation=generation)
        return [one.operation for one in found if one.verdict == "unknown"]

    assert unknown("4000") == ["DFT (opset7)"]
    assert unknown("3720") == []


def test_model_that_is_checked_stays_as_it_is():
    model = model_of(ops.relu(ops.transpose(given([2, 3]), np.array([1, 0]))))
    before = [node.get_name() for node in model.get_ordered_ops()]
    check_operations(model, generation="4000")
    assert [node.get_name() for node in model.get_ordered_ops()] == before


def test_operands_of_sizes_that_vary_are_left_to_the_rule_of_static_shapes():
    node = ops.broadcast(given([1]), given([2], "i64"))
    assert refused(node) == set()


@pytest.mark.parametrize(
    "make, broken", [(ops.relu, set()), (ops.tan, {("operation types", "Tan (opset1)")})]
)
def test_operations_inside_a_loop_are_compared_too(make, broken):
    state, row = given([1, 3], "f32"), given([1, 3], "f32")
    kept = ops.select(ops.convert(make(row), ov.Type.boolean), row, state)
    body = ov.Model([ops.result(kept)], [state, row], "body")
    loop = ops.tensor_iterator()
    loop.set_function(body)
    first, rows = given([1, 3], "f32"), given([5, 3], "f32")
    after = body.get_results()[0].output(0)
    loop.set_merged_input(state, first.output(0), after)
    loop.set_sliced_input(row, rows.output(0), 0, 1, 1, -1, 0)
    model = ov.Model([loop.get_iter_value(after, -1)], [first, rows], "looped")
    found = check_operations(model, generation="4000")
    assert {(one.rule, one.operation) for one in found if one.verdict == "refused"} == broken
