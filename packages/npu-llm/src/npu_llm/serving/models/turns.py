"""Turns: one thread in which requests do their work, one piece after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from npu_llm.errors import ServerError

__all__ = ["Turns"]

_Result = TypeVar("_Result")


class Turns:
    """A thread, and how many requests use it or wait for it.

    Attributes:
        waiting: those requests.
        is_closed: whether it has ended.
    """

    def __init__(self, name: str, *, most_waiting: int) -> None:
        """Starts without requests.

        Args:
            name: of the thread.
            most_waiting: requests that are taken at once; more are refused.
        """
        self.waiting = 0
        self.is_closed = False
        self._most_waiting = most_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Counts a request for the block; raises ServerError [server-busy] for one too many."""
        if self.waiting >= self._most_waiting:
            raise ServerError(
                f"server: takes {self._most_waiting} requests for this model at once; got one "
                "more. Ask again later.",
                code="server-busy",
            )
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    async def do(self, work: Callable[[], _Result]) -> _Result:
        """Returns what a piece of work does in the thread; raises ServerError [server-stopping]."""
        if self.is_closed:
            raise ServerError(
                "server: must be running to take a request; got one while it stops. Ask again "
                "when it has started.",
                code="server-stopping",
            )
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Ends it once the piece that runs is done."""
        self.is_closed = True
        self._thread.shutdown(cancel_futures=True)
