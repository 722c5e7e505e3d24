"""Captured steps of ``torch.npu``: record the programs of a step once, replay them on fixed memory.

Names follow ``torch.cuda.graphs``. The record is native (csrc/graph).
"""

from types import TracebackType

import torch

from npu_runtime import _C
from npu_runtime.npu.streams import StreamContext

__all__ = ["NPUGraph", "graph", "is_current_stream_capturing"]


class NPUGraph:
    """Programs of a step with the tensors they were bound to.

    Capture a step that runs compiled programs (``torch.compile(backend="npu")`` models, fused ops)
    on tensors that you keep; to run it on other data, copy the data into those tensors and call
    :meth:`replay`. Nothing is bound, checked or allocated then. Host kernels cannot be captured:
    they raise during the capture.
    """

    def __init__(self) -> None:
        self._native = _C.Graph()

    def capture_begin(self) -> None:
        """Starts to record this thread's programs; they run as well."""
        self._native.capture_begin()

    def capture_end(self) -> None:
        """Ends the recording."""
        self._native.capture_end()

    def replay(self) -> None:
        """Runs the recorded programs, in order, on the current stream."""
        self._native.replay()

    def reset(self) -> None:
        """Forgets the recording and lets go of its memory."""
        self._native.reset()

    def __len__(self) -> int:
        """Number of recorded programs."""
        return len(self._native)


class graph:
    """Captures the body of ``with`` into a graph.

    Args:
        npu_graph: A new or reset graph.
        stream: Stream to capture on; the current one by default.
    """

    def __init__(self, npu_graph: NPUGraph, stream: torch.Stream | None = None) -> None:
        self._graph = npu_graph
        self._context = StreamContext(stream)

    def __enter__(self) -> NPUGraph:
        self._context.__enter__()
        self._graph.capture_begin()
        return self._graph

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._graph.capture_end()
            if kind is not None:
                self._graph.reset()
        finally:
            self._context.__exit__(kind, error, trace)


def is_current_stream_capturing() -> bool:
    """Whether this thread captures a graph."""
    return _C.is_capturing()
