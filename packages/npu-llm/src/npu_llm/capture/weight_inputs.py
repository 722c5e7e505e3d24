"""Moves a static program's integer weights and embeddings from its constants to its inputs.

An NPU's compiler packs constants into each blob, and rewrites them each time. A program with
weights as inputs compiles in a tenth of the time to a tenth of the size, and the programs of all
sizes share one copy of the weights. The host looks up embedding rows, so that no program contains
the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import torch

from npu_llm.kv_cache.static_layout import EmbeddingTable

__all__ = ["MovedWeights", "move_weights"]

_INTEGERS = {"i8": torch.int8, "i4": torch.uint8}
# Smaller tables stay constants: they cost nothing, and some are not embeddings of tokens.
_SMALL_TABLE = 4096


@dataclass
class MovedWeights:
    """The tensors removed from a program's constants.

    Attributes:
        tensors: tensors by name. Those of the program's inputs are integers (outputs, inputs); two
            of 4 bits share a byte, the first in its lower half.
        tables: embeddings by the program's inputs for their rows.
        constants: owners of the tensors' memory.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    tables: dict[str, EmbeddingTable] = field(default_factory=dict)
    constants: list[ov.Node] = field(default_factory=list)


def move_weights(
    model: ov.Model,
    *,
    dtype: torch.dtype,
    read: Callable[[torch.Tensor], torch.Tensor],
) -> MovedWeights:
    """Converts integer weights with one scale per output, and token embeddings, to inputs in place.

    The scale is applied to the product. Weights in groups, or with zero points, stay constants.

    Args:
        model: a compressed model; its inputs have names, and the tokens' is "input_ids".
        dtype: dtype of embedding rows at their inputs.
        read: returns the values of a constant with a placeholder's memory, see
            npu_llm.checkpoint.streamed.StreamedWeights.read.
    """
    moved = MovedWeights()
    inputs: dict[int, ov.Node] = {}  # by the instance of the integers' constant
    nodes = model.get_ordered_ops()
    for node in nodes:
        if node.get_type_name() == "MatMul":
            found = _Scaled.of(node.input_value(1))
            if found is not None and node.get_attributes()["transpose_b"]:
                moved.constants += [found.integers, found.scale]
                _move_product(node, found, moved, inputs)
    for node in nodes:
        if node.get_type_name() == "Gather" and _reads_tokens(node):
            _move_table(node, moved, inputs, dtype=dtype, read=read)
    model.add_parameters([*inputs.values()])
    model.validate_nodes_and_infer_types()
    return moved


@dataclass(frozen=True)
class _Scaled:
    """Integers (outputs, inputs) times a scale (outputs, 1)."""

    integers: ov.Node
    scale: ov.Node

    @staticmethod
    def of(output: ov.Output) -> _Scaled | None:
        """Returns the integers and scales behind a matrix; None if it has another form."""
        multiply = output.get_node()
        if multiply.get_type_name() != "Multiply":
            return None
        convert, scale = (multiply.input_value(index).get_node() for index in (0, 1))
        if convert.get_type_name() != "Convert" or scale.get_type_name() != "Constant":
            return None
        integers = convert.input_value(0).get_node()
        is_usable = (
            integers.get_type_name() == "Constant"
            and integers.get_output_element_type(0).get_type_name() in _INTEGERS
            and len(integers.get_output_shape(0)) == 2
            and integers.get_output_shape(0)[1] % 2 == 0  # two of 4 bits share a byte
            and list(scale.get_output_shape(0)) == [integers.get_output_shape(0)[0], 1]
        )
        return _Scaled(integers, scale) if is_usable else None

    @property
    def scales(self) -> np.ndarray[Any, Any]:
        """The scale of each output."""
        found: np.ndarray[Any, Any] = self.scale.get_tensor_view().data.reshape(-1)
        return found


def _move_product(
    product: ov.Node, found: _Scaled, moved: MovedWeights, inputs: dict[int, ov.Node]
) -> None:
    element = product.get_output_element_type(0)
    weight = ops.convert(_input(found, moved, inputs), element)
    transpose_a = bool(product.get_attributes()["transpose_a"])
    made = ops.matmul(product.input_value(0), weight, transpose_a, True)
    name = product.get_friendly_name()
    made.set_friendly_name(name)
    scaled = ops.multiply(made, ops.constant(found.scales, element))
    scaled.set_friendly_name(f"{name}/scale")
    product.output(0).replace(scaled.output(0))


def _input(found: _Scaled, moved: MovedWeights, inputs: dict[int, ov.Node]) -> ov.Node:
    """Returns the input for integers, which products may share."""
    number = found.integers.get_instance_id()
    if number not in inputs:
        name = f"weight.{len(inputs)}"
        element = found.integers.get_output_element_type(0)
        rows, columns = found.integers.get_output_shape(0)
        inputs[number] = _parameter([rows, columns], element, name)
        data = found.integers.get_tensor_view().data
        kind = _INTEGERS[element.get_type_name()]
        packed = torch.from_numpy(data.reshape(-1).view(np.uint8)).view(kind)
        moved.tensors[name] = packed.view(int(rows), -1)
    return inputs[number]


def _reads_tokens(gather: ov.Node) -> bool:
    """Whether a call looks up rows of a matrix for the tokens themselves."""
    table, tokens, axis = (gather.input_value(index) for index in range(3))
    node = tokens.get_node()
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    shape = table.get_partial_shape()
    return (
        node.get_type_name() == "Parameter"
        and node.get_friendly_name() == "input_ids"
        and shape.is_static
        and len(shape) == 2
        and int(np.prod(shape.to_shape())) >= _SMALL_TABLE
        and axis.get_node().get_type_name() == "Constant"
        and int(axis.get_node().get_data().item()) == 0
    )


def _move_table(
    gather: ov.Node,
    moved: MovedWeights,
    inputs: dict[int, ov.Node],
    *,
    dtype: torch.dtype,
    read: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    table = gather.input_value(0)
    moved.constants.append(table.get_node())
    found = _Scaled.of(table)
    port = f"embedding.{len(moved.tables)}"
    if found is not None and found.integers.get_output_element_type(0) == ov.Type.i8:
        number = found.integers.get_instance_id()
        if number in inputs:
            rows = inputs[number].get_friendly_name()
        else:
            rows = f"{port}.rows"
            moved.tensors[rows] = torch.from_numpy(found.integers.get_tensor_view().data)
        moved.tensors[f"{rows}.scale"] = torch.from_numpy(found.scales)
    elif table.get_node().get_type_name() == "Constant" and table.get_element_type() == ov.Type.f32:
        rows = f"{port}.rows"
        moved.tensors[rows] = read(torch.from_numpy(table.get_node().get_tensor_view().data))
    else:
        return
    size = table.get_partial_shape()[1].get_length()
    element = gather.get_output_element_type(0)
    parameter = _parameter([1, -1, size], _ELEMENTS[dtype], port)
    inputs[parameter.get_instance_id()] = parameter
    moved.tables[port] = EmbeddingTable(rows, size)
    value = ops.convert(parameter, element)
    value.set_friendly_name(gather.get_friendly_name())
    gather.output(0).replace(value.output(0))


_ELEMENTS = {
    torch.float32: ov.Type.f32,
    torch.float16: ov.Type.f16,
    torch.bfloat16: ov.Type.bf16,
}


def _parameter(shape: list[int], element: ov.Type, name: str) -> ov.Node:
    parameter = ops.parameter(shape, element)
    parameter.set_friendly_name(name)
    parameter.output(0).get_tensor().set_names({name})
    return parameter
