"""Inputs of static programs that the host computes: masks and rotary angles.

An NPU computes in float16, which cannot represent odd numbers above 2,048: positions that it
compares or multiplies are wrong in long contexts. By its compiler's estimate, the mask and the
sines of a 256-token prompt also take as long as two layers of SmolLM2-135M (NPU 4000, OpenVINO
2026.4.1). So the host computes everything that depends only on positions and masks, in float32.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import torch

from npu_compiler.openvino_core import openvino_core
from npu_llm.kv_cache.static_layout import HOST_INPUTS

__all__ = ["HostInputs", "split_host_inputs"]

_CPU = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}
# Larger constants are compared by name, not by value.
_SMALL_CONSTANT = 4096


class HostInputs:
    """Computes the host inputs of one program; thread-safe."""

    def __init__(self, path: Path) -> None:
        """Loads a model from split_host_inputs.

        Args:
            path: its .xml file.
        """
        self._compiled = openvino_core().compile_model(path, "CPU", _CPU)
        self._names = [port.get_any_name() for port in self._compiled.inputs]
        self._lock = threading.Lock()

    def __call__(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the inputs by name, for the positions and masks of a step."""
        given = {name: values[name].numpy() for name in self._names}
        with self._lock:
            results = self._compiled(given)
        return {port.get_any_name(): torch.from_numpy(array) for port, array in results.items()}


def split_host_inputs(model: ov.Model, dtype: ov.Type) -> ov.Model | None:
    """Moves computations that depend only on positions and masks to a separate model.

    Args:
        model: a program of fixed sizes; inputs "host.0", ... replace the moved computations.
        dtype: float dtype of these inputs; integers keep theirs.

    Returns:
        The separate model, with outputs named after these inputs; None if nothing was moved.
    """
    _fix_sizes(model)
    found = _Found(model)
    ports: dict[tuple[int, int], ov.Output] = {}
    parameters, results = [], []
    for node in found.moved:
        for output in node.outputs():
            readers = [one for one in output.get_target_inputs() if found.stays(one.get_node())]
            if not readers:
                continue
            key = (found.value(node), output.get_index())
            if key not in ports:
                name = f"host.{len(ports)}"
                result, parameter, ports[key] = _cut(output, name, dtype)
                results.append(result)
                parameters.append(parameter)
            for reader in readers:
                reader.replace_source_output(ports[key])
    if not ports:
        return None
    inputs = [one for one in model.get_parameters() if one.get_friendly_name() in HOST_INPUTS]
    read = {one.get_instance_id() for one in _above(results)}
    host = ov.Model(results, [one for one in inputs if one.get_instance_id() in read]).clone()
    for one in inputs:
        if not any(found.stays(port.get_node()) for port in one.output(0).get_target_inputs()):
            model.remove_parameter(one)
    model.add_parameters(parameters)
    model.validate_nodes_and_infer_types()
    return host


def _fix_sizes(model: ov.Model) -> None:
    """Replaces requests for a tensor's fixed size by constants, which have no dependencies."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ShapeOf" and node.input_value(0).get_partial_shape().is_static:
            shape = np.array(node.input_value(0).get_shape(), node.get_element_type().to_dtype())
            node.output(0).replace(ops.constant(shape).output(0))
    model.validate_nodes_and_infer_types()


class _Found:
    """The nodes of a program, classified by their dependencies."""

    def __init__(self, model: ov.Model) -> None:
        self.moved: list[ov.Node] = []
        self._constant: set[int] = set()
        self._host: set[int] = set()
        self._values: dict[int, int] = {}
        self._numbers: dict[Any, int] = {}
        for node in model.get_ordered_ops():
            kind, number = node.get_type_name(), node.get_instance_id()
            above = {value.get_node().get_instance_id() for value in node.input_values()}
            if kind == "Constant" or (above and above <= self._constant):
                self._constant.add(number)
            elif kind == "Parameter" and node.get_friendly_name() in HOST_INPUTS:
                self._host.add(number)
            elif (
                above & self._host
                and above <= self._host | self._constant
                and kind != "Result"
                and all(one.get_partial_shape().is_static for one in node.outputs())
            ):
                self._host.add(number)
                self.moved.append(node)

    def stays(self, node: ov.Node) -> bool:
        """Whether a node remains in the program."""
        return node.get_instance_id() not in self._host

    def value(self, node: ov.Node) -> int:
        """Returns equal numbers for nodes that compute the same value, such as in each layer."""
        number = node.get_instance_id()
        if number not in self._values:
            self._values[number] = self._numbers.setdefault(self._key(node), len(self._numbers))
        return self._values[number]

    def _key(self, node: ov.Node) -> Any:
        if node.get_type_name() == "Constant":
            data = node.get_data()
            if data.size <= _SMALL_CONSTANT:
                return str(data.dtype), data.shape, data.tobytes()
        if node.get_type_name() in ("Constant", "Parameter", "If", "Loop", "TensorIterator"):
            return node.get_instance_id()
        above = ((self.value(one.get_node()), one.get_index()) for one in node.input_values())
        return node.get_type_name(), str(node.get_attributes()), *above


def _cut(output: ov.Output, name: str, dtype: ov.Type) -> tuple[ov.Node, ov.Node, ov.Output]:
    """Returns a result of the host's part, its program input, and the node that it replaces."""
    element = output.get_element_type()
    passed = dtype if element.is_real() or element == ov.Type.boolean else element
    sent = output if passed == element else ops.convert(output, passed).output(0)
    result = ops.result(sent)
    result.get_output_tensor(0).set_names({name})
    parameter = ops.parameter(output.get_shape(), passed)
    parameter.set_friendly_name(name)
    parameter.output(0).get_tensor().set_names({name})
    if element == ov.Type.boolean:
        return result, parameter, ops.not_equal(parameter, ops.constant(0, passed)).output(0)
    read = parameter if passed == element else ops.convert(parameter, element)
    return result, parameter, read.output(0)


def _above(nodes: list[ov.Node]) -> list[ov.Node]:
    """Returns nodes and all their dependencies."""
    found, waiting = {}, list(nodes)
    while waiting:
        node = waiting.pop()
        if node.get_instance_id() not in found:
            found[node.get_instance_id()] = node
            waiting += [value.get_node() for value in node.input_values()]
    return [*found.values()]
