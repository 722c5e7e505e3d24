import openai
import pytest

ASKED = {"model": "plain", "input": "the quick brown fox", "temperature": 0}


def test_a_response_has_the_text_of_a_chat(client):
    response = client.responses.create(**ASKED, max_output_tokens=12)
    chat = client.chat.completions.create(
        model="plain", messages=[{"role": "user", "content": ASKED["input"]}], temperature=0,
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
    whole = client.responses.create(**ASKED, max_output_tokens=12)
    events = list(client.responses.create(**ASKED, max_output_tokens=12, stream=True))
    deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert events[0].type == "response.created"
    assert events[-1].response.output_text == whole.output_text
    assert [one.sequence_number for one in events] == list(range(len(events)))


@pytest.mark.parametrize(
    "changes",
    [
        {"store": True},
        {"previous_response_id": "resp_1"},
        {"tools": [{"type": "web_search"}]},
        {"input": []},
        {"text": {"format": {"type": "json_object"}}},
    ],
)
def test_what_is_not_done_is_refused_by_name(client, changes):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**{**ASKED, **changes})
    assert refused.value.param.startswith(next(iter(changes)))
