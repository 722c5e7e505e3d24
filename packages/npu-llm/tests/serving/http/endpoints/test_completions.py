import openai
import pytest

GREEDY = {"model": "plain", "temperature": 0, "prompt": "the lazy dog"}


def test_texts_and_tokens_are_continued_alike(client, server):
    by_text = client.completions.create(**GREEDY, max_tokens=9)
    tokens = server.model().tokenizer.encode(GREEDY["prompt"])
    by_tokens = client.completions.create(**{**GREEDY, "prompt": tokens}, max_tokens=9)
    assert by_text.choices[0].text == by_tokens.choices[0].text
    assert by_text.usage.prompt_tokens == len(tokens)
    assert client.completions.create(**GREEDY).usage.completion_tokens <= 16


def test_several_prompts_keep_their_order(client):
    prompts = ["the quick", "brown fox jumps", "over"]
    many = client.completions.create(**{**GREEDY, "prompt": prompts}, max_tokens=6, echo=True)
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    for prompt, choice in zip(prompts, many.choices, strict=True):
        one = client.completions.create(**{**GREEDY, "prompt": prompt}, max_tokens=6)
        assert choice.text == prompt + one.choices[0].text


def test_a_stream_has_the_same_text(client):
    whole = client.completions.create(**GREEDY, max_tokens=12, logprobs=2)
    chunks = list(client.completions.create(**GREEDY, max_tokens=12, stream=True, echo=True))
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert text == GREEDY["prompt"] + whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    logprobs = whole.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.text_offset) == whole.usage.completion_tokens
    assert all(len(top) <= 2 for top in logprobs.top_logprobs)


@pytest.mark.parametrize(
    "changes, parameter",
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[], [3]]}, "prompt"),
        ({"prompt": [3, -1]}, "prompt"),
        ({"prompt": [3, 100_000]}, "prompt"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"best_of": 4}, "best_of"),
    ],
)
def test_what_cannot_be_continued_is_refused(client, changes, parameter):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**{**GREEDY, **changes})
    assert refused.value.param.startswith(parameter)
    assert refused.value.code in ("request-field", "request-unsupported")
