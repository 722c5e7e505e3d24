"""Rewrites a static program for its sizes, so that an NPU's compiler makes the most of them.

The rewritings follow the estimates of Intel's compiler (OpenVINO 2026.4.1, 2026-11).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_llm.kv_cache.static_layout import StepSizes
from npu_llm.models.program_form import ProgramForm

__all__ = ["read_by", "specialize"]


def specialize(
    model: ov.Model, *, sizes: StepSizes, caches: Sequence[str], form: ProgramForm
) -> None:
    """Rewrites a program, in place; the same program in the same way, to the names of its calls.

    Args:
        model: with these sizes at its inputs, from npu_llm.capture.weight_inputs.
        sizes: of a step.
        caches: names of the inputs for past keys and values.
        form: that is wanted.
    """
    known = {node.get_friendly_name() for node in model.get_ops()}
    if not sizes.capacity:
        _drop_past(model, caches)
    if sizes.tokens == 1:
        _rotate_by_product(model)
    else:
        _return_masks(model)
        if form.target == "3720":
            _rotate_by_signs(model)
    if form.scales_weights:
        _scale_weights(model)
    model.validate_nodes_and_infer_types()
    made = (node for node in model.get_ordered_ops() if node.get_friendly_name() not in known)
    for number, node in enumerate(made):
        node.set_friendly_name(f"specialized/{node.get_type_name()}_{number}")


def _scale_weights(model: ov.Model) -> None:
    """Applies scales to the weights instead of the products."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Multiply" or not node.get_friendly_name().endswith("/scale"):
            continue
        product, scale = (node.input_value(index).get_node() for index in range(2))
        if product.get_type_name() == "MatMul" and scale.get_type_name() == "Constant":
            scales = np.array(scale.get_data()).reshape(-1, 1)
            weight = ops.multiply(product.input_value(1), ops.constant(scales))
            product.input(1).replace_source_output(weight.output(0))
            node.output(0).replace(product.output(0))


def _drop_past(model: ov.Model, caches: Sequence[str]) -> None:
    """Removes inputs without slots: the compiler's process ends on tensors without elements."""
    names = set(caches)
    for parameter in model.get_parameters():
        if parameter.get_friendly_name() not in names:
            continue
        for node in list(read_by(parameter)):
            kind = node.get_type_name()
            if kind == "Concat":
                (kept,) = (one for one in node.input_values() if 0 not in one.get_shape())
                node.output(0).replace(kept)
            elif kind == "ShapeOf":
                shape = np.array(node.input_value(0).get_shape(), np.int64)
                node.output(0).replace(ops.constant(shape).output(0))
        model.remove_parameter(parameter)


def read_by(parameter: ov.Node) -> Iterator[ov.Node]:
    """Yields what reads an input, through conversions."""
    for target in parameter.output(0).get_target_inputs():
        node = target.get_node()
        if node.get_type_name() == "Convert":
            yield from read_by(node)
        else:
            yield node


def _return_masks(model: ov.Model) -> None:
    """Makes each computed mask a result, too.

    Otherwise the compiler fails to place it where several fused attentions read it
    ("FeasibleAllocation Pass failed").
    """
    masks: dict[int, ov.Output] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Softmax":
            continue
        added = node.input_value(0).get_node()
        if added.get_type_name() == "Add":
            mask = added.input_value(1)
            if mask.get_node().get_type_name() not in ("Parameter", "Constant"):
                masks[mask.get_node().get_instance_id()] = mask
    model.add_results([ops.result(mask) for mask in masks.values()])


def _rotate_by_product(model: ov.Model) -> None:
    """Makes rotary embeddings of one token products with a matrix, which all layers share.

    `x * cos + rotate_half(x) * sin` is x times `diag(cos) + P @ diag(sin)`, where P exchanges the
    halves and negates one. A factor of the scores behind it is taken into the matrix.
    """
    matrices: dict[tuple[int, int, float], ov.Node] = {}
    for node in model.get_ordered_ops():
        found = _rotary(node)
        if found is None:
            continue
        x, cos, sin = found
        factor, last = _factor_behind(node)
        key = (_source(cos), _source(sin), factor)
        if key not in matrices:
            matrices[key] = _rotation(cos, sin, factor)
        product = ops.matmul(x, matrices[key], False, False)
        product.set_friendly_name(last.get_friendly_name())
        last.output(0).replace(product.output(0))


