"""Service: what all endpoints of one server share."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from npu_llm.serving.answers.answer import Answer
from npu_llm.serving.http.bodies import Body, FormBody
from npu_llm.serving.http.event_stream import EventStream, event
from npu_llm.serving.http.forms import read_form
from npu_llm.serving.http.gate import LOG, noted
from npu_llm.serving.http.measures import Measures
from npu_llm.serving.http.receiving import read_body
from npu_llm.serving.http.refusals import error_content, status_of
from npu_llm.serving.http.settings import Settings
from npu_llm.serving.http.several import ClientLeftError, while_there
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.models.shelf import Shelf

__all__ = ["Asked", "Service", "service_of"]

_Wanted = TypeVar("_Wanted", bound=Body)
_Form = TypeVar("_Form", bound=FormBody)

_SOUND_BYTES = 25 << 20  # OpenAI's bound of a form with a sound


@dataclass(kw_only=True)
class Asked:
    """The answers to one request, on their way.

    Attributes:
        served: the model.
        prompt_tokens: of all prompts together.
        answers: one for each choice.
        id: of the response.
        created: seconds since 1970.
    """

    served: ServedModel
    prompt_tokens: int
    answers: Sequence[Answer]
    id: str
    created: int

    @classmethod
    def of(
        cls, kind: str, served: ServedModel, prompt_tokens: int, answers: Sequence[Answer]
    ) -> Asked:
        """Returns it with a new id, which begins with `kind`."""
        return cls(
            served=served, prompt_tokens=prompt_tokens, answers=answers,
            id=f"{kind}-{uuid.uuid4().hex}", created=int(time.time()),
        )  # fmt: skip

    def usage(self) -> dict[str, Any]:
        """Returns how many tokens were read and written."""
        written = sum(answer.tokens for answer in self.answers)
        cached = self.answers[0].cached_tokens if self.answers else 0
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.prompt_tokens + written,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


class Service:
    """A server's models, settings and counts.

    Attributes:
        shelf: the models.
        settings: how it is reached.
        measures: figures of its answers.
        started: seconds since 1970.
    """

    def __init__(self, shelf: Shelf, settings: Settings) -> None:
        self.shelf = shelf
        self.settings = settings
        self.measures = Measures(shelf)
        self.started = int(time.time())

    async def read(self, request: Request, wanted: type[_Wanted]) -> _Wanted:
        """Returns a request's body; raises as read_body does."""
        settings = self.settings
        return await read_body(
            request, wanted, most_bytes=settings.most_body_bytes, seconds=settings.body_s
        )

    async def read_form(self, request: Request, wanted: type[_Form]) -> tuple[_Form, bytes]:
        """Returns a form's fields and its file; raises as npu_llm.serving.http.forms does."""
        settings = self.settings
        most = max(settings.most_body_bytes, _SOUND_BYTES)
        return await read_form(request, wanted, most_bytes=most, seconds=settings.body_s)

    async def answer(
        self,
        request: Request,
        model: str | None,
        ask: Callable[[ServedModel], Awaitable[Asked]],
        *,
        whole: Callable[[Asked], Coroutine[Any, Any, dict[str, Any]]],
        events: Callable[[Asked], AsyncGenerator[bytes, None]] | None,
    ) -> Response:
        """Answers with one object, or with events.

        Args:
            request: its body was read.
            model: the name that it has for the model.
            ask: starts the answers.
            whole: waits for them.
            events: tells them as they come; None where one object is wanted.
        """
        stack = AsyncExitStack()
        try:
            served = await stack.enter_async_context(self.shelf.use(model, ServedModel))
            asked = await ask(served)
        except BaseException:
            await stack.aclose()
            raise

        async def close() -> None:
            for answer in asked.answers:
                answer.close()
            self._note(request, asked)
            await stack.aclose()

        if events is not None:
            return EventStream(_told(request, events(asked)), close)
        try:
            return JSONResponse(await while_there(request, whole(asked)))
        except ClientLeftError:
            return Response(status_code=499)  # nobody reads it
        finally:
            await close()

    def _note(self, request: Request, asked: Asked) -> None:
        notes = noted(request.scope)
        notes["model"] = asked.served.name
        notes["prompt_tokens"] = asked.prompt_tokens
        notes["completion_tokens"] = sum(answer.tokens for answer in asked.answers)
        firsts = [one.first_s - one.arrived_s for one in asked.answers if one.first_s is not None]
        if firsts:
            notes["first_token_seconds"] = round(min(firsts), 4)
        share = asked.prompt_tokens // max(len(asked.answers), 1)
        for answer in asked.answers:
            self.measures.note(asked.served.name, share, answer)


def service_of(request: Request) -> Service:
    """Returns the service that a request was sent to."""
    service: Service = request.app.state.service
    return service


async def _told(
    request: Request, events: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Passes events on, and tells of a failure among them as OpenAI's clients expect it."""
    try:
        async for one in events:
            yield one
    except Exception as failure:  # noqa: BLE001  # the status was sent: this is how it is told
        if status_of(failure) == 500:
            notes = {"request": request.scope.get("npu_llm.request")}
            LOG.exception("a request failed", extra={"notes": notes})
        yield event(error_content(failure))
