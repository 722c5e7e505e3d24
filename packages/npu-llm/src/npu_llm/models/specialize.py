"""Rewrites a static program for its sizes to make it faster on an NPU.

The rewrites follow the estimates of Intel's compiler (OpenVINO 2026.4.1, 2026-11).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_llm.kv_cache.host_inputs import split_host_inputs
from npu_llm.kv_cache.static_layout import StepSizes
from npu_llm.models.program_form import ProgramForm

__all__ = ["read_by", "specialize"]

# Products of integers with massive activations exceed float16's 65,504: they reach 471,000 before
# the last projection of SmolLM2-135M's layers (2026-11). A power of two is exact.
_GUARD = 64.0
_ROWS = 16
# Elementwise calls.
_ELEMENTWISE = frozenset(
    {
        "Add", "Subtract", "Multiply", "Divide", "Power", "Sqrt", "Convert", "Sigmoid", "Swish",
        "Gelu", "Relu", "Tanh", "Exp", "Erf", "HSwish", "SoftPlus",
    }
)  # fmt: skip


def specialize(
    model: ov.Model, *, sizes: StepSizes, caches: Sequence[str], form: ProgramForm
) -> ov.Model | None:
    """Rewrites a program in place; deterministic down to the names of its calls.

    Args:
        model: a program with these input sizes, from npu_llm.capture.weight_inputs.
        sizes: sizes of a step.
        caches: names of the inputs for past keys and values.
        form: the requested form.

    Returns:
        The part that the host runs, see npu_llm.kv_cache.host_inputs; None if there is none.
    """
    known = {node.get_friendly_name() for node in model.get_ops()}
    if not sizes.capacity:
        _drop_past(model, caches)
    if sizes.tokens == 1:
        _rotate_by_product(model)
    elif form.target == "3720":
        _rotate_by_signs(model)
    if sizes.kept < sizes.tokens:
        _select_rows_early(model, sizes.tokens)
    if form.scales_weights:
        _scale_weights(model)
    else:
        _guard_products(model)
        if sizes.tokens == 1:
            _split_products(model)
    model.validate_nodes_and_infer_types()
    host = split_host_inputs(model, ov.Type.f16 if form.target else ov.Type.f32)
    known |= {node.get_friendly_name() for node in model.get_parameters()}
    made = (node for node in model.get_ordered_ops() if node.get_friendly_name() not in known)
    for number, node in enumerate(made):
        node.set_friendly_name(f"specialized/{node.get_type_name()}_{number}")
    return host


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
    """Removes inputs without slots: the compiler crashes on tensors without elements."""
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
    """Yields the readers of an input, looking through conversions."""
    for target in parameter.output(0).get_target_inputs():
        node = target.get_node()
        if node.get_type_name() == "Convert":
            yield from read_by(node)
        else:
            yield node


def _split_products(model: ov.Model) -> None:
    """Multiplies activations of one token, and their scales, as 16 rows.

    One row would become a convolution; its weights and tables need time and space in the program.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Multiply":
            continue
        first, second = node.input_values()
        size = _row_size(first)
        factors = first.get_node(), second.get_node()
        if first == second or any(one.get_type_name() == "Constant" for one in factors):
            continue
        if size != _row_size(second) or size % _ROWS or size == _ROWS:
            continue
        _as_rows(node, size)
        above = [value.get_node() for one in factors for value in one.input_values()[:1]]
        for one in (*factors, *above):  # a scale, or an activation of one
            if one.get_type_name() == "Multiply" and one.get_friendly_name().endswith("/scale"):
                _as_rows(one, size)


def _row_size(value: ov.Output) -> int:
    """Returns the last size of a tensor (1, 1, size); 1 for another shape."""
    shape = list(value.get_partial_shape().to_shape())
    return int(shape[2]) if len(shape) == 3 and shape[:2] == [1, 1] else 1


