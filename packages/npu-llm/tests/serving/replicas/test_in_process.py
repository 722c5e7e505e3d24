import asyncio
import json

from npu_llm.serving.http.app import make_app
from npu_llm.serving.http.settings import Settings
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.models.shelf import Shelf
from npu_llm.serving.replicas.in_process import answer_in_process, sent_scope
from npu_llm.serving.scheduling.engine import EngineOptions

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
    shelf = Shelf({"plain": lambda: served})
    app = make_app(shelf, Settings())

    async def work():
        scope = sent_scope({**SCOPE, "app": object(), "state": {}})
        assert scope.keys() == SCOPE.keys()
        start, content = [one async for one in answer_in_process(app, scope, body())]
        assert start["status"] == 200
        assert json.loads(content["body"])["usage"]["completion_tokens"] <= 3
        refused, _ = [one async for one in answer_in_process(app, scope, b"{}")]
        assert refused["status"] == 400
        asked = body(stream=True, max_tokens=60_000, logit_bias={"2": -100})
        stream = answer_in_process(app, scope, asked)
        for _ in range(4):
            await anext(stream)
        await stream.aclose()
        for _ in range(200):
            if served.engine.state().running == 0:
                break
            await asyncio.sleep(0.05)
        assert served.engine.state().running == 0
        await shelf.close(grace_s=0)

    asyncio.run(work())


def test_an_application_that_fails_is_told():
    async def failing(scope, receive, send):
        raise ZeroDivisionError("planted")

    async def work():
        try:
            async for _ in answer_in_process(failing, SCOPE, b""):
                pass
        except ZeroDivisionError as failure:
            return str(failure)

    assert asyncio.run(work()) == "planted"
