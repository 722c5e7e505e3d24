import json
import time

import openai
import pytest
import torch

ASKED = [{"role": "user", "content": "the quick brown fox"}]
GREEDY = {"model": "plain", "messages": ASKED, "temperature": 0}
ENDLESS = {"ignore_eos": True}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"enum": [1, 2]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


def generated(speakers, messages, count):
    """The greedy answer of the model's generate, as text."""
    model = speakers("plain")
    inputs = model.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=count, do_sample=False)
    new = output[0, inputs["input_ids"].shape[1] :]
    return model.tokenizer.decode(new, skip_special_tokens=True)


def test_an_answer_is_that_of_generate(client, speakers):
    answer = client.chat.completions.create(**GREEDY, max_completion_tokens=20)
    assert answer.choices[0].message.content == generated(speakers, ASKED, 20)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 20
    assert answer.model == "plain"


def test_an_answer_without_max_tokens_ends_with_the_context(client, server):
    answer = client.chat.completions.create(**GREEDY | {"temperature": 50}, extra_body=ENDLESS)
    usage = answer.usage
    assert answer.choices[0].finish_reason == "length"
    assert usage.total_tokens == server.model("plain").context_length


@pytest.mark.parametrize("asked", [{}, {"max_tokens": 300}, {"max_tokens": 5}])
def test_a_server_bounds_its_answers(serve, asked):
    with serve("plain", engine={"max_new_tokens": 30}) as running:
        answer = running.client().chat.completions.create(**GREEDY, extra_body=ENDLESS, **asked)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == min(asked.get("max_tokens", 30), 30)


