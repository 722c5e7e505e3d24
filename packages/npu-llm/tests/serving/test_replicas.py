import asyncio
import json

import pytest

from npu_llm.engine.engine import EngineOptions
from npu_llm.serving.http.app import make_app
from npu_llm.serving.http.settings import Settings
from npu_llm.serving.models.registry import ModelRegistry
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.replicas import prefix_key, relay, run_in_process, sent_scope

SYSTEM = {"role": "system", "content": "be brief"}


def chat(*messages, **more):
    return prefix_key(json.dumps({"model": "m", "messages": messages, **more}).encode())


def test_what_begins_alike_has_one_name():
    one = chat(SYSTEM, {"role": "user", "content": "a"})
    assert one == chat(SYSTEM, {"role": "user", "content": "b"}, temperature=0)
    assert one != chat({"role": "user", "content": "b"})
    assert one != chat(SYSTEM, model="other")
    assert len(one) == 16
    assert chat(SYSTEM, prompt_cache_key="x") == chat(prompt_cache_key="x")


@pytest.mark.parametrize("prompt", ["some text", ["some text", "b"], [5, 6, 7], [[5, 6], [7]]])
def test_prompts_of_each_kind_have_one(prompt):
    first = prefix_key(json.dumps({"prompt": prompt}).encode())
    assert first
    assert first == prefix_key(json.dumps({"prompt": prompt, "max_tokens": 4}).encode())


@pytest.mark.parametrize("body", [b"", b"[1]", b"\xff", b"[" * 90_000, b'{"messages": 5}', b"{}"])
def test_what_has_no_text_has_none(body):
    assert prefix_key(body) == ""


SCOPE = {
    "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http",
    "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions", "query_string": b"",
    "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
}  # fmt: skip


def body(**more):
    messages = [{"role": "user", "content": "the"}]
    return json.dumps({"messages": messages, "max_tokens": 3, **more}).encode()


def test_answers_are_those_of_the_application(speakers):
    served = ServedModel("plain", speakers("long"), EngineOptions())
    registry = ModelRegistry({"plain": lambda: served})
    app = make_app(registry, Settings())

    async def work():
        scope = sent_scope({**SCOPE, "app": object(), "state": {}})
        assert scope.keys() == SCOPE.keys()
        start, content = [one async for one in run_in_process(app, scope, body())]
        assert start["status"] == 200
        assert json.loads(content["body"])["usage"]["completion_tokens"] <= 3
        refused, _ = [one async for one in run_in_process(app, scope, b"{}")]
        assert refused["status"] == 400
        asked = body(stream=True, max_tokens=60_000, logit_bias={"2": -100})
        stream = run_in_process(app, scope, asked)
        for _ in range(4):
            await anext(stream)
        await stream.aclose()
        for _ in range(200):
            if served.engine.state().running == 0:
                break
            await asyncio.sleep(0.05)
        assert served.engine.state().running == 0
        await registry.close(grace_s=0)

    asyncio.run(work())


def test_an_application_that_fails_is_told():
    async def failing(scope, receive, send):
        raise ZeroDivisionError("planted")

    async def work():
        try:
            async for _ in run_in_process(failing, SCOPE, b""):
                pass
        except ZeroDivisionError as failure:
            return str(failure)

    assert asyncio.run(work()) == "planted"


class LostError(Exception):
    pass


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("npu_llm.serving.replicas._PAUSE_S", 0.0)


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
