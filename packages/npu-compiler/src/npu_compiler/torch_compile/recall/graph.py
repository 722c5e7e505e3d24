"""A graph whose program was found again: called as dynamo calls what a backend returned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode

from npu_compiler.errors import IndexRangeError
from npu_compiler.programs.execution import ProgramCall
from npu_compiler.programs.index_checks import NARROW
from npu_compiler.programs.kernel_execution import KernelCall, run_shortcut
from npu_runtime import FrozenTensors
from npu_runtime.npu import is_current_stream_capturing
from npu_runtime.npu.graphs import outside_capture

__all__ = ["RecalledGraph"]


class RecalledGraph:
    """One program that computes all of a graph, while its weights are what they were."""

    def __init__(
        self,
        call: ProgramCall | KernelCall,
        *,
        inputs: Sequence[int],
        outputs: Sequence[int],
        frozen: FrozenTensors | None,
        trace: Callable[[Sequence[Any]], Callable[..., Any]],
    ) -> None:
        """Takes a loaded program.

        Args:
            call: of the program.
            inputs: which of the graph's inputs the program takes, in its order.
            outputs: which of the program's results each of the graph's is.
            frozen: the weights in the program.
            trace: the full way, for the graph's inputs.
        """
        self._run = call.direct(inputs, outputs)
        self._is_host_code = isinstance(call, KernelCall)
        self._shortcut: Callable[[tuple[Any, ...]], Any] | None = None
        if isinstance(call, KernelCall):
            is_current = None if frozen is None else frozen.is_current
            self._shortcut = call.shortcut(inputs, outputs, is_current)
        self._frozen = frozen
        self._trace = trace
        self._traced: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        """Runs the graph; once a weight differs or an integer is too large, by the full way."""
        shortcut = self._shortcut
        if shortcut is not None:
            results = run_shortcut(shortcut, inputs)
            if results is not None:
                return results
        if self._is_usable(inputs):
            try:
                return self._run(*inputs)
            except IndexRangeError as error:
                if NARROW not in str(error):
                    raise
        return self._full(inputs)(*inputs)

    def _is_usable(self, inputs: Sequence[Any]) -> bool:
        if self._traced is not None or (self._is_host_code and is_current_stream_capturing()):
            return False
        return self._frozen is None or self._frozen.is_current(inputs)

    def _full(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        with self._lock:
            if self._traced is None:
                # No ShapeEnv: the sizes are fixed, and dynamo has guarded them.
                with outside_capture(), tracing(TracingContext(FakeTensorMode())):
                    self._traced = torch.compiler.disable(self._trace(inputs))  # type: ignore[no-untyped-call]
                self._frozen = self._shortcut = None
            return self._traced
