"""Reasoning in each interface: apart from the text, bounded, and as much as was asked for."""

import json
import urllib.request

import pytest

from npu_llm.chat.output_parser import Delta as Part
from npu_llm.serving.generation import Delta
from npu_llm.serving.http.endpoints.anthropic import _Blocks
from npu_llm.serving.http.endpoints.responses import _Items

ASKED = [{"role": "user", "content": "the quick"}]
# The form applies to the text after the reasoning, which here repeats it.
FORM = "<think>hm</think>yes"


@pytest.fixture(scope="module")
def thinker(serve):
    with serve("thinks") as running:
        yield running


def post(thinker, path, **body):
    """The object, or the objects of the lines or events, of a response."""
    request = urllib.request.Request(
        thinker.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        text = response.read().decode()
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_chat_completions_have_it_apart(thinker):
    body = {"messages": ASKED, "regex": FORM, "reasoning": {"max_tokens": 0}, "max_tokens": 60}
    (whole,) = post(thinker, "/v1/chat/completions", **body)
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "yes")
    details = whole["usage"]["completion_tokens_details"]
    assert 1 <= details["reasoning_tokens"] <= len("hm")
    chunks = post(thinker, "/v1/chat/completions", **body, stream=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert "".join(delta.get("content") or "" for delta in deltas) == "yes"


def test_the_effort_reaches_the_template(thinker):
    def read(**fields):
        body = {"messages": ASKED, "max_tokens": 1, **fields}
        (whole,) = post(thinker, "/v1/chat/completions", **body)
        return whole["usage"]["prompt_tokens"]

    plain = read()
    assert read(reasoning_effort="high") > plain
    assert read(reasoning={"effort": "high"}) == read(reasoning_effort="high")
    assert read(reasoning_effort="none") > plain
    assert read(chat_template_kwargs={"enable_thinking": False}) == read(reasoning_effort="none")


def test_a_form_comes_after_reasoning_within_its_budget(thinker):
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": ASKED, "response_format": form, "thinking_budget": 3, "max_tokens": 90}
    for seed in range(3):
        (whole,) = post(thinker, "/v1/chat/completions", **body, seed=seed)
        assert json.loads(whole["choices"][0]["message"]["content"]) == {"a": 1}


DELTAS = [
    Delta(0, reasoning="h"),
    Delta(0, reasoning="m"),
    Delta(0, "yes"),
    Delta(0, parts=(Part("call", "find", 0, "c1"), Part("arguments", '{"a"', 0))),
    Delta(0, parts=(Part("arguments", ": 1}", 0), Part("call", "stop", 1, "c2"))),
    Delta(0, parts=(Part("arguments", "{}", 1),), finish="stop"),
]


def test_items_and_blocks_come_one_after_the_other():
    items, blocks = _Items(), _Blocks()
    events = [event for delta in DELTAS for event in items.add(delta)]
    assert [item["type"] for item in items.complete] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip
    assert items.complete[0]["content"][0]["text"] == "hm"
    assert [item.get("arguments") for item in items.complete[2:]] == ['{"a": 1}', "{}"]
    kinds = [kind for kind, _ in events]
    assert kinds.count("response.output_item.added") == 4
    assert kinds.count("response.function_call_arguments.delta") == 3
    assert kinds[-1] == "response.output_item.done"
    told = [event for delta in DELTAS for event in blocks.add(delta)]
    begun = [one["content_block"]["type"] for kind, one in told if kind == "content_block_start"]
    assert begun == ["thinking", "text", "tool_use", "tool_use"]
    assert [one["index"] for kind, one in told if kind == "content_block_stop"] == [0, 1, 2, 3]
    assert (blocks.finish, blocks.has_calls is True) == ("stop", True)


def test_responses_have_an_item_for_it(thinker):
    body = {"input": "the quick", "max_output_tokens": 200, "reasoning": {"effort": "low"}}
    (whole,) = post(thinker, "/v1/responses", **body)
    assert whole["output"][-1]["type"] == "message"


def test_ollama_and_anthropic_take_its_fields(thinker):
    ollama = {"model": "thinks", "messages": ASKED, "options": {"num_predict": 4}}
    read = [
        post(thinker, "/api/chat", **ollama, think=think)[-1]["prompt_eval_count"]
        for think in (False, "high")
    ]
    assert read[0] != read[1]
    body = {"model": "thinks", "messages": ASKED, "max_tokens": 4}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    (whole,) = post(thinker, "/v1/messages", **body, thinking=thinking)
    assert whole["type"] == "message"
