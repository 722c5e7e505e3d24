"""Who launched which program: the arrows of a trace as pairs of slices."""

from collections.abc import Iterator
from typing import NamedTuple

from npu_profiler.reading import Flow, SliceRef, Trace

__all__ = ["Launch", "launched_program", "launches"]


class Launch(NamedTuple):
    """A run of a program and the innermost slice of a thread that asked for it."""

    cause: SliceRef
    program: SliceRef

    def causes(self) -> Iterator[SliceRef]:
        """Yields all slices that were open when it was asked for, the innermost first."""
        yield self.cause
        yield from self.cause.ancestors()


def launches(trace: Trace) -> list[Launch]:
    """The launches of which both ends were recorded, in the order of the file."""
    found = []
    for arrow in trace.flows.get("launch", ()):
        program, cause = launched_program(arrow), arrow.cause
        if cause is not None and program is not None:
            found.append(Launch(cause, program))
    return found


def launched_program(arrow: Flow) -> SliceRef | None:
    """The run of a program that a launch leads to."""
    program = arrow.effect
    # A layer may begin where its program does.
    while program is not None and program.category == "layer":
        program = program.parent
    return program
