import json
import logging
import socket
import time

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_llm.errors import OptionError
from npu_llm.serving.http.middleware import LOG
from npu_llm.serving.http.settings import Settings

CODE = "request-"
PLACES = ("/v1/chat/completions", "/v1/completions", "/tokenize")
ASKED = {"model": "plain", "messages": [{"role": "user", "content": "the"}], "max_tokens": 2}


def post(server, path, content, **headers):
    given = {"content-type": "application/json"} | headers
    return httpx.post(server.url + path, content=content, headers=given, timeout=60)


def is_refused(response):
    error = response.json()["error"]
    return 400 <= response.status_code < 500 and f"[{error['code']}]" in error["message"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
fields = (
    "messages", "prompt", "temperature", "top_p", "top_k", "min_p", "n", "stop", "stream", "seed",
    "max_tokens", "max_completion_tokens", "logit_bias", "logprobs", "top_logprobs", "tools",
    "tool_choice", "response_format", "regex", "grammar", "stream_options", "echo", "user",
    "chat_template_kwargs", "frequency_penalty", "model", "add_special_tokens",
)  # fmt: skip
bodies = st.dictionaries(st.sampled_from(fields), values, max_size=5)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(PLACES), body=bodies, is_whole=st.booleans())
def test_bodies_of_any_shape_are_answered_or_refused(server, path, body, is_whole):
    if is_whole:  # one field of a good request is drawn
        body = {**ASKED, **dict(list(body.items())[:1])}
        if path != PLACES[0]:
            del body["messages"]
            body.setdefault("prompt", "the")
    body.setdefault("max_tokens", 2)
    if isinstance(body.get("max_completion_tokens"), int):
        body["max_completion_tokens"] = min(body["max_completion_tokens"], 2)
    response = post(server, path, json.dumps(body))
    assert response.status_code == 200 or is_refused(response), (body, response.text)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=60) | values.map(lambda one: json.dumps(one).encode()))
def test_bytes_of_any_kind_are_refused(server, content):
    response = post(server, PLACES[0], content)
    assert is_refused(response), response.text
    assert response.json()["error"]["code"].startswith(CODE)


@pytest.mark.parametrize(
    "content, code",
    [
        (b"[" * 100_000, "request-json"),
        (b'{"messages": ' + b"[" * 2000 + b"]" * 2000 + b"}", "request-json"),
        (b'{"a": 1', "request-json"),
        (b"\xff\xfe", "request-json"),
        (json.dumps({**ASKED, "temperature": float("nan")}).encode(), "request-field"),
        (
            json.dumps({**ASKED, "messages": [{"role": "user", "content": "\ud800"}]}).encode(),
            "text-encoding",
        ),
        (json.dumps({**ASKED, "seed": 1 << 70}).encode(), "request-field"),
        (json.dumps({**ASKED, "regex": "(a{1,9999}){1,9999}(b{9,9999}){9,9999}"}).encode(), None),
    ],
)
def test_hostile_bodies_end_within_bounds(server, content, code):
    started = time.perf_counter()
    response = post(server, PLACES[0], content)
    assert time.perf_counter() - started < 20
    assert response.status_code == 200 if code is None else is_refused(response)
    assert code in (None, response.json().get("error", {}).get("code"))


