"""Waits for several answers at once, and gives up when nobody waits for them any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.requests import Request

from npu_llm.serving.answers.answer import Answer, Piece

__all__ = ["ClientLeftError", "merged", "while_there"]

_Result = TypeVar("_Result")


class ClientLeftError(Exception):
    """The client closed its connection."""


async def merged(answers: Sequence[Answer]) -> AsyncGenerator[tuple[int, Piece], None]:
    """Yields the pieces of all answers as they come, each with its answer's index.

    Raises:
        Exception: what the first answer to fail raises.
    """
    if len(answers) == 1:  # without a task between, which costs as much as the rest
        async for piece in answers[0].pieces():
            yield 0, piece
        return
    came: asyncio.Queue[tuple[int, Piece | BaseException | None]] = asyncio.Queue()

    async def follow(index: int) -> None:
        try:
            async for piece in answers[index].pieces():
                came.put_nowait((index, piece))
            came.put_nowait((index, None))
        except Exception as failure:  # noqa: BLE001  # raised where it is waited for
            came.put_nowait((index, failure))

    tasks = [asyncio.create_task(follow(index)) for index in range(len(answers))]
    try:
        left = len(answers)
        while left:
            index, told = await came.get()
            if isinstance(told, BaseException):
                raise told
            if told is None:
                left -= 1
            else:
                yield index, told
    finally:
        for task in tasks:
            task.cancel()
        for answer in answers:
            answer.close()


async def while_there(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Returns what the work does, unless the client leaves first.

    Raises:
        ClientLeftError: if it does; the work is cancelled then.
    """
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientLeftError
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
