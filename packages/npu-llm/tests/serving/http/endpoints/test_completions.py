import gc
import time

import openai
import pytest
import torch

from npu_llm.serving.answer import Answer

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


def test_a_finished_answer_is_freed_without_the_garbage_collector(client):
    def count():
        return sum(isinstance(one, Answer) for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        client.completions.create(**GREEDY)
        end = time.monotonic() + 10
        while count() and time.monotonic() < end:  # the server ends it after the response
            time.sleep(0.01)
        assert count() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "changes, parameter",
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[], [3]]}, "prompt"),
        ({"prompt": [3, -1]}, "prompt"),
        ({"prompt": [3, 100_000]}, "prompt"),
        ({"echo": True, "logprobs": 1, "stream": True}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"best_of": 4, "stream": True}, "best_of"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"suffix": "fox"}, "suffix"),  # a model without tokens for it
        ({"suffix": "fox", "prompt": [3, 4]}, "suffix"),
        ({"suffix": "fox", "prompt": [[3], [4]]}, "suffix"),
    ],
)
def test_what_cannot_be_continued_is_refused(client, changes, parameter):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**{**GREEDY, **changes})
    assert refused.value.param.startswith(parameter)
    assert refused.value.code in ("request-field", "request-unsupported")


def test_an_echoed_prompt_has_the_logprobs_of_the_model(client, server, speakers):
    tokens = server.model().tokenizer.encode("the quick brown fox jumps")
    for count in (0, 1):
        answer = client.completions.create(
            **{**GREEDY, "prompt": [tokens, tokens[:4]]}, max_tokens=count, logprobs=1, echo=True
        )
        found = answer.choices[0].logprobs
        assert len(found.token_logprobs) == len(tokens) + count
        assert answer.usage.completion_tokens == 2 * count
    with torch.no_grad():
        logits = speakers("plain")(torch.tensor([tokens])).logits[0]
    shares = torch.log_softmax(logits, -1)
    wanted = [float(shares[place, token]) for place, token in enumerate(tokens[1:])]
    assert found.token_logprobs[0] is None
    assert found.token_logprobs[1:-1] == pytest.approx(wanted, abs=1e-3)
    best = [max(top.values()) for top in found.top_logprobs[1:-1]]
    assert best == pytest.approx(shares[:-1].max(-1).values.tolist(), abs=1e-3)
    assert "".join(found.tokens[:-1]) == "the quick brown fox jumps"
    assert found.text_offset[-1] == len("the quick brown fox jumps")


@pytest.mark.parametrize("echo", [False, True])
def test_a_token_that_ends_an_answer_has_its_logprob(client, server, echo):
    tokens = server.model().tokenizer.encode("the fox")
    answer = client.completions.create(
        **{**GREEDY, "prompt": tokens}, max_tokens=1, logprobs=0, echo=echo,
        logit_bias={"2": 100},
    )  # fmt: skip
    assert answer.choices[0].finish_reason == "stop"
    found = answer.choices[0].logprobs
    assert found.tokens[-1] == "</s>"
    assert len(found.token_logprobs) == 1 + echo * len(tokens)


def test_the_most_likely_of_several_is_returned(client):
    asked = {**GREEDY, "temperature": 1.5, "seed": 3, "max_tokens": 8, "logprobs": 0}
    many = client.completions.create(**asked, n=6)
    best = client.completions.create(**asked, n=2, best_of=6)
    means = {c.text: sum(c.logprobs.token_logprobs) / 8 for c in many.choices}
    wanted = sorted(means, key=means.get, reverse=True)[:2]
    assert [choice.text for choice in best.choices] == wanted
    assert best.usage.completion_tokens == many.usage.completion_tokens


def test_requests_that_can_never_run_are_refused_at_once(client, server):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**{**GREEDY, "prompt": ["the"] * 100}, n=4)
    assert refused.value.code == "request-count"
    assert server.model().engine.state().waiting == 0
