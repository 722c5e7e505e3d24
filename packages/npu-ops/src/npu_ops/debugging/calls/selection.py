"""Which calls a tool looks at: names and patterns, a share of the calls, new signatures only."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from npu_ops.config import read_tool_lists
from npu_ops.debugging.calls.call import Call
from npu_ops.errors import OperatorInputError
from npu_ops.names import first_match

__all__ = ["Selection"]


class Selection:
    """Decides about each call, and counts what it left out. Threads may share one."""

    def __init__(
        self,
        tool: str,
        names: Sequence[str] | None,
        excluded: Sequence[str] | None,
        *,
        every: int,
        per_signature: int | None,
    ) -> None:
        """Takes the rules.

        Args:
            tool: whose lists in the environment hold where an argument is None.
            names: exact names or patterns of the ops to look at; empty for all.
            excluded: of those to leave alone; it wins over names.
            every: of the calls of one op, the first of so many.
            per_signature: how many calls of one signature at most; None for all.

        Raises:
            OperatorInputError: [tool-option] for a number below 1, or one string for a list.
        """
        for option, given in (("names", names), ("excluded", excluded)):
            if isinstance(given, str):
                raise OperatorInputError(
                    f"{option}: a list of names or patterns; got the string {given!r}. "
                    f"Pass [{given!r}].",
                    code="tool-option",
                )
        for option, number in (("every", every), ("per_signature", per_signature)):
            if number is not None and not (isinstance(number, int) and number >= 1):
                raise OperatorInputError(
                    f"{option}: a whole number from 1; got {number!r}. Pass 1 or more.",
                    code="tool-option",
                )
        lists = read_tool_lists(tool)
        self.names = lists.names if names is None else tuple(names)
        self.excluded = lists.excluded if excluded is None else tuple(excluded)
        self._every = every
        self._per_signature = per_signature
        self._lock = threading.Lock()
        self._named: dict[str, bool] = {}
        self._calls: Counter[str] = Counter()
        self._signatures: Counter[str] = Counter()
        self.left_out = 0

    def names_op(self, name: str) -> bool:
        """Whether the lists name an op."""
        if name not in self._named:
            wanted = not self.names or first_match(name, self.names) is not None
            self._named[name] = wanted and first_match(name, self.excluded) is None
        return self._named[name]

    def takes(self, call: Call) -> bool:
        """Whether a call of a named op is looked at; each question counts as a call."""
        with self._lock:
            turn = self._calls[call.name]
            self._calls[call.name] += 1
            taken = turn % self._every == 0
            if taken and self._per_signature is not None:
                signature = call.signature
                taken = self._signatures[signature] < self._per_signature
                self._signatures[signature] += taken
            self.left_out += not taken
            return taken
