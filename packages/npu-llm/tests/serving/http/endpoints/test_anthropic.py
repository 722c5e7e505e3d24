import json

import httpx
import pytest

ASKED = [{"role": "user", "content": "the quick brown fox"}]
GREEDY = {"model": "plain", "temperature": 0, "max_tokens": 12}
TOOL = {
    "name": "get_weather",
    "description": "d",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def post(server):
    def post(path="", **fields):
        body = {"messages": ASKED, **fields}
        return httpx.post(f"{server.url}/v1/messages{path}", json=body, timeout=60)

    return post


def events_of(response):
    pairs = [block.split("\n") for block in response.text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    names = [name.removeprefix("event: ") for name, _ in pairs]
    assert names == [one["type"] for one in events]
    return events


def test_a_message_has_the_text_of_openais(post, client):
    messages = [{"role": "system", "content": "be brief"}, *ASKED]
    other = client.chat.completions.create(
        model="plain", messages=messages, temperature=0, max_tokens=12
    )
    found = post(**GREEDY, system=[{"type": "text", "text": "be brief"}]).json()
    text = other.choices[0].message.content
    assert found["content"] == [{"type": "text", "text": text}]
    assert (found["stop_reason"], found["role"]) == ("max_tokens", "assistant")
    usage = found["usage"]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert (read, usage["output_tokens"]) == (other.usage.prompt_tokens, 12)
    events = events_of(post(**GREEDY, system="be brief", stream=True))
    assert "".join(e["delta"].get("text", "") for e in events if "delta" in e) == text
    assert events[0]["type"] == "message_start"
    assert [one["type"] for one in events[-3:]] == [
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"


def test_a_stop_sequence_is_named(post):
    whole = post(**GREEDY).json()["content"][0]["text"]
    stop = whole[4:6]
    found = post(**GREEDY, stop_sequences=["never there", stop]).json()
    assert found["content"][0]["text"] == whole[: whole.index(stop)]
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", stop)


def test_a_last_message_of_the_assistant_is_continued(post, client):
    whole = post(**GREEDY).json()["content"][0]["text"]
    begun = [*ASKED, {"role": "assistant", "content": whole[:3]}]
    found = post(**GREEDY, messages=begun).json()["content"][0]["text"]
    assert (whole[:3] + found).startswith(whole)
    other = client.chat.completions.create(
        model="plain", messages=begun, temperature=0, max_tokens=12,
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    )  # fmt: skip
    assert other.choices[0].message.content == found


def test_a_tool_is_called_whole_and_streamed(post):
    asked = {**GREEDY, "model": "tools", "max_tokens": 200, "tools": [TOOL]}
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        found = post(**asked, tool_choice=choice).json()
        (call,) = found["content"]
        assert (call["type"], call["name"]) == ("tool_use", "get_weather")
        assert call["input"]["city"] in ("Oslo", "Rome")
        assert found["stop_reason"] == "tool_use"
        events = events_of(post(**asked, tool_choice=choice, stream=True))
        parts = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
        assert json.loads("".join(parts)) == call["input"]
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
    output = {"type": "tool_result", "tool_use_id": call["id"], "content": "rain"}
    messages = [
        *ASKED,
        {"role": "assistant", "content": [{"type": "text", "text": "a"}, call]},
        {"role": "user", "content": [output, {"type": "text", "text": "and now?"}]},
    ]
    assert post(**{**asked, "max_tokens": 3}, messages=messages).status_code == 200


def test_an_output_has_the_form_of_a_schema(post):
    form = {"type": "json_schema", "schema": TOOL["input_schema"]}
    found = post(**{**GREEDY, "max_tokens": 60}, output_config={"format": form}).json()
    assert json.loads(found["content"][0]["text"])["city"] in ("Oslo", "Rome")


def test_tokens_are_counted(post, server):
    count = post("/count_tokens", model="plain").json()["input_tokens"]
    body = {"model": "plain", "messages": ASKED}
    assert count == httpx.post(f"{server.url}/tokenize", json=body).json()["count"]


def test_errors_have_their_form(post):
    response = post(model="plain")
    assert response.status_code == 400
    error = response.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert "max_tokens" in error["error"]["message"]
    assert post(**{**GREEDY, "model": "other"}).json()["error"]["type"] == "not_found_error"
    assert post(**GREEDY, tool_choice={"type": "tool", "name": "x"}).status_code == 400
