import asyncio
import json

import pytest

from npu_llm.serving.replicas import relaying
from npu_llm.serving.replicas.relaying import relay


class LostError(Exception):
    pass


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(relaying, "_PAUSE_S", 0.0)


def replicas(*behaviours, kind=b"application/json"):
    """A function that asks one replica after the other; each sends parts, and may be lost."""
    left = list(behaviours)

    async def answer(parts):
        yield {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        for index, part in enumerate(parts):
            if part is None:
                raise LostError
            yield {"type": "http.response.body", "body": part, "more_body": index + 1 < len(parts)}

    return lambda: answer(left.pop(0))


async def content(response):
    if hasattr(response, "body_iterator"):
        return b"".join([part async for part in response.body_iterator])
    return response.body


def test_what_is_lost_before_its_end_is_asked_again():
    async def work():
        response = await relay(replicas([None], [b"a", None], [b"b", b"c"]), (LostError,))
        assert (response.status_code, await content(response)) == (200, b"bc")

    asyncio.run(work())


def test_a_stream_is_asked_again_until_it_has_begun_and_then_ends_with_an_error():
    async def work():
        asked = replicas([None], [b"data: 1\n\n", b"data: 2\n\n", None], kind=b"text/event-stream")
        text = (await content(await relay(asked, (LostError,)))).decode()
        first, second, last = text.strip().split("\n\n")
        assert (first, second) == ("data: 1", "data: 2")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "server-replica"

    asyncio.run(work())


def test_it_gives_up_in_the_end():
    async def work():
        response = await relay(replicas(*[[None]] * 8), (LostError,))
        assert response.status_code == 503
        assert json.loads(response.body)["error"]["code"] == "server-replica"
        assert response.headers["retry-after"] == "1"

    asyncio.run(work())
