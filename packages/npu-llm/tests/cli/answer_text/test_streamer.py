import pytest
import torch
from transformers import AutoTokenizer

from npu_llm.cli.answer_text.streamer import AnswerStreamer


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return AutoTokenizer.from_pretrained(checkpoint)


def stream(tokenizer, text):
    streamer = AnswerStreamer(tokenizer)
    streamer.put(torch.tensor([[1, 5, 6]]))
    for token in tokenizer(text, add_special_tokens=False).input_ids:
        streamer.put(torch.tensor([token]))
    streamer.end()
    return streamer


@pytest.mark.parametrize(
    "text", ["the quick fox", "été à Łódź", "日本語 🚂🚃 ok", "one\n\n two\n", "\n", ""]
)
def test_text_arrives_whole_and_without_the_prompt(tokenizer, capsys, text):
    streamer = stream(tokenizer, text)
    assert capsys.readouterr().out == text
    assert streamer.text == text


def test_characters_of_several_tokens_are_written_when_they_are_whole(tokenizer, capsys):
    streamer = AnswerStreamer(tokenizer)
    streamer.put(torch.tensor([[1]]))
    tokens = tokenizer("🚂", add_special_tokens=False).input_ids
    assert len(tokens) > 1
    for token in tokens[:-1]:
        streamer.put(torch.tensor([token]))
        assert capsys.readouterr().out == ""
    streamer.put(torch.tensor([tokens[-1]]))
    assert capsys.readouterr().out == "🚂"


def test_times_and_counts(tokenizer):
    streamer = stream(tokenizer, "the quick brown fox")
    assert streamer.time_to_first_token_s >= 0
    assert streamer.tokens_per_s > 0
    assert len(streamer.tokens) > 2
    empty = AnswerStreamer(tokenizer)
    assert empty.time_to_first_token_s is None
    assert empty.tokens_per_s is None
