"""Calls of the functions of a table: what must succeed, what must be refused and how."""

import re
from typing import Any

from npu_runtime.driver_conformance.driver_table import DriverTable, Status
from npu_runtime.driver_conformance.isolation import LastCall
from npu_runtime.driver_conformance.locate import DriverUnderTest
from npu_runtime.driver_conformance.registry import CheckFailure

__all__ = ["DriverCalls", "expect"]

_SENTENCE = re.compile(r"[A-Za-z_][\w:.]*: \S")


def expect(holds: bool, reason: str) -> None:
    """Fails the check with ``reason`` unless ``holds``."""
    if not holds:
        raise CheckFailure(reason)


class DriverCalls:
    """The table of one driver in this process.

    Args:
        driver: which.
        last_call: learns the name of each function before it is called.
    """

    def __init__(self, driver: DriverUnderTest, last_call: LastCall) -> None:
        self.driver = driver
        self._last_call = last_call
        last_call.set("npu_driver_table")
        address = driver.table_address()
        if not address:
            raise CheckFailure("npu_driver_table gave NULL", function="npu_driver_table")
        self.table = DriverTable.from_address(address)

    def has(self, function: str) -> bool:
        """Whether the table has this function, or NULL."""
        return bool(getattr(self.table, function))

    def call(self, function: str, *arguments: Any) -> Any:
        """Calls a function of the table; gives what it gives."""
        if not self.has(function):
            raise CheckFailure("the function is NULL", function=function)
        self._last_call.set(function)
        return getattr(self.table, function)(*arguments)

    def must(self, function: str, *arguments: Any) -> None:
        """Calls a function whose arguments are right; the check fails unless it gives NPU_OK."""
        status = self.call(function, *arguments)
        if status != Status.OK:
            raise CheckFailure(
                f"gave {status_name(status)}: {self.last_error()}", function=function
            )

    def refuses(
        self, function: str, *arguments: Any, what: str, status: Status = Status.ERROR_ARGUMENT
    ) -> None:
        """Calls a function with something wrong; it must say so.

        Args:
            function: which.
            *arguments: what it gets.
            what: what is wrong about them, for the report.
            status: what it must give.
        """
        got = self.call(function, *arguments)
        expect(
            got == status,
            f"gave {status_name(got)} for {what}; the rule is {status_name(status)}",
        )
        self.expect_sentence()

    def fails(self, function: str, *arguments: Any, what: str) -> None:
        """Like ``refuses``, where the driver chooses the status."""
        got = self.call(function, *arguments)
        expect(got != Status.OK, f"gave NPU_OK for {what}")
        self.expect_sentence()

    def last_error(self) -> str:
        """The calling thread's sentence."""
        text = self.call("last_error")
        if text is None:
            raise CheckFailure("gave NULL", function="last_error")
        return bytes(text).decode(errors="replace")

    def expect_sentence(self) -> None:
        """The latest failure must have left a sentence that names the call."""
        text = self.last_error()
        if not _SENTENCE.match(text) or "\n" in text:
            raise CheckFailure(
                f'after a failure it says {text!r}; the rule is one line, "call: what went wrong"'
            )


def status_name(status: int) -> str:
    """The status as the header writes it."""
    known = {int(item): f"NPU_{item.name}" for item in Status}
    return known.get(status, f"npu_status {status}")
