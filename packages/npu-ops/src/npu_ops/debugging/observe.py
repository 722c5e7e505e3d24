"""`OpObserve`: prints or keeps each call, at one of three levels of detail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

import torch
from torch.utils._pytree import tree_leaves

from npu_ops.debugging.calls.call import Call, describe
from npu_ops.debugging.report import Report
from npu_ops.debugging.tool import OpTool, aside
from npu_ops.errors import OperatorInputError

__all__ = ["OpObserve"]

_LEVELS = (1, 2, 3)


class OpObserve(OpTool):
    """Tells of each call: its name, its arguments and results, or their values as well."""

    tool_name = "OBSERVE"

    def __init__(
        self,
        names: Sequence[str] | None = None,
        excluded: Sequence[str] | None = None,
        *,
        level: int = 2,
        stream: TextIO | None = None,
        every: int = 1,
        per_signature: int | None = None,
    ) -> None:
        """Prepares the tool; see OpTool for the options that all tools have.

        Args:
            names: of the ops to tell of.
            excluded: of those to leave alone.
            level: 1 for names and places; 2 with dtypes, shapes, layouts and devices of arguments
                and results; 3 with the least, largest and mean value and the NaN of each tensor.
            stream: where each call is printed when it ends; None keeps it for the report alone.
            every: of the calls of one op, tell of the first of so many.
            per_signature: how many calls of one signature to tell of.

        Raises:
            OperatorInputError: [tool-option].
        """
        super().__init__(names, excluded, every=every, per_signature=per_signature)
        if level not in _LEVELS:
            raise OperatorInputError(
                f"level: 1, 2 or 3; got {level}. Pass 1 for names, 2 for shapes, 3 for values.",
                code="tool-option",
            )
        self._level = level
        self._stream = stream
        self._rows: list[tuple[int, str, str, str, str, str]] = []

    def take(self, call: Call) -> Any:
        """Runs the call, and tells of it."""
        given = self._words(call.args, call.kwargs)
        results = call.op(*call.args, **call.kwargs)
        returned = self._words((results,), {})
        row = (call.number, call.phase, call.name, given, returned, call.line or call.node)
        with self._lock:
            self._rows.append(row)
            if self._stream is not None:
                arrow = f"({given}) -> {returned}" if self._level > 1 else ""
                print(f"{row[0]} {row[1]} {row[2]}{arrow}  {row[5]}", file=self._stream)
        return results

    def report(self) -> Report:
        """One row for each call, in order of their ends."""
        names = {row[2] for row in self._rows}
        return Report(
            "Calls of ops",
            ("call", "phase", "op", "arguments", "results", "called by"),
            tuple(self._rows),
            f"{len(self._rows):,} calls of {len(names):,} ops.",
        )

    def _words(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if self._level == 1:
            return ""
        words = [describe(value) for value in args]
        words += [f"{name}={describe(value)}" for name, value in kwargs.items()]
        if self._level == 3:
            leaves = tree_leaves((args, kwargs))
            with aside():
                words += [_values(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return ", ".join(words)


def _values(tensor: torch.Tensor) -> str:
    """Such as `{-1.2 to 3.4, mean 0.1, 2 NaN}`."""
    if tensor.is_meta or tensor.numel() == 0 or tensor.layout is not torch.strided:
        return "{}"
    if tensor.is_complex() or tensor.is_nested or tensor.is_quantized:
        return "{}"
    values = tensor.detach().cpu().to(torch.float64)
    known = values[~values.isnan()]
    nan = values.numel() - known.numel()
    text = "all NaN"
    if known.numel():
        text = f"{known.min():.4g} to {known.max():.4g}, mean {known.mean():.4g}"
    return f"{{{text}, {nan} NaN}}" if nan and known.numel() else f"{{{text}}}"
