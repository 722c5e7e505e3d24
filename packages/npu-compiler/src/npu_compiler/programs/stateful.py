"""Turns inputs that feed back outputs of the previous run, such as a KV cache, into model state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import openvino as ov
import openvino.opset15 as ops
from openvino.op.util import Variable, VariableInfo

from npu_compiler.errors import OptionError

__all__ = ["StateVariable", "make_stateful"]


@dataclass(frozen=True)
class StateVariable:
    """A variable's unique name, its input, and the output with its next value."""

    name: str
    input_index: int
    output_index: int


def make_stateful(
    model: ov.Model,
    variables: Sequence[StateVariable],
    *,
    batch_input: int = 0,
    length_axis: int = 2,
    reorder_input: str = "beam_idx",
) -> ov.Model:
    """Returns a model that keeps the given inputs as variables.

    A variable starts with the batch size of the run, its own sizes, and length 0. Each run first
    gathers the rows of every variable in the order of the new int32 input `reorder_input` (batch,),
    so that beam search can reorder a cache without copying it. The CPU plugin fuses attention with
    the cache only if the model has both the initial value and the gather (OpenVINO 2026.4.1).

    Args:
        model: must not be used afterwards; the result shares its nodes.
        variables: inputs of shape (batch, ..., length, ...), with outputs of the same shape.
        batch_input: an input with the batch size as its first size.
        length_axis: the axis along which the variables grow.
        reorder_input: name of the input that is added at the end.

    Raises:
        OptionError: [state-shape] if a variable has a dynamic size other than batch and length, or
            its output's type differs from its input's.
    """
    parameters, results = list(model.get_parameters()), list(model.get_results())
    order = ops.parameter(ov.PartialShape([-1]), ov.Type.i32, name=reorder_input)
    order.get_output_tensor(0).set_names({reorder_input})
    zero = ops.constant(0, ov.Type.i64)
    shape = ops.shape_of(parameters[batch_input], output_type="i64")
    batch = ops.gather(shape, ops.constant([0], ov.Type.i64), zero)
    # Not the constant 0: the plugin would fix the variable's shape to the initial value's, unless
    # that is unknown.
    no_length = ops.subtract(batch, batch)
    sinks = []
    shapes = [
        _sizes(
            variable,
            parameters[variable.input_index],
            results[variable.output_index].input_value(0),
            length_axis,
        )
        for variable in variables
    ]
    for variable, sizes in zip(variables, shapes, strict=True):
        parameter, result = parameters[variable.input_index], results[variable.output_index]
        info = VariableInfo()
        info.data_shape = ov.PartialShape(sizes)
        info.data_type = parameter.get_output_element_type(0)
        info.variable_id = variable.name
        held = Variable(info)
        parts = [batch if size == -1 else ops.constant([size], ov.Type.i64) for size in sizes]
        parts[length_axis] = no_length
        target = ops.concat(parts, 0)
        empty = ops.broadcast(ops.constant(0, info.data_type), target)
        is_alone = shapes.count(sizes) == 1
        rows = _order_that_reads(empty, order) if is_alone else order
        read = ops.gather(ops.read_value(empty, held), rows, zero)
        read.set_friendly_name(f"{variable.name}/reordered")
        parameter.output(0).replace(read.output(0))
        sinks.append(ops.assign(_as_node(result.input_value(0)), held))
    carried = {variable.input_index for variable in variables}
    held_outputs = {variable.output_index for variable in variables}
    kept = [result for index, result in enumerate(results) if index not in held_outputs]
    inputs = [item for index, item in enumerate(parameters) if index not in carried]
    stateful = ov.Model(
        results=kept, sinks=sinks, parameters=[*inputs, order], name=model.get_friendly_name()
    )
    stateful.validate_nodes_and_infer_types()
    return stateful


def _order_that_reads(empty: ov.Node, order: ov.Node) -> ov.Node:
    """Returns the order of the rows, in a form that also reads an initial value.

    The CPU plugin moves an initial value into its variable if it has no other reader, as when no
    other variable has the same shape. A reset then keeps the variable's old value (OpenVINO
    2026.4.1).
    """
    axes = ops.constant(list(range(len(empty.get_output_partial_shape(0)))), ov.Type.i64)
    nothing = ops.reduce_sum(empty, axes, False)
    return ops.add(order, ops.convert(nothing, order.get_output_element_type(0)))


def _as_node(output: ov.Output) -> ov.Node:
    """Returns the node of a sole output; for one of several outputs, a cast to the same type."""
    node = output.get_node()
    if node.get_output_size() == 1:
        return node
    return ops.convert(output, output.get_element_type())


def _sizes(
    variable: StateVariable, parameter: ov.Node, output: ov.Output, length_axis: int
) -> list[int]:
    """Returns the variable's shape with -1 for batch and length."""
    before, after = parameter.get_output_element_type(0), output.get_element_type()
    dimensions = list(parameter.get_output_partial_shape(0))
    sizes = [-1 if item.is_dynamic else item.get_length() for item in dimensions]
    varying = [axis for axis, size in enumerate(sizes) if size == -1]
    if varying != [0, length_axis] or before != after:
        raise OptionError(
            f"make_stateful: {variable.name} must have static sizes except for batch and axis "
            f"{length_axis}, and keep its type, got {parameter.get_output_partial_shape(0)} "
            f"{before.get_type_name()}, next {after.get_type_name()}. Give its input_shapes to "
            "lower(), or convert the output.",
            code="state-shape",
        )
    return sizes
