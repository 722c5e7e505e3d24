"""GraphBuilder: a graph built call by call, compiled to one program and run.

Recording is npu_compiler.graph_builder.recording's work, calls by name stand in
npu_compiler.graph_builder.named_calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import npu_runtime
from npu_compiler.building import own_precision
from npu_compiler.errors import GraphError
from npu_compiler.exported.capture import capture_module
from npu_compiler.graph_builder.named_calls import NamedCalls
from npu_compiler.graph_builder.recording import GraphTensor, Recording, Replay
from npu_compiler.lowering import lower
from npu_compiler.options import CompilerConfig, resolve_config
from npu_compiler.programs import compile_options, load_tolerant
from npu_compiler.quantize import compress_weights

__all__ = ["GraphBuilder"]


class GraphBuilder(NamedCalls):
    """A graph built by hand.

    Its tensors take operators and torch functions, so that the methods here are only short ways:
    `x @ w + 1` and `torch.softmax(x, -1)` do as well. Shapes and dtypes are checked by each call.
    """

    def __init__(self, config: CompilerConfig | None = None, **options: Any) -> None:
        """Starts an empty graph.

        Args:
            config: dtype, precision, group_size, symmetric, disabled_passes and device_options are
                what counts here.
            options: the options by name, instead of config.

        Raises:
            OptionError: as CompilerConfig.
        """
        self._config = resolve_config("GraphBuilder", config, options)
        self._recording = Recording()
        self._program: npu_runtime.Program | None = None
        self._compiled_length = -1
        self._input_places: tuple[int, ...] = ()
        self._output_places: tuple[int, ...] = ()

    def to_module(self, *outputs: Any) -> Replay:
        """Returns the graph as a module from its inputs, for compile(), export() and torch.

        Args:
            outputs: tensors of the graph; by default those that no call reads, as they were made.

        Raises:
            GraphError: [graph-output] when there are none.
        """
        chosen: Sequence[Any] = outputs or self._recording.unread()
        if not chosen or not all(isinstance(tensor, GraphTensor) for tensor in chosen):
            raise GraphError(
                f"GraphBuilder: outputs are one or more tensors of the graph; got "
                f"{', '.join(type(x).__name__ for x in chosen) or 'none'}. Add a call first.",
                code="graph-output",
            )
        return self._recording.replay(chosen[0] if len(chosen) == 1 else tuple(chosen))

    def compile(self, *outputs: GraphTensor) -> GraphBuilder:
        """Makes the program; run() does it as well.

        Args:
            outputs: tensors of the graph, in the order in which run() is to return them; by
                default those that no call reads, in the order they were made.

        Raises:
            GraphError: [graph-output].
            LoweringError: [no-converter] or [cannot-lower] for a call that no program takes.
        """
        module = self.to_module(*outputs)
        inputs = self._recording.parameters
        examples = tuple(torch.zeros(tuple(x._fake.shape), dtype=x._fake.dtype) for x in inputs)
        captured = capture_module(module, examples, {}, {}, self._config)
        graph_module = captured.program.graph_module
        lowered = lower(graph_module, constants=captured.constants, name="GraphBuilder")
        if self._config.compression is not None:
            compress_weights(
                lowered.model,
                mode=self._config.compression,
                group_size=self._config.group_size,
                symmetric=self._config.symmetric,
            )
        precision = self._config.computed_in or own_precision(graph_module.graph)
        options = {**compile_options(precision), **self._config.device_options}
        self._program = load_tolerant(lowered.model, name="GraphBuilder", options=options)
        self._input_places = tuple(captured.inputs.index(name) for name in lowered.input_names)
        self._output_places = tuple(index for index in lowered.outputs if index is not None)
        self._compiled_length = self._recording.length
        return self

    def run(self, *inputs: Any) -> Any:
        """Runs the graph; compiles it first where that is not done, or it grew since.

        Args:
            inputs: one array or tensor per parameter, in the order these were made.

        Returns:
            The output, or a tuple of them; arrays for arrays and tensors for tensors.

        Raises:
            GraphError: [graph-input] for a wrong number of inputs.
            npu_runtime.InputError: [program-input] for one of another shape or dtype.
        """
        if self._program is None or self._compiled_length != self._recording.length:
            self.compile()
        assert self._program is not None
        expected = len(self._recording.parameters)
        if len(inputs) != expected:
            raise GraphError(
                f"GraphBuilder.run: one input per parameter, which are {expected}; got "
                f"{len(inputs)}. Pass them in the order in which they were made.",
                code="graph-input",
            )
        are_tensors = any(isinstance(value, torch.Tensor) for value in inputs)
        tensors = [
            value.detach().contiguous()
            if isinstance(value, torch.Tensor)
            else torch.from_numpy(np.array(value))
            for value in inputs
        ]
        made = self._program.run(
            [tensors[place] for place in self._input_places],
            output_device=None if are_tensors else "cpu",
        )
        results = [made[place] for place in self._output_places]
        if not are_tensors:
            results = [_as_array(result) for result in results]
        return results[0] if len(results) == 1 else tuple(results)

    __call__ = run

    def __repr__(self) -> str:
        parameters = len(self._recording.parameters)
        return f"GraphBuilder({parameters} parameters, {self._recording.length} tensors)"


def _as_array(tensor: torch.Tensor) -> Any:
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
