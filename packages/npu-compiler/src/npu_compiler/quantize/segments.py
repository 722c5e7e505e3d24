"""Runs an OpenVINO model piece by piece over samples, so that weights may change between pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset15 as ops

from npu_compiler.openvino_core import openvino_core

__all__ = ["SegmentedModel"]

# The generator of fused elementwise kernels fails on pieces of BERT (OpenVINO 2026.4.1: "All
# consumers of a Scalar expression are expected to have the same loop IDs").
_OPTIONS = {"INFERENCE_PRECISION_HINT": "f32", "SNIPPETS_MODE": "DISABLE"}

_Array = np.ndarray[Any, Any]
# A node's number and which of its outputs.
_Key = tuple[int, int]


class SegmentedModel:
    """A model, and of each sample the values at the place that has been reached.

    What lies behind that place is cut off: the nodes ahead read parameters instead. Only values
    that a node ahead reads are kept, never those of the whole model.

    Args:
        model: is taken apart; clone it before if it is needed.
        samples: one call each: arrays for the model's inputs, in order.
    """

    def __init__(self, model: ov.Model, samples: Sequence[Sequence[Any]]) -> None:
        self._model = model  # keeps the nodes ahead alive
        self._values: dict[_Key, list[_Array]] = {}
        self._parameters: dict[_Key, ov.Node] = {}
        for index, parameter in enumerate(model.get_parameters()):
            self._keep(parameter, [np.asarray(call[index]) for call in samples])

    def advance(self, port: ov.Input) -> list[_Array]:
        """Runs on until the value is there that a node reads at a port.

        Args:
            port: of a node ahead.

        Returns:
            The value, one array per sample.
        """
        if _key(port.get_source_output()) not in self._values:
            self._run_to(port.get_source_output().get_node())
        return self._values[_key(port.get_source_output())]

    def _run_to(self, last: ov.Node) -> None:
        piece = self._piece(last)
        numbers = {node.get_instance_id() for node in piece}
        inputs = [key for key in self._values if _is_read(self._parameters[key], numbers)]
        outputs = [
            output
            for node in self._varying(piece)
            for output in node.outputs()
            if any(_number(target) not in numbers for target in output.get_target_inputs())
        ]
        parameters = [self._parameters[key] for key in inputs]
        program = openvino_core().compile_model(ov.Model(outputs, parameters), "CPU", _OPTIONS)
        found: list[list[_Array]] = [[] for _ in outputs]
        for call in zip(*(self._values[key] for key in inputs), strict=True):
            results = program(list(call))
            for values, index in zip(found, range(len(outputs)), strict=True):
                values.append(np.array(results[index]))
        for output, values in zip(outputs, found, strict=True):
            made = ops.parameter(output.get_partial_shape(), output.get_element_type())
            output.replace(made.output(0))
            self._keep(made, values)
        for key in inputs:
            targets = self._parameters[key].output(0).get_target_inputs()
            if all(_number(target) in numbers for target in targets):
                del self._values[key], self._parameters[key]

    def _piece(self, last: ov.Node) -> list[ov.Node]:
        """The nodes between what was reached and a node, that node included, inputs first."""
        found: dict[int, ov.Node] = {}
        left = [(last, False)]
        while left:
            node, is_done = left.pop()
            number = node.get_instance_id()
            if number in found or (number, 0) in self._values:
                continue
            if is_done:
                found[number] = node
                continue
            left.append((node, True))
            left += [(value.get_node(), False) for value in node.input_values()]
        return list(found.values())

    def _varying(self, piece: Sequence[ov.Node]) -> list[ov.Node]:
        """Those that depend on the samples; the others stay, since some must be constants."""
        varying: dict[int, ov.Node] = {}
        for node in piece:
            sources = (_key(value) for value in node.input_values())
            if any(key in self._values or key[0] in varying for key in sources):
                varying[node.get_instance_id()] = node
        return list(varying.values())

    def _keep(self, parameter: ov.Node, values: list[_Array]) -> None:
        key = _key(parameter.output(0))
        self._values[key], self._parameters[key] = values, parameter


def _key(output: ov.Output) -> _Key:
    return output.get_node().get_instance_id(), output.get_index()


def _number(target: ov.Input) -> int:
    return int(target.get_node().get_instance_id())


def _is_read(parameter: ov.Node, numbers: set[int]) -> bool:
    return any(_number(target) in numbers for target in parameter.output(0).get_target_inputs())
