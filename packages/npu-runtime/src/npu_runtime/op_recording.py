"""Records torch's ops on all threads, in pieces that can be written while the program runs.

The recording is native (csrc/observe/op_recorder.cpp); a piece is text of a Chrome trace.
"""

import os
from typing import NamedTuple

from npu_runtime import _C

__all__ = ["OpPiece", "OpRecording", "OpTotal"]


class OpTotal(NamedTuple):
    """Time of all calls of one op: without the ops that it called, and with them, each once."""

    name: str
    calls: int
    self_ns: int
    total_ns: int


class OpPiece(NamedTuple):
    """What was recorded since the piece before."""

    # Events as Chrome trace JSON, each after a comma and a line break: ops and annotations as
    # complete events, arrows from forward ops to their backward as flows.
    text: bytes
    totals: list[OpTotal]  # of ops; annotations and autograd's own brackets are not among them
    thread_ids: list[int]  # the operating system's ids of the threads in it
    events: int  # how many ops and annotations it has
    dropped: int  # how many did not fit, because nobody took pieces for too long


class OpRecording:
    """A recording of this process. There is one set of ops: a second recording would share it.

    Args:
        start_ns: what times in the pieces count from; nanoseconds since the Unix epoch.
    """

    def __init__(self, start_ns: int) -> None:
        self._writer = _C.OpWriter(os.getpid(), start_ns)

    def start(self) -> None:
        """Begins to record: ops that begin from now on, of all threads. Costs 0.15 us an op."""
        _C.start_ops()

    def stop(self) -> None:
        """Ends it, and the annotations that this thread is in; ops under way are not recorded."""
        _C.stop_ops()

    def take(self) -> OpPiece:
        """Returns what was recorded since the last call. Does not stop the program's threads."""
        text, totals, thread_ids, events, dropped = self._writer.drain()
        return OpPiece(text, [OpTotal(*total) for total in totals], thread_ids, events, dropped)
