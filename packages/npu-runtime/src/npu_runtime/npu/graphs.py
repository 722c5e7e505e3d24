"""Captured steps of ``torch.npu``: record the programs of a step once, replay them on fixed memory.

Names follow ``torch.cuda.graphs``. The record is native (csrc/graph).
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch

from npu_runtime import _C
from npu_runtime.errors import InputError
from npu_runtime.npu.graphed_callables import follows_weights, make_graphed_callables
from npu_runtime.npu.streams import StreamContext
from npu_runtime.public_calls import public_call

__all__ = [
    "NPUGraph",
    "graph",
    "graph_pool_handle",
    "is_capture_following",
    "is_current_stream_capturing",
    "make_graphed_callables",
    "outside_capture",
]

PoolId = tuple[int, int]

_NEW_POOL = (0, 0)
_MODES = ("global", "thread_local", "relaxed")


class NPUGraph:
    """Programs of a step with the tensors they were bound to.

    Capture a step that runs compiled programs (``torch.compile(backend="npu")`` models, fused ops)
    on tensors that you keep; to run it on other data, copy the data into those tensors and call
    :meth:`replay`. Nothing is bound, checked or allocated then. Host kernels cannot be captured:
    they raise during the capture.

    Compiled programs hold weights as they were, packed for the device. A weight that is changed
    after the capture, in place or by another in ``.data``, makes :meth:`replay` an error that names
    it. A write that torch does not count is not seen, such as ``weight.data.mul_(2)``, nor is a
    parameter put in the place of another: the graph knows tensors, not modules.

    Args:
        keep_graph: taken for compatibility: a capture can be replayed as it is.
        weights: ``"refuse"`` for the error, or ``"follow"``: programs are captured that read the
            weights' memory at each replay, which is slower. A model that is compiled with
            ``backend="npu"`` reads them so from then on, outside of the graph too.

    Raises:
        InputError: ``weights`` has another value (code ``capture-weights``).
    """

    def __init__(self, keep_graph: bool = False, *, weights: str = "refuse") -> None:
        self._native = _C.Graph(follows_weights("npu.NPUGraph", weights))

    @public_call
    def capture_begin(
        self,
        pool: PoolId | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Starts to record this thread's programs; they run as well.

        Args:
            pool: where the capture's memory lies: the id of another graph's pool or of
                :func:`graph_pool_handle`; a pool of its own by default.
            capture_error_mode: ``"global"``, ``"thread_local"`` or ``"relaxed"``. A capture
                follows one thread and holds up no other, whichever is named.
            check_input_liveness: taken for compatibility: a graph keeps its inputs alive.

        Raises:
            InputError: this thread captures already, or the graph holds a capture, or the mode is
                none of these (code ``capture-state``).
        """
        if capture_error_mode not in _MODES:
            raise InputError(
                f"npu.NPUGraph: capture_error_mode must be one of {', '.join(_MODES)}; "
                f'got {capture_error_mode!r}. Leave it out for "global".',
                code="capture-state",
            )
        self._native.capture_begin(_NEW_POOL if pool is None else pool)

    def capture_end(self) -> None:
        """Ends the recording."""
        self._native.capture_end()

    def instantiate(self) -> None:
        """Does nothing: a capture can be replayed as it is."""

    def replay(self) -> None:
        """Runs the recorded programs, in order, on the current stream.

        Raises:
            InputError: a weight that a program holds has changed since the capture, or a tensor
                that it uses has other memory; nothing has run then (code ``capture-stale``). Or
                nothing was captured (``capture-state``).
        """
        self._native.replay()

    def reset(self) -> None:
        """Forgets the recording and lets go of its memory."""
        self._native.reset()

    def pool(self) -> PoolId:
        """The id of the pool in which the capture's memory lies, for another graph to share.

        Raises:
            InputError: no capture began (code ``capture-state``).
        """
        return self._native.pool()

    def enable_debug_mode(self) -> None:
        """Does nothing: what :meth:`debug_dump` writes is always at hand."""

    @public_call
    def debug_dump(self, debug_path: str | os.PathLike[str]) -> None:
        """Writes one line for each program: its name, and the tensors that it reads and writes."""
        Path(debug_path).write_text(self._native.describe(), encoding="utf-8")

    def __len__(self) -> int:
        """Number of recorded programs."""
        return len(self._native)


class graph:
    """Captures the body of ``with`` into a graph.

    Args:
        npu_graph: a new or reset graph.
        pool: as for ``NPUGraph.capture_begin``.
        stream: stream to capture on; the current one by default.
        capture_error_mode: as for ``NPUGraph.capture_begin``.
        enable_annotations: taken for compatibility: programs keep their names.
        check_input_liveness: taken for compatibility: a graph keeps its inputs alive.
    """

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: PoolId | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
    ) -> None:
        self._graph = npu_graph
        self._pool = pool
        self._mode = capture_error_mode
        self._context = StreamContext(stream)

    def __enter__(self) -> NPUGraph:
        self._context.__enter__()
        try:
            self._graph.capture_begin(self._pool, self._mode)
        except BaseException:
            self._context.__exit__()
            raise
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


def graph_pool_handle() -> PoolId:
    """An id for a new memory pool, which several graphs can share."""
    return _C.new_memory_pool_id()


@contextlib.contextmanager
def outside_capture() -> Iterator[None]:
    """For work on the way to a program that is not to be replayed, such as compiling it.

    In the body this thread captures nothing: host kernels may run, and memory comes from the
    general pool. Without a capture this does nothing.
    """
    native = _C.capturing_graph()
    if native is None:
        yield
        return
    native.pause()
    try:
        yield
    finally:
        native.resume()


def is_capture_following() -> bool:
    """Whether this thread captures a graph whose programs must hold no weights."""
    native = _C.capturing_graph()
    return native is not None and native.follows_weights


def is_current_stream_capturing() -> bool:
    """Whether this thread captures a graph."""
    return _C.is_capturing()
