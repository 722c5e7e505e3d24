"""TensorExecution: runs a kernel program on tensors of fixed shapes, for a compiled graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from npu_ops import _C
from npu_ops.kernel_programs.execution import (
    kernel_sets,
    native_program,
    translated,
)
from npu_ops.kernel_programs.layers import StageLayers
from npu_ops.kernel_programs.program import KernelProgram
from npu_ops.kernel_programs.weights import PackedLinear
from npu_runtime import layer_recording, observe

__all__ = ["TensorExecution"]


class TensorExecution:
    """A program that loads and stores its rows, ready to be called with tensors.

    Calls of several Python threads run one after the other.

    Attributes:
        program: what it runs.
    """

    def __init__(
        self,
        program: KernelProgram,
        weights: Mapping[str, PackedLinear | torch.Tensor],
        *,
        rows: int,
        arguments: Sequence[tuple[int, Sequence[int]]],
        results: Sequence[Sequence[int]],
        device: str = "cpu",
        is_alone: bool = False,
        name: str = "kernels",
        kernel_set: str | None = None,
    ) -> None:
        """Makes a program ready.

        Args:
            program: what to run.
            weights: each weight that it names; their memory is used where it is.
            rows: how many rows the tensors have; their other dimensions make one width.
            arguments: of each tensor that is loaded, its place among the inputs of a call, and its
                shape.
            results: the shape of each tensor that is stored.
            device: where results live, "cpu" or "npu".
            is_alone: whether the calling thread runs it alone; else as many as the process may use.
            name: what its spans are called.
            kernel_set: a name of npu_ops.kernel_programs.execution.kernel_sets; None for the best.

        Raises:
            OperatorInputError: [kernel-program] if something does not fit together.
        """
        self.program = program
        self._name = name
        self._kernel_set = kernel_set or kernel_sets()[0]
        self._program = native_program(program, weights, kernel_set=kernel_set)
        self._rows = rows
        self._layers = StageLayers(
            program, self._program.stages, weights, kernel_set=self._kernel_set
        )
        with translated():
            self._native = _C.TensorCall(
                self._program,
                rows,
                [position for position, _ in arguments],
                [list(shape) for _, shape in arguments],
                [list(shape) for shape in results],
                device,
                is_alone,
            )

    def run(self, inputs: tuple[Any, ...]) -> list[torch.Tensor] | None:
        """Runs the program.

        Args:
            inputs: of the call; those that are loaded are float32, of any strides, on npu or cpu.

        Returns:
            New tensors, contiguous; None while a graph is captured, of which host code cannot be a
            part: nothing was run then.

        Raises:
            OperatorInputError: [kernel-program] for a tensor of another dtype or shape.
            OpsError: [out-of-memory] if the machine has none left.
        """
        if observe.is_enabled():
            return self._observed(inputs)
        return self._run(inputs, None)

    def shortcut(
        self, is_current: Callable[[tuple[Any, ...]], bool] | None
    ) -> Callable[[tuple[Any, ...]], list[torch.Tensor] | None]:
        """Returns what `run` is, without a line of Python.

        It gives None, and runs nothing, also where somebody listens to the runtime's events, and
        where `is_current` says no. What it raises is a MemoryError or ValueError.

        Args:
            is_current: asked with the inputs before each run; None for nobody.
        """
        return partial(self._native.run_current, is_current)

    def _run(
        self, inputs: tuple[Any, ...], times: torch.Tensor | None
    ) -> list[torch.Tensor] | None:
        try:
            return self._native.run(inputs, times)
        except (MemoryError, ValueError):
            with translated():
                raise

    def _observed(self, inputs: tuple[Any, ...]) -> list[torch.Tensor] | None:
        """Runs the program, and emits its span, and those of its layers if they are wanted."""
        start_ns = time.time_ns()
        place = {"device_index": 0, "stream": 0}
        if not layer_recording.is_wanted():
            with observe.span("program", self._name, **place):
                return self._run(inputs, None)
        times = torch.zeros(len(self._layers.names), dtype=torch.int64)
        found = self._run(inputs, times)
        if found is not None:
            observe.span_between("program", self._name, start_ns, time.time_ns(), **place)
            rows = self._rows
            self._layers.emit(times.tolist(), start_ns, rows=rows, kept=rows, **place)
        return found
