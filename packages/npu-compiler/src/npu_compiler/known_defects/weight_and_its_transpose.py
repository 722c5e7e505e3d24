"""One matrix as weight of two products, transposed in one: both use the same packing.

The CPU plugin caches packed weights by address and packed shape. The key lacks the transposition,
so both products use the packing of the first.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.known_defects.entry import KnownDefect, Reproducer, put_in_place

__all__ = ["DEFECT"]

_SCALING = {"Multiply": ops.multiply, "Subtract": ops.subtract}


class _Use(NamedTuple):
    product: ov.Node
    constant: Any
    steps: list[ov.Node]  # between the product and the constant


def _avoid(model: ov.Model) -> int:
    """Gives products with the untransposed matrix a separate, transposed copy."""
    uses: dict[tuple[int, int], dict[bool, list[_Use]]] = defaultdict(lambda: defaultdict(list))
    for node in model.get_ops():
        use = _use(node)
        if use is not None:
            rows, columns = list(node.get_input_shape(1))[-2:]
            is_transposed = bool(node.get_attributes()["transpose_b"])
            size = (columns, rows) if is_transposed else (rows, columns)
            uses[size][is_transposed].append(use)
    count = 0
    for both in uses.values():
        for use in both[False] if both[True] else ():
            if any(_is_same(use.constant, other.constant) for other in both[True]):
                _copy_transposed(use)
                count += 1
    return count


def _use(node: ov.Node) -> _Use | None:
    """Returns the source of a product's constant matrix."""
    if node.get_type_name() != "MatMul" or node.input_value(1).get_partial_shape().is_dynamic:
        return None
    shape = list(node.get_input_shape(1))
    if len(shape) < 2 or any(size != 1 for size in shape[:-2]):
        return None
    steps: list[ov.Node] = []
    source = node.input_value(1).get_node()
    while source.get_type_name() != "Constant":
        kind = source.get_type_name()
        is_scaling = kind in _SCALING and _is_one_number(source.input_value(1).get_node())
        if not (is_scaling or kind in ("Convert", "Reshape", "Squeeze", "Unsqueeze")):
            return None
        steps.append(source)
        source = source.input_value(0).get_node()
    if source.get_output_element_type(0).bitwidth < 8:
        return None
    return _Use(node, source, steps)


def _is_one_number(node: Any) -> bool:
    return bool(node.get_type_name() == "Constant" and np.prod(node.get_output_shape(0)) == 1)


def _is_same(one: Any, other: Any) -> bool:
    # Equal constants are merged when a model is written to a file.
    if one.get_instance_id() == other.get_instance_id():
        return True
    kinds = [node.get_output_element_type(0) for node in (one, other)]
    return kinds[0] == kinds[1] and np.array_equal(
        one.data.reshape(-1).view(np.uint8), other.data.reshape(-1).view(np.uint8)
    )


def _copy_transposed(use: _Use) -> None:
    shape = list(use.product.get_input_shape(1))
    # A tensor, because numpy has no bfloat16, and another type would be converted.
    turned = ov.Tensor(
        use.constant.get_output_element_type(0), ov.Shape([*shape[:-2], shape[-1], shape[-2]])
    )
    turned.data[...] = use.constant.data.reshape(shape).swapaxes(-1, -2)
    made: Any = ops.constant(turned)
    for step in reversed(use.steps):
        name = step.get_type_name()
        if name == "Convert":
            made = ops.convert(made, step.get_output_element_type(0))
        elif name in _SCALING:
            made = _SCALING[name](made, step.input_value(1))
    product = use.product
    left, is_left_transposed = product.input_value(0), product.get_attributes()["transpose_a"]
    other = ops.matmul(left, made, bool(is_left_transposed), True)
    put_in_place(product, other)


def _reproducer() -> Reproducer:
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((64, 64)).astype(np.float32)
    weight = ops.constant(matrix)
    given = [ops.parameter([rows, 64], np.float32) for rows in (3, 5)]
    products = [
        ops.matmul(given[0], weight, False, True),
        ops.matmul(given[1], weight, False, False),
    ]
    result = ops.concat(products, 0)
    inputs = [generator.standard_normal((rows, 64)).astype(np.float32) for rows in (3, 5)]
    expected = np.concatenate([inputs[0] @ matrix.T, inputs[1] @ matrix])
    return Reproducer(ov.Model([result], given), inputs, expected)


DEFECT = KnownDefect(
    name="weight-and-its-transpose",
    summary="Two products with one constant matrix, transposed in one of them, use the same "
    "packing, so that one of them is wrong.",
    condition="a square matrix, or one that is viewed so that the packed shapes are equal; the "
    "same constant or, in a model that was read from a file, equal ones",
    devices=("CPU",),
    first=(2026, 4, 1),
    last=(2026, 4, 1),
    report="""\
[CPU] FullyConnected uses wrong packed weights if a constant is used with and without transpose_b

C = Constant {64,64}; MatMul(x, C, transpose_b=true) and MatMul(y, C, transpose_b=false) in one f32
model: one of the results is that of the other's orientation (errors as large as the values). With
two Constants of equal contents it happens after serialize and read_model, which make them one. The
cache of packed weights seems to be asked by address and packed shape; its key lacks the
transposition. Expected: each product with its own packing.""",
    reproducer=_reproducer,
    avoid=_avoid,
)
