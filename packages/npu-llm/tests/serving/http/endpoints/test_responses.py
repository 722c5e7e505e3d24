import json

import openai
import pytest

RESPONSE = {"model": "plain", "input": "the quick brown fox", "temperature": 0}


def test_a_response_has_the_text_of_a_chat(client):
    response = client.responses.create(**RESPONSE, max_output_tokens=12)
    chat = client.chat.completions.create(
        model="plain", messages=[{"role": "user", "content": RESPONSE["input"]}], temperature=0,
        max_tokens=12,
    )  # fmt: skip
    assert response.output_text == chat.choices[0].message.content
    assert (response.status, response.incomplete_details.reason) == (
        "incomplete", "max_output_tokens"
    )  # fmt: skip
    assert response.usage.output_tokens == 12


def test_a_conversation_with_instructions_is_taken(client):
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fox"}]}
    with_words = client.responses.create(
        model="plain", instructions="the dog", input=[item], temperature=0, max_output_tokens=6
    )
    messages = [{"role": "system", "content": "the dog"}, {"role": "user", "content": "fox"}]
    chat = client.chat.completions.create(
        model="plain", messages=messages, temperature=0, max_tokens=6
    )
    assert with_words.output_text == chat.choices[0].message.content


def test_events_come_as_the_client_expects_them(client):
    whole = client.responses.create(**RESPONSE, max_output_tokens=12)
    events = list(client.responses.create(**RESPONSE, max_output_tokens=12, stream=True))
    deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert events[0].type == "response.created"
    assert events[-1].response.output_text == whole.output_text
    assert [one.sequence_number for one in events] == list(range(len(events)))


TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def test_a_function_is_called_whole_and_streamed(client):
    asked = {**RESPONSE, "model": "tools", "tools": [TOOL], "tool_choice": "required"}
    whole = client.responses.create(**asked, max_output_tokens=200)
    (call,) = whole.output
    assert (call.type, call.name) == ("function_call", "get_weather")
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    events = list(client.responses.create(**asked, max_output_tokens=200, stream=True))
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments == events[-1].response.output[0].arguments
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    given = [{"role": "user", "content": "fox"}, call.model_dump(), output]
    again = client.responses.create(
        model="tools", input=given, tools=[TOOL], tool_choice="none", max_output_tokens=3
    )
    assert again.usage.output_tokens <= 3


def test_a_text_has_the_form_of_a_schema(client):
    form = {"type": "json_schema", "name": "one", "schema": TOOL["parameters"], "strict": True}
    found = client.responses.create(**RESPONSE, text={"format": form}, max_output_tokens=60)
    assert json.loads(found.output_text)["city"] in ("Oslo", "Rome")


@pytest.mark.parametrize(
    "changes",
    [
        {"store": True},
        {"previous_response_id": "resp_1"},
        {"tools": [{"type": "web_search"}]},
        {"background": True},
        {"input": []},
        {"text": {"format": {"type": "json_schema", "name": "x"}}},
    ],
)
def test_what_is_not_done_is_refused_by_name(client, changes):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**{**RESPONSE, **changes})
    assert refused.value.param.startswith(next(iter(changes)))