def test_schemas_without_end_do_not_hang(server):
    schema = {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    response = post(server, PLACES[0], json.dumps({**ASKED, "response_format": form}))
    assert response.status_code == 200 or is_refused(response)


def test_size_type_and_time_are_bounded(serve):
    with serve("plain", max_body_bytes=2000, body_timeout_s=0.5) as server:
        long = json.dumps({**ASKED, "user": "x" * 3000})
        assert post(server, PLACES[0], long).json()["error"]["code"] == "request-size"

        def parts():
            for _ in range(10):
                yield b" " * 1000

        response = post(server, PLACES[0], parts())
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request-size")
        plain = {"content-type": "text/plain"}
        assert post(server, PLACES[0], json.dumps(ASKED), **plain).status_code == 200
        response = post(server, PLACES[0], b"{}", origin="https://evil.example", **plain)
        assert (response.status_code, response.json()["error"]["code"]) == (415, "request-type")
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            head = (
                "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            )
            slow.sendall(f"{head}Content-Length: 90\r\n\r\n{{".encode())
            slow.settimeout(20)
            answer = b"".join(iter(lambda: slow.recv(4096), b"")).decode()
        assert " 408 " in answer.splitlines()[0]
        assert "request-time" in answer


def test_a_key_is_asked_for(serve):
    with serve("plain", api_keys=("s3cret", "other")) as server:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
            response = httpx.get(f"{server.url}/v1/models", headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "server-key"
        for headers in ({"authorization": "Bearer s3cret"}, {"x-api-key": "other"}):
            assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert httpx.get(f"{server.url}/metrics").status_code == 401


def test_a_name_of_another_site_does_not_lead_here(server):
    response = httpx.get(f"{server.url}/v1/models", headers={"host": "evil.example"})
    assert (response.status_code, response.json()["error"]["code"]) == (403, "server-host")
    for name in ("localhost:80", "127.0.0.1", "[::1]:8000"):
        assert httpx.get(f"{server.url}/v1/models", headers={"host": name}).status_code == 200


def test_other_addresses_need_a_key_or_a_word():
    with pytest.raises(OptionError, match="server-address"):
        Settings(host="0.0.0.0")
    assert Settings(host="0.0.0.0", api_keys=("k",)).checks_host is False
    assert Settings(host="0.0.0.0", is_open=True).host == "0.0.0.0"
    assert Settings(host="::1").checks_host


def test_what_is_not_there_and_what_fails_have_the_same_form(server, monkeypatch):
    response = httpx.get(f"{server.url}/v1/nothing")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown-path")
    response = httpx.get(f"{server.url}/v1/completions")
    assert (response.status_code, response.json()["error"]["code"]) == (405, "request-method")
    assert response.headers["allow"] == "POST"
    assert httpx.get(f"{server.url}/v1/models/no").json()["error"]["code"] == "unknown-model"
    post(server, PLACES[0], json.dumps(ASKED))

    def fail(*_, **__):
        raise ZeroDivisionError("planted")

    engine = server.model().engine
    monkeypatch.setattr(engine, "submit_all", fail)
    response = post(server, PLACES[0], json.dumps(ASKED))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "server-failure")
    assert "planted" not in response.text
    monkeypatch.undo()
    monkeypatch.setattr(engine._store, "run", fail)
    streamed = post(server, PLACES[0], json.dumps({**ASKED, "stream": True}))
    last = streamed.text.strip().splitlines()[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "server-failure"
    monkeypatch.undo()
    assert post(server, PLACES[0], json.dumps(ASKED)).status_code == 200


def test_models_health_and_tokens(server, client):
    assert [one.id for one in client.models.list()] == ["plain", "tools"]
    assert client.models.retrieve("tools").id == "tools"
    assert httpx.get(f"{server.url}/health").json()["status"] == "ok"
    text = post(server, "/tokenize", json.dumps({"prompt": "the fox", "model": "plain"})).json()
    assert text["tokens"] == server.model().tokenizer.encode("the fox")
    chat = post(server, "/tokenize", json.dumps({"messages": ASKED["messages"]})).json()
    assert chat["count"] == len(chat["tokens"]) > 5
    assert chat["max_model_len"] == 512
    assert post(server, "/tokenize", b"{}").json()["error"]["code"] == "request-field"


def test_health_tells_of_an_engine_that_failed(serve):
    with serve("plain") as server:
        post(server, PLACES[0], json.dumps(ASKED))
        assert httpx.get(f"{server.url}/health").status_code == 200
        server.model().engine.close()
        response = httpx.get(f"{server.url}/health")
        assert (response.status_code, response.json()["status"]) == (503, "failed")
        response = post(server, PLACES[0], json.dumps(ASKED))
        assert (response.status_code, response.json()["error"]["code"]) == (503, "server-stopping")


def test_figures_have_the_names_of_vllm(server):
    post(server, PLACES[0], json.dumps(ASKED))
    text = httpx.get(f"{server.url}/metrics").text
    for name in (
        "time_to_first_token_seconds_count", "e2e_request_latency_seconds_sum",
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
        "prompt_tokens_total", "generation_tokens_total", "prefix_cache_hits_total",
        "num_preemptions_total",
    ):  # fmt: skip
        assert f'vllm:{name}{{model_name="plain"}}' in text


def test_a_request_keeps_the_number_that_it_came_with(server):
    response = httpx.get(f"{server.url}/health", headers={"x-request-id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    other = httpx.get(f"{server.url}/health", headers={"x-request-id": "no spaces"})
    assert other.headers["x-request-id"] != "no spaces"


def test_a_path_with_line_breaks_is_one_line_of_the_log(server, caplog, monkeypatch):
    monkeypatch.setattr(LOG, "propagate", True)  # a command that ran here before may have set no
    with caplog.at_level(logging.INFO, LOG.name):
        response = httpx.get(f"{server.url}/v1/a%0D%0Ab")
        for _ in range(100):  # it is written once the answer was sent
            lines = [one.getMessage() for one in caplog.records if one.name == LOG.name]
            if lines:
                break
            time.sleep(0.05)
    assert response.json()["error"]["code"] == "unknown-path"
    (line,) = lines
    assert "path=/v1/a%0D%0Ab status=404" in line


def test_the_page_needs_nothing_from_elsewhere(server):
    response = httpx.get(server.url, headers={"accept": "text/html,*/*;q=0.8"})
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "http://" not in response.text.replace("http://www.w3.org", "")
    assert "https://" not in response.text
