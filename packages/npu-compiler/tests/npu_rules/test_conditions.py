"""Conditions on single operations: each mutation is refused by its rule, at its line."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset2 as opset2
import openvino.opset8 as opset8
import openvino.opset15 as ops
import pytest

from npu_compiler.npu_rules.operations import node_refusals
from npu_compiler.npu_rules.source_rules import source_rules


def given(shape, dtype="f16"):
    return ops.parameter(shape, getattr(ov.Type, dtype))


def whole(*values):
    return np.array(values, np.int64)


def index(*shape):
    return given(list(shape), "i64")


def number(value, shape=(), dtype="f16"):
    return ops.constant(np.full(shape, value), getattr(ov.Type, dtype))


def blocks(make, *, last=None):
    """Of (batch, 1, 4, 4), with numbers that come to be an input one after the other."""
    numbers = [whole(1, 1, 2, 2), whole(0, 0, 0, 0), whole(0, 0, 0, 0)]
    if last is not None:
        numbers[last] = index(4)
    return make(given([4, 1, 4, 4]), *numbers)


def cell(**options):
    return ops.lstm_cell(
        given([1, 5]), given([1, 4]), given([1, 4]), given([16, 5]), given([16, 4]), given([16]),
        4, **options
    )  # fmt: skip


def gated(**options):
    return ops.gru_cell(
        given([1, 5]), given([1, 4]), given([12, 5]), given([12, 4]), given([12]), 4, **options
    )


def sequence(lengths, **options):
    states = [given([2, 1, 4]), given([2, 1, 4])]
    weights = [given([1, 16, 5]), given([1, 16, 4]), given([1, 16])]
    return ops.lstm_sequence(given([2, 3, 5]), *states, lengths, *weights, 4, "forward", **options)


def gated_sequence(lengths, direction="forward", **options):
    count = 2 if direction == "bidirectional" else 1
    weights = [given([count, 12, 5]), given([count, 12, 4]), given([count, 12])]
    return ops.gru_sequence(
        given([2, 3, 5]), given([2, count, 4]), lengths, *weights, 4, direction, **options
    )


def deformed(**options):
    group, deformable = options.get("group", 1), options.get("deformable_group", 1)
    offsets, mask = given([1, 18 * deformable, 4, 4]), given([1, 9 * deformable, 4, 4])
    return opset8.deformable_convolution(
        given([1, 2, 4, 4]), offsets, given([4, 2 // group, 3, 3]), [1, 1], [1, 1], [1, 1], [1, 1],
        mask=mask if options.pop("has_mask", True) else None, bilinear_interpolation_pad=True,
        **options,
    )  # fmt: skip


def looped(count):
    value, inner = given([3]), given([3])
    node = ops.loop(count, ops.constant(np.array([True])))
    again, last = (ops.result(one) for one in (np.array([True]), ops.exp(inner)))
    node.set_special_body_ports([-1, 0])
    node.set_function(ov.Model([again, last], [inner], "body"))
    node.set_invariant_input(inner, value.output(0))
    node.get_iter_value(last.output(0), -1)
    return node


REDUCTIONS = (ops.reduce_l1, ops.reduce_l2, ops.reduce_max, ops.reduce_mean, ops.reduce_min,
              ops.reduce_prod, ops.reduce_sum)  # fmt: skip

# Name -> accepted and refused examples, the broken rule, and the file that has it.
MUTATED = {
    "sixteen dimensions": (
        lambda: ops.relu(given([1] * 15)), lambda: ops.relu(given([1] * 16)),
        "operand ranks", "dim.hpp",
    ),
    **{
        f"axes of {make.__name__}": (
            lambda make=make: make(given([2, 3]), whole(1), True),
            lambda make=make: make(given([2, 3]), index(1), True),
            "constant inputs", "reduce_infer.cpp",
        )
        for make in REDUCTIONS
    },
    **{
        f"axes of {make.__name__}": (
            lambda make=make: make(given([2, 3], "boolean"), whole(1), True),
            lambda make=make: make(given([2, 3], "boolean"), index(1), True),
            "constant inputs", "reduce_infer.cpp",
        )
        for make in (ops.reduce_logical_and, ops.reduce_logical_or)
    },
    **{
        f"{name} of batches to space": (
            lambda: blocks(ops.batch_to_space), lambda at=at: blocks(ops.batch_to_space, last=at),
            "constant inputs", "batch_to_space.cpp",
        )
        for at, name in enumerate(("blocks", "begins", "ends"))
    },
    **{
        f"{name} of space to batches": (
            lambda: blocks(ops.space_to_batch), lambda at=at: blocks(ops.space_to_batch, last=at),
            "constant inputs", "space_to_batch.cpp",
        )
        for at, name in enumerate(("blocks", "begins", "ends"))
    },
    **{
        f"{name} of {make.__name__}": (
            lambda make=make: make(given([4, 4, 2]), whole(0), whole(4)),
            lambda make=make, at=at: make(
                given([4, 4, 2]), *(index(1) if at == one else whole(0) for one in range(2))
            ),
            "constant inputs", "fft_ops_utils.hpp",
        )
        for make in (ops.dft, ops.idft, ops.rdft, ops.irdft)
        for at, name in enumerate(("axes", "sizes"))
    },
    **{
        f"size of {make.__name__}": (
            lambda make=make: make(given([1, 3, 8, 8]), whole(2, 2)),
            lambda make=make: make(given([1, 3, 8, 8]), index(2)),
            "constant inputs", f"{make.__name__.replace('_pool', '_pool.cpp')}",
        )
        for make in (ops.adaptive_avg_pool, ops.adaptive_max_pool)
    },
    "depth": (
        lambda: ops.one_hot(given([2], "i32"), np.int64(3), np.float16(1), np.float16(0), 1),
        lambda: ops.one_hot(given([2], "i32"), index(), np.float16(1), np.float16(0), 1),
        "constant inputs", "onehot.cpp",
    ),
    "how many of the greatest": (
        lambda: ops.topk(given([2, 5]), np.int64(2), 1, "max", "value"),
        lambda: ops.topk(given([2, 5]), index(), 1, "max", "value"),
        "constant inputs", "topk.cpp",
    ),
    "axes of a norm": (
        lambda: ops.normalize_l2(given([1, 8, 4, 4]), whole(1), 1e-9, "max"),
        lambda: ops.normalize_l2(given([1, 8, 4, 4]), index(1), 1e-9, "max"),
        "constant inputs", "normalize_l2.cpp",
    ),
    **{
        f"{name} of a diagonal": (
            lambda: ops.eye(whole(3), whole(4), whole(0), "f16", whole(2)),
            lambda at=at: ops.eye(
                *(index(1) if at == one else whole(3) for one in range(2)), whole(0), "f16",
                index(1) if at == 3 else whole(2)
            ),
            "constant inputs", "eye.cpp",
        )
        for at, name in ((0, "rows"), (1, "columns"), (3, "batch"))
    },
    "axes of an unsqueeze": (
        lambda: ops.unsqueeze(given([2, 3]), whole(1)),
        lambda: ops.unsqueeze(given([2, 3]), index(1)),
        "constant inputs", "unsqueeze.cpp",
    ),
    "size of a transposed convolution": (
        lambda: ops.convolution_backprop_data(
            given([1, 3, 8, 8]), given([3, 4, 3, 3]), [1, 1], whole(10, 10)
        ),
        lambda: ops.convolution_backprop_data(
            given([1, 3, 8, 8]), given([3, 4, 3, 3]), [1, 1], index(2)
        ),
        "constant inputs", "convolution_backprop_data.cpp",
    ),
    "axes of a roll": (
        lambda: ops.roll(given([2, 3]), whole(1), whole(1)),
        lambda: ops.roll(given([2, 3]), whole(1), index(1)),
        "constant inputs", "roll.cpp",
    ),
    "axis of written rows": (
        lambda: ops.scatter_update(given([4, 3]), index(2), given([2, 3]), np.int64(0)),
        lambda: ops.scatter_update(given([4, 3]), index(2), given([2, 3]), index()),
        "constant inputs", "scatter_update.cpp",
    ),
    "size of what is drawn": (
        lambda: ops.random_uniform(whole(2, 3), number(0), number(1), "f16"),
        lambda: ops.random_uniform(index(2), number(0), number(1), "f16"),
        "constant inputs", "IE.cpp",
    ),
    "rounds of a loop": (
        lambda: looped(ops.constant(whole(3))), lambda: looped(index(1)),
        "constant inputs", "loop.cpp",
    ),
    "clipped cell": (cell, lambda: cell(clip=1.0), "attributes", "IE.cpp"),
    "activations of a cell": (
        cell, lambda: cell(activations=["relu", "tanh", "tanh"]), "attributes", "IE.cpp"
    ),
    "clipped gated cell": (gated, lambda: gated(clip=1.0), "attributes", "IE.cpp"),
    "activations of a gated cell": (
        gated, lambda: gated(activations=["relu", "tanh"]), "attributes", "IE.cpp"
    ),
    "clipped sequence": (
        lambda: sequence(whole(3, 3)), lambda: sequence(whole(3, 3), clip=1.0),
        "attributes", "IE.cpp",
    ),
    "activations of a sequence": (
        lambda: sequence(whole(3, 3)),
        lambda: sequence(whole(3, 3), activations=["relu", "tanh", "tanh"]),
        "attributes", "IE.cpp",
    ),
    "lengths that are an input": (
        lambda: sequence(whole(3, 3)), lambda: sequence(index(2)), "constant inputs", "IE.cpp"
    ),
    "lengths that differ": (
        lambda: sequence(whole(3, 3)), lambda: sequence(whole(3, 2)), "constant inputs", "IE.cpp"
    ),
    "clipped gated sequence": (
        lambda: gated_sequence(whole(3, 3)), lambda: gated_sequence(whole(3, 3), clip=1.0),
        "attributes", "IE.cpp",
    ),
    "activations of a gated sequence": (
        lambda: gated_sequence(whole(3, 3)),
        lambda: gated_sequence(whole(3, 3), activations=["relu", "tanh"]),
        "attributes", "IE.cpp",
    ),
    "gated lengths that are an input": (
        lambda: gated_sequence(whole(3, 3)), lambda: gated_sequence(index(2)),
        "constant inputs", "IE.cpp",
    ),
    "gated lengths that differ": (
        lambda: gated_sequence(whole(3, 3)), lambda: gated_sequence(whole(3, 2)),
        "constant inputs", "IE.cpp",
    ),
    "gated sequence both ways": (
        lambda: gated_sequence(whole(3, 3), "reverse"),
        lambda: gated_sequence(whole(3, 3), "bidirectional"), "attributes", "IE.cpp",
    ),
    "buckets in int64": (
        lambda: ops.bucketize(given([2, 3]), given([4]), "i32"),
        lambda: ops.bucketize(given([2, 3]), given([4]), "i64"), "attributes", "IE.cpp",
    ),
    "deformed without a mask": (
        deformed, lambda: deformed(has_mask=False), "attributes", "deformable_convolution.cpp"
    ),
    "deformed in groups": (
        deformed, lambda: deformed(group=2), "attributes", "deformable_convolution.cpp"
    ),
    "deformed by groups": (
        deformed, lambda: deformed(deformable_group=2), "attributes", "deformable_convolution.cpp"
    ),
    "size of transposed groups": (
        lambda: ops.group_convolution_backprop_data(
            given([1, 4, 8, 8]), given([2, 2, 3, 3, 3]), [1, 1]
        ),
        lambda: ops.group_convolution_backprop_data(
            given([1, 4, 8, 8]), given([2, 2, 3, 3, 3]), [1, 1], whole(10, 10)
        ),
        "attributes", "group_convolution_backprop_data.cpp",
    ),
    "depth of integers to space": (
        lambda: ops.depth_to_space(given([1, 4, 3, 3]), "blocks_first", 2),
        lambda: ops.depth_to_space(given([1, 4, 3, 3], "i32"), "blocks_first", 2),
        "operand types", "depth_to_space.cpp",
    ),
    "depth to space of five dimensions": (
        lambda: ops.depth_to_space(given([1, 8, 3, 3]), "blocks_first", 2),
        lambda: ops.depth_to_space(given([1, 8, 3, 3, 3]), "blocks_first", 2),
        "operand ranks", "convert_depth2space.cpp",
    ),
    "space of integers to depth": (
        lambda: ops.space_to_depth(given([1, 4, 4, 4]), "blocks_first", 2),
        lambda: ops.space_to_depth(given([1, 4, 4, 4], "i32"), "blocks_first", 2),
        "operand types", "space_to_depth.cpp",
    ),
    "integers reversed": (
        lambda: ops.reverse_sequence(given([3, 4]), given([3], "i32"), 0, 1),
        lambda: ops.reverse_sequence(given([3, 4], "i32"), given([3], "i32"), 0, 1),
        "operand types", "reverse_sequence.cpp",
    ),
    "normalized of three dimensions": (
        lambda: opset2.mvn(given([1, 3, 8, 9]), False, True, 1e-4),
        lambda: opset2.mvn(given([1, 3, 8]), False, True, 1e-4), "operand ranks", "mvn.cpp",
    ),
    "space of two dimensions to batches": (
        lambda: ops.space_to_batch(
            given([1, 1, 4]), whole(1, 1, 2), whole(0, 0, 0), whole(0, 0, 0)
        ),
        lambda: ops.space_to_batch(given([1, 4]), whole(1, 2), whole(0, 0), whole(0, 0)),
        "operand ranks", "space_to_batch.cpp",
    ),
    "interpolation of five dimensions": (
        lambda: ops.interpolate(given([1, 2, 3, 4]), whole(6), "nearest", "sizes", axes=whole(2)),
        lambda: ops.interpolate(given([1, 2, 3, 4, 5]), whole(6), "nearest", "sizes",
                                axes=whole(2)),
        "operand ranks", "convert_shape_to_4d.cpp",
    ),
    "transposed convolution of volumes": (
        lambda: ops.convolution_backprop_data(given([1, 3, 8]), given([3, 4, 3]), [1]),
        lambda: ops.convolution_backprop_data(
            given([1, 3, 8, 8, 8]), given([3, 4, 3, 3, 3]), [1, 1, 1]
        ),
        "operand ranks", "convert_transposedconv_to_conv.cpp",
    ),
    "transposed groups of volumes": (
        lambda: ops.group_convolution_backprop_data(given([1, 4, 8]), given([2, 2, 3, 3]), [1]),
        lambda: ops.group_convolution_backprop_data(
            given([1, 4, 8, 8, 8]), given([2, 2, 3, 3, 3, 3]), [1, 1, 1]
        ),
        "operand ranks", "convert_transposedconv_to_conv.cpp",
    ),
    "mask of booleans": (
        lambda: ops.scaled_dot_product_attention(
            *(given([1, 2, 3, 4]) for _ in range(3)), given([3, 3])
        ),
        lambda: ops.scaled_dot_product_attention(
            *(given([1, 2, 3, 4]) for _ in range(3)), given([3, 3], "boolean")
        ),
        "operand types", "scaled_dot_product_attention_decomposition.cpp",
    ),
}  # fmt: skip


def refusals(node):
    return node_refusals(node, generation="4000", release="")


@pytest.mark.parametrize("name", MUTATED)
def test_a_mutation_is_refused_by_the_condition_that_it_breaks(name):
    taken, mutated, rule, file = MUTATED[name]
    assert refusals(taken()) == []
    assert [one.rule for one in refusals(mutated())] == [rule]
    assert f"/{file}" in refusals(mutated())[0].source


def test_every_condition_is_broken_by_a_mutation():
    broken = {
        (one.source, one.operation.partition(" ")[0])
        for _, mutated, _, _ in MUTATED.values()
        for one in refusals(mutated())
    }
    rules = source_rules("")
    for row in rules.content["conditions"]:
        place = row.get("source") or rules.place("conditions", row["line"], row["file"])
        names = {name for source, name in broken if source == place}
        assert names if "most_dimensions" in row else set(row["operations"]) <= names, row