def _as_rows(node: ov.Node, size: int) -> None:
    shape = np.array(node.get_output_shape(0))
    rows = np.array([1, _ROWS, 1, size // _ROWS])
    product = ops.multiply(*(ops.reshape(one, rows, False) for one in node.input_values()))
    product.set_friendly_name(node.get_friendly_name())
    node.output(0).replace(ops.reshape(product, shape, False).output(0))


def _select_rows_early(model: ov.Model, tokens: int) -> None:
    """Selects the tokens with returned logits before the last layer's products.

    Row-wise calls that are read only for the logits run on the selected tokens.
    """
    for gather in model.get_ordered_ops():
        if gather.get_type_name() != "Gather" or _number(gather.input_value(2)) != 1:
            continue
        rows = gather.input_value(1)
        if not _depends_on(rows, "logits_to_keep") or len(rows.get_shape()) != 1:
            continue
        selected, later = {gather.get_instance_id()}, []
        for node in reversed(model.get_ordered_ops()):
            readers = {
                one.get_node().get_instance_id()
                for output in node.outputs()
                for one in output.get_target_inputs()
            }
            if readers and readers <= selected and _treats_alike(node, tokens):
                selected.add(node.get_instance_id())
                later.append(node)
        known: dict[tuple[int, int], ov.Output] = {}
        for port in (port for node in later for port in node.inputs()):
            value = port.get_source_output()
            number = value.get_node().get_instance_id()
            if _has_rows(value, tokens) and number not in selected:
                key = (number, value.get_index())
                if key not in known:
                    known[key] = ops.gather(value, rows, ops.constant(1)).output(0)
                port.replace_source_output(known[key])
        if later:
            gather.output(0).replace(gather.input_value(0))
    model.validate_nodes_and_infer_types()


def _depends_on(value: ov.Output, name: str) -> bool:
    node = value.get_node()
    if node.get_type_name() == "Parameter":
        return str(node.get_friendly_name()) == name
    return any(_depends_on(one, name) for one in node.input_values())


def _has_rows(value: ov.Output, tokens: int) -> bool:
    return _rank(value) == 3 and value.get_partial_shape()[1] == tokens


def _treats_alike(node: ov.Node, tokens: int) -> bool:
    """Whether each of a node's rows (1, tokens, ...) depends on the same rows of its inputs."""
    kind, inputs = node.get_type_name(), node.input_values()
    if node.get_output_size() != 1 or not _has_rows(node.output(0), tokens):
        return False
    if kind == "MatMul":
        is_plain = not node.get_attributes()["transpose_a"]
        return is_plain and _has_rows(inputs[0], tokens) and _rank(inputs[1]) == 2
    if kind == "ReduceMean":
        return _has_rows(inputs[0], tokens) and _number(inputs[1]) in (-1, 2)
    return kind in _ELEMENTWISE and all(
        _rank(one) < 2 or (_rank(one) == 3 and one.get_partial_shape()[1] in (1, tokens))
        for one in inputs
    )


def _rank(value: ov.Output) -> int:
    return len(value.get_partial_shape())


def _guard_products(model: ov.Model) -> None:
    """Keeps integer products in float16's range before their scale is applied.

    Inputs are divided, and scales multiplied, by a power of two. It is folded into a constant if an
    input is a product with one, such as a norm's weights or another scale, else applied by a
    separate call.
    """
    groups: dict[tuple[int, int], list[ov.Node]] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Multiply" or not node.get_friendly_name().endswith("/scale"):
            continue
        product, scale = (node.input_value(index).get_node() for index in range(2))
        if product.get_type_name() == "MatMul" and scale.get_type_name() == "Constant":
            value = product.input_value(0)
            groups.setdefault((value.get_node().get_instance_id(), value.get_index()), []).append(
                node
            )
    for scaled in groups.values():
        products = [node.input_value(0).get_node() for node in scaled]
        value = products[0].input_value(0)
        if not _shrink(value, {one.get_instance_id() for one in products}):
            smaller = ops.multiply(value, ops.constant(1 / _GUARD, value.get_element_type()))
            for one in products:
                one.input(0).replace_source_output(smaller.output(0))
        for node in scaled:
            _multiply_constant(node.input(1), _GUARD)


def _shrink(value: ov.Output, readers: set[int]) -> bool:
    """Divides a value by the guard in a constant above it; returns whether that was possible."""
    found = {one.get_node().get_instance_id() for one in value.get_target_inputs()}
    node = value.get_node()
    if found != readers or node.get_output_size() != 1:
        return False
    if node.get_type_name() in ("Reshape", "Transpose", "Gather", "Convert"):
        return _shrink(node.input_value(0), {node.get_instance_id()})
    if node.get_type_name() != "Multiply" or node.input_value(0) == node.input_value(1):
        return False
    for port in node.inputs():
        if port.get_source_output().get_node().get_type_name() == "Constant":
            _multiply_constant(port, 1 / _GUARD)
            return True
    return any(_shrink(one, {node.get_instance_id()}) for one in node.input_values())


def _multiply_constant(port: ov.Input, factor: float) -> None:
    constant = port.get_source_output().get_node()
    data = np.array(constant.get_data())
    made = ops.constant(data * data.dtype.type(factor))
    made.set_friendly_name(f"{constant.get_friendly_name()}/guarded")
    port.replace_source_output(made.output(0))


def _rotate_by_product(model: ov.Model) -> None:
    """Converts rotary embeddings of one token to products with a matrix shared by all layers.

    `x * cos + rotate_half(x) * sin` is x times `diag(cos) + P @ diag(sin)`, where P exchanges the
    halves and negates one. A following factor of the scores is folded into the matrix.
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
    """Returns x, cos and sin of a rotary embedding that ends in a node; None for other nodes."""
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
    """Returns a factor that is the only reader of a node, and its location; else 1."""
    readers = [target.get_node() for target in node.output(0).get_target_inputs()]
    if len(readers) == 1 and readers[0].get_type_name() == "Multiply":
        factor = _number(readers[0].input_value(1))
        if factor is not None:
            return factor, readers[0]
    return 1.0, node


def _source(value: ov.Output) -> int:
    """Returns the instance of a value that layers obtain by separate calls."""
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
