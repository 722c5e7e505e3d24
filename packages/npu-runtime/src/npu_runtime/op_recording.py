"""Records torch's ops on all threads, in chunks that can be written while the program runs.

The recorder is native (csrc/observe/op_recorder.cpp); a chunk is text of a Chrome trace.
"""

import os
from typing import NamedTuple

from npu_runtime import _C

__all__ = ["OpPiece", "OpRecording", "OpTotal"]


class OpTotal(NamedTuple):
    """Total time of all calls of one op, without the ops it called (self) and with them."""

    name: str
    calls: int
    self_ns: int
    total_ns: int


class OpPiece(NamedTuple):
    """The events recorded since the previous chunk."""

    # Events as Chrome trace JSON, each after a comma and a line break: ops and annotations as
    # complete events, arrows from forward ops to their backward as flows.
    text: bytes
    totals: list[OpTotal]  # totals of ops, without annotations and autograd's own brackets
    thread_ids: list[int]  # OS ids of the threads in it
    events: int  # number of ops and annotations
    dropped: int  # number of dropped events, if chunks are not taken often enough


class OpRecording:
    """The recording of this process. There is only one: a second recording would share its ops.

    Args:
        start_ns: origin of the times in the chunks; nanoseconds since the Unix epoch.
    """

    def __init__(self, start_ns: int) -> None:
        self._writer = _C.OpWriter(os.getpid(), start_ns)

    def start(self) -> None:
        """Starts recording the ops that begin from now on, on all threads. Costs 0.15 us per op."""
        _C.start_ops()

    def stop(self) -> None:
        """Stops recording and ends this thread's open annotations; running ops are not recorded."""
        _C.stop_ops()

    def take(self) -> OpPiece:
        """Returns the events since the last call, without stopping the program's threads."""
        text, totals, thread_ids, events, dropped = self._writer.drain()
        return OpPiece(text, [OpTotal(*total) for total in totals], thread_ids, events, dropped)
