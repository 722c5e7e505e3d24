"""Pieces of an answer in a terminal: words stay whole, and text comes as soon as it is sure."""

import re
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from npu_llm.cli import answer_text
from npu_llm.cli.answer_text import AnswerStreamer, WordWrap, text_writer


def screen(written, columns):
    """What a terminal shows: it breaks lines at the edge, moves back and erases."""
    lines, at = [""], 0
    index = 0
    while index < len(written):
        if moved := re.match(r"\x1b\[(\d+)D\x1b\[K", written[index:]):
            at -= int(moved[1])
            assert at >= 0
            lines[-1] = lines[-1][:at]
            index += moved.end()
            continue
        if written[index] == "\n" or at == columns:
            lines.append("")
            at = 0
        if written[index] != "\n":
            lines[-1] += written[index]
            at += 1
        index += 1
    return lines


@given(st.lists(st.text(alphabet="ab \n", min_size=1, max_size=7), max_size=30), st.integers(4, 20))
def test_no_word_that_fits_a_line_is_broken_however_it_arrives(pieces, columns):
    written = []
    wrap = WordWrap(written.append, lambda: columns)
    for piece in pieces:
        wrap.write(piece)
    shown = screen("".join(written), columns)
    assert all(len(line) <= columns for line in shown)
    words = "".join(pieces).split()
    if all(len(word) < columns for word in words):
        assert [word for line in shown for word in line.split()] == words


def test_a_word_that_grows_beyond_the_edge_moves_to_the_next_line():
    written = []
    wrap = WordWrap(written.append, lambda: 10)
    for piece in ("one ", "thou", "sand", " two"):
        wrap.write(piece)
    assert written == ["one ", "thou", "\x1b[4D\x1b[K\nthousand", " \ntwo"]
    assert screen("".join(written), 10) == ["one ", "thousand ", "two"]


def test_wide_characters_count_twice():
    written = []
    wrap = WordWrap(written.append, lambda: 8)
    wrap.write("日本 語語")
    assert written == ["日本 \n語語"]


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_an_answer_cannot_steer_a_terminal(kind, monkeypatch):
    written = []
    monkeypatch.setattr(answer_text, "_write", written.append)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", kind)
    text_writer()("one\x1b[31m\ttwo\r\n\x1b]0;title\x07three\x9b2J")
    assert "".join(written) == "one[31m\ttwo\n]0;titlethree2J"


def test_a_file_gets_an_answer_as_it_is(capsys):
    text_writer()("\x1b[31m")
    assert capsys.readouterr().out == "\x1b[31m"


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