def _rotate_by_signs(model: ov.Model) -> None:
    """Negates half of the sines instead of half of each query and key.

    The compiler of NPU 3720 fuses the common form and then fails ("UnrollPermuteDMA Pass failed").
    """
    signed: dict[int, ov.Node] = {}
    for node in model.get_ordered_ops():
        found = _rotary(node)
        if found is None:
            continue
        _, _, sin = found
        turned = node.input_value(1).get_node()
        negated, first = turned.input_value(0).get_node().input_values()
        if _source(sin) not in signed:
            half = sin.get_partial_shape()[3].get_length() // 2
            signs = np.repeat(np.array([-1, 1], sin.get_element_type().to_dtype()), half)
            signed[_source(sin)] = ops.multiply(sin, ops.constant(signs))
        halves = ops.concat([negated.get_node().input_value(0), first], -1)
        product = ops.multiply(halves, signed[_source(sin)])
        node.input(1).replace_source_output(product.output(0))


def _rotary(node: ov.Node) -> tuple[ov.Output, ov.Output, ov.Output] | None:
    """Returns x, cos and sin of a rotary embedding that ends in a node; None for another node."""
    if node.get_type_name() != "Add":
        return None
    plain, turned = (node.input_value(index).get_node() for index in range(2))
    if not plain.get_type_name() == turned.get_type_name() == "Multiply":
        return None
    halves = turned.input_value(0).get_node()
    x, cos, sin = plain.input_value(0), plain.input_value(1), turned.input_value(1)
    if halves.get_type_name() != "Concat" or not _are_halves(halves, x):
        return None
    sizes = [list(one.get_partial_shape().to_shape()) for one in (x, cos, sin)]
    width = sizes[0][-1]
    is_shared = all(len(size) == 4 and size[:2] == [1, 1] for size in sizes[1:])
    if len(sizes[0]) != 4 or not is_shared or {size[3] for size in sizes[1:]} != {width}:
        return None
    return x, cos, sin


def _are_halves(joined: ov.Node, x: ov.Output) -> bool:
    """Whether a tensor is the second half of x negated, followed by the first."""
    if joined.get_input_size() != 2:
        return False
    negated, first = (joined.input_value(index).get_node() for index in range(2))
    width = x.get_partial_shape()[3].get_length()
    if negated.get_type_name() != "Multiply" or _number(negated.input_value(1)) != -1.0:
        return False
    second = negated.input_value(0).get_node()
    return _is_slice(second, x, width // 2, width) and _is_slice(first, x, 0, width // 2)


def _is_slice(node: ov.Node, x: ov.Output, begin: int, end: int) -> bool:
    if node.get_type_name() != "Slice" or node.input_value(0) != x:
        return False
    given = [_number(node.input_value(index)) for index in range(1, 5)]
    if any(one is None for one in given):
        return False
    start, stop, step, axis = (int(one) for one in given if one is not None)
    width = x.get_partial_shape()[3].get_length()
    return (start, min(stop, width), step, axis % 4) == (begin, end, 1, 3)


def _number(value: ov.Output) -> float | None:
    node = value.get_node()
    if node.get_type_name() != "Constant" or int(np.prod(node.get_output_shape(0))) != 1:
        return None
    return float(np.asarray(node.get_data()).reshape(-1)[0])


def _factor_behind(node: ov.Node) -> tuple[float, ov.Node]:
    """Returns the factor that is all that reads a node, and where it is applied; else 1."""
    readers = [target.get_node() for target in node.output(0).get_target_inputs()]
    if len(readers) == 1 and readers[0].get_type_name() == "Multiply":
        factor = _number(readers[0].input_value(1))
        if factor is not None:
            return factor, readers[0]
    return 1.0, node


def _source(value: ov.Output) -> int:
    """Returns the instance from which layers take a value, each by a call of its own."""
    node = value.get_node()
    while node.get_type_name() in ("Unsqueeze", "Reshape"):
        node = node.input_value(0).get_node()
    return int(node.get_instance_id())


def _rotation(cos: ov.Output, sin: ov.Output, factor: float) -> ov.Node:
    width = cos.get_partial_shape()[3].get_length()
    half = width // 2
    element = cos.get_element_type().to_dtype()
    turn = np.zeros((width, width), element)
    turn[np.arange(half) + half, np.arange(half)] = -factor
    turn[np.arange(half), np.arange(half) + half] = factor
    plain = ops.multiply(ops.constant(np.eye(width, dtype=element) * element.type(factor)), cos)
    return ops.add(plain, ops.multiply(ops.constant(turn), sin))
