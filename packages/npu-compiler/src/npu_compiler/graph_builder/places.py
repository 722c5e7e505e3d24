"""Where in the user's own code a call of a graph stands."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.fx.traceback as fx_traceback

__all__ = ["Place", "at_place", "find_place", "pass_over"]

# Modules through which a call comes here from the user's line: modules of torch call functions, and
# what checks the kinds of arguments calls methods.
_between = {__name__.rpartition(".")[0], "torch", "npu_runtime.public_calls"}


@dataclass(frozen=True)
class Place:
    """A line of Python.

    Attributes:
        file: path.
        line: number in it, from 1.
        function: that the line is in.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def pass_over(package: str) -> None:
    """Makes find_place look for the caller of a package whose code builds graphs for a user.

    Args:
        package: its dotted name.
    """
    _between.add(package)


def find_place() -> Place | None:
    """Returns the innermost line outside of torch and of what builds graphs; None without one."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not any(module == name or module.startswith(f"{name}.") for name in _between):
            return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return None


@contextlib.contextmanager
def at_place(place: Place | None) -> Iterator[None]:
    """Says where the calls stand that torch.export captures in the body."""
    if place is None or not torch.compiler.is_exporting():
        yield
        return
    with fx_traceback.preserve_node_meta():
        fx_traceback.set_stack_trace(
            [f'  File "{place.file}", line {place.line}, in {place.function}\n']
        )
        yield