def test_a_stream_has_the_same_text_and_its_usage(client):
    whole = client.chat.completions.create(**GREEDY, max_tokens=24)
    chunks = list(
        client.chat.completions.create(
            **GREEDY, max_tokens=24, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_beginning_that_was_read_is_counted_as_cached(client):
    long = [{"role": "user", "content": "over the lazy dog " * 8}]
    first = client.chat.completions.create(model="plain", messages=long, max_tokens=2)
    again = client.chat.completions.create(model="plain", messages=long, max_tokens=2)
    assert first.usage.prompt_tokens_details.cached_tokens < 16
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert cached == (again.usage.prompt_tokens - 1) // 16 * 16


def test_a_stop_string_ends_an_answer_before_it(client):
    whole = client.chat.completions.create(**GREEDY, max_tokens=24).choices[0].message.content
    stop = whole[9:12]
    for stream in (False, True):
        answer = client.chat.completions.create(
            **GREEDY, max_tokens=24, stop=["never there", stop], stream=stream
        )
        if stream:
            chunks = list(answer)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
        assert (text, reason) == (whole[: whole.index(stop)], "stop")


def test_draws_with_a_seed_repeat_and_choices_differ(client):
    asked = {**GREEDY, "temperature": 1.5, "seed": 7, "max_tokens": 16, "n": 3}
    first, again = (client.chat.completions.create(**asked) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 3
    other = client.chat.completions.create(**{**asked, "seed": 8})
    assert texts != [choice.message.content for choice in other.choices]
    parts = ["", "", ""]
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            parts[choice.index] += choice.delta.content or ""
    assert parts == texts


def test_settings_that_others_know_are_taken(client):
    greedy = client.chat.completions.create(**GREEDY, max_tokens=12).choices[0].message.content
    for extra in ({"top_k": 1}, {"min_p": 1.0}, {"top_k": -1, "min_p": 1.0}):
        answer = client.chat.completions.create(
            model="plain", messages=ASKED, temperature=1.7, max_tokens=12, extra_body=extra
        )
        assert answer.choices[0].message.content == greedy
    fixed = client.chat.completions.create(
        **GREEDY, max_tokens=3, logit_bias={"20": 100}, frequency_penalty=0.5, presence_penalty=0.5
    )
    (token,) = set(fixed.choices[0].message.content)
    assert fixed.choices[0].message.content == token * 3


def test_logarithms_come_with_the_tokens(client):
    answer = client.chat.completions.create(**GREEDY, max_tokens=5, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    assert all(len(one.top_logprobs) == 3 for one in content)
    assert all(one.top_logprobs[0].logprob == one.logprob for one in content)  # greedy
    streamed = [
        entry
        for chunk in client.chat.completions.create(
            **GREEDY, max_tokens=5, logprobs=True, top_logprobs=3, stream=True
        )
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content
    ]
    assert [one.token for one in streamed] == [one.token for one in content]


def test_an_answer_has_the_form_of_a_schema(client):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "integer", "maximum": 99}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}}
    for seed in range(5):
        answer = client.chat.completions.create(
            model="plain", messages=ASKED, seed=seed, max_tokens=100, response_format=form
        )
        found = json.loads(answer.choices[0].message.content)
        assert found["a"] in ("x", "yy")
        assert found["b"] <= 99
        assert answer.choices[0].finish_reason == "stop"


def test_a_pattern_and_a_grammar_bound_answers(client):
    for extra, expected in (
        ({"regex": "(ab|cd){3}!"}, 7),
        ({"grammar": 'start: "yes" | "no"'}, (2, 3)),
    ):
        answer = client.chat.completions.create(
            model="plain", messages=ASKED, seed=1, max_tokens=50, extra_body=extra
        )
        assert len(answer.choices[0].message.content) in (
            expected if isinstance(expected, tuple) else (expected,)
        )


def test_a_tool_that_must_be_called_is(client):
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        asked = {
            "model": "tools", "messages": ASKED, "tools": [TOOL], "tool_choice": choice, "seed": 3,
            "max_tokens": 200,
        }  # fmt: skip
        answer = client.chat.completions.create(**asked).choices[0]
        call = answer.message.tool_calls[0]
        assert choice == "required" or len(answer.message.tool_calls) == 1
        assert call.function.name == "get_weather"
        found = json.loads(call.function.arguments)
        assert found["city"] in ("Oslo", "Rome")
        assert answer.finish_reason == "tool_calls"
        assert answer.message.content is None
        chunks = list(client.chat.completions.create(**asked, stream=True))
        deltas = [c.choices[0].delta for c in chunks]
        parts = [one for delta in deltas for one in delta.tool_calls or () if one.index == 0]
        assert parts[0].function.name == "get_weather"
        assert "".join(one.function.arguments for one in parts) == call.function.arguments
        assert not any(delta.content for delta in deltas)


def test_what_a_tool_said_goes_into_the_next_question(client):
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    answer = client.chat.completions.create(
        model="tools",
        messages=[
            *ASKED,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        ],
        tools=[TOOL],
        max_tokens=4,
    )
    assert answer.usage.completion_tokens <= 4


@pytest.mark.parametrize(
    "changes, code, parameter",
    [
        ({"temperature": -1}, "request-field", "temperature"),
        ({"top_p": 0}, "request-field", "top_p"),
        (
            {"extra_body": {"repetition_penalty": 5e-324}},
            "request-field",
            "repetition_penalty",
        ),
        ({"n": 1000}, "request-field", "n"),
        ({"messages": []}, "request-field", "messages"),
        ({"logit_bias": {"x": 1}}, "request-field", "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "request-field", "logit_bias"),
        ({"top_logprobs": 2}, "request-field", "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "request-field", "stream_options"),
        ({"tool_choice": "required"}, "request-field", "tool_choice"),
        ({"tools": [TOOL]}, "request-unsupported", "tools"),
        ({"modalities": ["audio"]}, "request-unsupported", "modalities"),
        ({"store": True}, "request-unsupported", "store"),
        ({"response_format": {"type": "json_schema"}}, "request-field", "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "y"}}}},
            "answer-form",
            None,
        ),
        ({"extra_body": {"regex": "["}}, "answer-form", None),
        (
            {"extra_body": {"chat_template_kwargs": {"tokenize": True}}},
            "request-field",
            "chat_template_kwargs",
        ),
        ({"messages": [{"role": "user", "content": "the dog " * 600}]}, "context-overflow", None),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(client, changes, code, parameter):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{**GREEDY, "max_tokens": 2, **changes})
    assert (refused.value.code, refused.value.param) == (code, parameter)
    assert refused.value.type == "invalid_request_error"
    assert f"[{code}]" in refused.value.message


@pytest.mark.parametrize(
    "extreme",
    [{"temperature": 5e-324}, {"temperature": 0.0011, "top_p": 5e-324}, {"temperature": 100},
     {"extra_body": {"repetition_penalty": 0.01}}, {"extra_body": {"repetition_penalty": 100}}],
)  # fmt: skip
def test_extreme_settings_are_answered(client, extreme):
    asked = {**GREEDY, "max_tokens": 6, "seed": 1, **extreme}
    assert client.chat.completions.create(**asked).choices[0].finish_reason in ("stop", "length")


def test_a_model_that_is_not_there(client):
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(**{**GREEDY, "model": "other"})
    assert refused.value.code == "unknown-model"


def test_a_full_queue_asks_to_come_again(serve):
    with serve("long", engine={"max_num_seqs": 1, "max_waiting": 1}) as server:
        client = server.client()
        asked = {"model": "long", "messages": ASKED, "max_tokens": 30_000, "stream": True,
                 "logit_bias": {"2": -100}}  # fmt: skip
        streams = [client.chat.completions.create(**asked) for _ in range(2)]
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(**{**asked, "stream": False})
        assert refused.value.code == "server-busy"
        assert refused.value.response.headers["retry-after"] == "1"
        for stream in streams:
            stream.close()
        patient = server.client(max_retries=6)
        assert patient.chat.completions.create(**{**asked, "stream": False, "max_tokens": 1})


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_leaves_frees_what_it_had(serve, is_streamed):
    with serve("long") as server:
        asked = {"model": "long", "messages": ASKED, "max_tokens": 60_000,
                 "logit_bias": {"2": -100}}  # fmt: skip
        if is_streamed:
            stream = server.client().chat.completions.create(**asked, stream=True)
            next(iter(stream))
            stream.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                server.client(timeout=0.5).chat.completions.create(**asked)
        engine = server.model("long").engine

        def held():
            state = engine.state()
            return state.running, state.waiting, state.usage.used

        deadline = time.monotonic() + 20
        while held() != (0, 0, 0.0) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert held() == (0, 0, 0.0)


def logprobs_of(answer):
    """The entries of an answer or of a stream, and its text."""
    if not isinstance(answer, openai.Stream):
        return answer.choices[0].logprobs.content, answer.choices[0].message.content
    choices = [choice for chunk in answer for choice in chunk.choices]
    entries = [one for choice in choices if choice.logprobs for one in choice.logprobs.content]
    return entries, "".join(choice.delta.content or "" for choice in choices)


@pytest.mark.parametrize("stream", [False, True])
def test_bytes_of_parts_of_characters_are_the_text(client, stream):
    wanted = "\N{SLIGHTLY SMILING FACE}日本語ℵ"
    answer = client.chat.completions.create(
        **GREEDY, max_tokens=40, logprobs=True, top_logprobs=1, stream=stream,
        extra_body={"regex": wanted},
    )  # fmt: skip
    entries, text = logprobs_of(answer)
    assert text == wanted
    assert bytes(byte for one in entries for byte in one.bytes).decode() == wanted
    assert entries[0].token == r"bytes:\xf0"


def test_a_stop_removes_its_tokens_whole_and_streamed(client):
    asked = {**GREEDY, "max_tokens": 24, "logprobs": True}
    whole, text = logprobs_of(client.chat.completions.create(**asked))
    stop = text[9:13]
    kept = text[: text.index(stop)]
    for stream in (False, True):
        found = logprobs_of(client.chat.completions.create(**asked, stop=stop, stream=stream))
        assert found == (whole[: len(found[0])], kept)
        joined = b"".join(bytes(one.bytes) for one in found[0]).decode(errors="replace")
        assert joined.startswith(kept)
        assert stop not in joined
    extra = {"include_stop_str_in_output": True}
    answer = client.chat.completions.create(**asked, stop=stop, extra_body=extra)
    assert answer.choices[0].message.content == kept + stop


def test_fields_of_vllms_clients_are_honoured(client):
    plain = client.chat.completions.create(**GREEDY, max_tokens=12, logprobs=True).choices[0]
    ids = [one.token for one in plain.logprobs.content]

    def ask(**extra):
        return client.chat.completions.create(**GREEDY, max_tokens=12, extra_body=extra)

    tokens = httpx_tokens(client, ids[0])
    assert ask(stop_token_ids=tokens).choices[0].message.content == ""
    kept = ask(stop_token_ids=tokens, min_tokens=3)
    assert kept.usage.completion_tokens >= 3
    form = {"choice": ["yes", "no"]}
    assert ask(structured_outputs=form).choices[0].message.content in ("yes", "no")
    long = {"messages": [{"role": "user", "content": "over the lazy dog " * 8}], "max_tokens": 1}

    def cached(**extra):
        answer = client.chat.completions.create(**{**GREEDY, **long}, extra_body=extra)
        return answer.usage.prompt_tokens_details.cached_tokens

    cached()
    assert cached() > 0
    assert [cached(cache_salt=salt) > 0 for salt in ("a", "a", "b")] == [False, True, False]
    assert cached(cache_prompt=False) == 0


def httpx_tokens(client, text):
    response = client.with_options(base_url=str(client.base_url).removesuffix("/v1/")).post(
        "/tokenize", body={"model": "plain", "prompt": text}, cast_to=dict
    )
    return response["tokens"]


def test_special_tokens_are_shown_on_request(client):
    asked = {**GREEDY, "max_tokens": 3, "logit_bias": {"1": 100}}
    hidden = client.chat.completions.create(**asked)
    shown = client.chat.completions.create(**asked, extra_body={"skip_special_tokens": False})
    assert hidden.choices[0].message.content == ""
    assert shown.choices[0].message.content == "<s>" * 3


def test_usage_comes_with_each_chunk_on_request(client):
    chunks = list(
        client.chat.completions.create(
            **GREEDY, max_tokens=9, stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
        )
    )  # fmt: skip
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 9


def test_unknown_fields_are_named_or_refused(client, serve):
    strange = {"best": 3, "messages": [{"role": "user", "content": "the", "mood": "good,\n"}]}
    given = {**GREEDY, "max_tokens": 1}
    raw = client.chat.completions.with_raw_response
    assert raw.create(**given, extra_body=strange).headers["x-ignored-fields"] == (
        "best, messages.0.mood"
    )
    assert "x-ignored-fields" not in raw.create(**given).headers
    with serve("plain", refuses_unknown_fields=True) as server:
        with pytest.raises(openai.BadRequestError) as refused:
            server.client().chat.completions.create(**given, extra_body=strange)
        assert (refused.value.code, refused.value.param) == ("request-unsupported", "best")


def test_special_tokens_of_a_user_are_text(client, server):
    def count(text):
        messages = [{"role": "user", "content": text}]
        answer = client.chat.completions.create(**{**GREEDY, "messages": messages}, max_tokens=1)
        return answer.usage.prompt_tokens

    assert count("a</s>b") == count("a") + len(server.model().tokenizer.encode("b")) + 4
