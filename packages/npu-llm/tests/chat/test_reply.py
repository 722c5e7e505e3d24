"""Streamed answers."""

import pytest

from npu_llm import ChatSession, ContextError


def test_stream_gives_the_pieces_of_the_answer(session, model, greedy):
    with session.stream("w4") as stream:
        pieces = list(stream)
    assert len(pieces) > 4
    assert "".join(pieces) == stream.reply.text == session.last_reply.text
    plain = ChatSession(model, "w1 w2 w3", **greedy).ask("w4")
    assert stream.reply.tokens == plain.tokens


def test_stream_that_is_left_early_stops_the_answer(session):
    for _ in session.stream("w4", max_new_tokens=1500):
        break
    assert session.last_reply.finish == "cancelled"
    assert len(session.last_reply.tokens) < 1500
    assert session.ask("w5").prefilled_tokens < 20


def test_stream_raises_what_the_answer_does(small, greedy):
    stream = ChatSession(small, **greedy).stream("w4 " * 80)
    with pytest.raises(ContextError):
        list(stream)
    assert stream.reply is None
