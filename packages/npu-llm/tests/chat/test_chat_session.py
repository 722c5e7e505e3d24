"""Sessions with a small model: prefill, answers and errors."""

import os
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from npu_llm import ChatSession, ContextError, ModelError, NPUModelForCausalLM, OptionError
from npu_llm.tokenizer.tokenizer import encode_chat


def tokens_of(model, messages):
    return encode_chat(model.tokenizer, messages)["input_ids"]


def question(number):
    return f"w{10 + number} w{50 + number % 30} w{20 + number}"


def resident_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


# Turns


def test_twenty_turns_read_their_own_tokens_only(session, model, answer_of, steps):
    for turn in range(20):
        held = session.cached_tokens
        reply = session.ask(question(turn))
        asked = [*session.messages[:-1]]
        assert reply.prompt_tokens == tokens_of(model, asked).shape[1]
        assert reply.prefilled_tokens == reply.prompt_tokens - held
        # The former answer's last token and its end, the question in its frame, the next frame.
        assert reply.prefilled_tokens == (14 if turn == 0 else 2 + 6 + 2)
        assert steps[0][1] == reply.prefilled_tokens
        assert [tokens for _, tokens in steps[1:]] == [1] * 7
        assert reply.tokens == answer_of(asked)
        steps.clear()
    assert len(session.messages) == 41


def test_memory_stays_flat(session):
    for turn in range(10):
        session.ask(question(turn))
    before = resident_mb()
    for turn in range(30):
        session.ask(question(turn))
        session.undo()
        session.ask(question(turn + 1))
    assert resident_mb() - before < 24


def test_what_is_forgotten_does_not_pile_up(session):
    session.ask("w4")
    for turn in range(60):
        session.undo()
        session.ask(question(turn % 30))
        assert session._store._cache.hidden_tokens <= 256 + 20


def test_reply_says_what_it_took(session):
    reply = session.ask("w4", max_new_tokens=5)
    assert (len(reply.tokens), reply.finish) == (5, "length")
    assert reply.text == session.messages[-1]["content"]
    assert reply.time_to_first_token_s > 0
    assert reply.tokens_per_s > 0
    assert reply is session.last_reply
    end = session.ask("w5", eos_token_id=list(range(97)))
    assert (len(end.tokens), end.finish, end.tokens_per_s) == (1, "stop", None)


def test_generation_config_object(model, greedy):
    config = GenerationConfig(
        max_new_tokens=3, do_sample=False, suppress_tokens=[0, 1, 2, 3], eos_token_id=5,
        pad_token_id=0,
    )  # fmt: skip
    reply = ChatSession(model, generation_config=config).ask("w4")
    assert (len(reply.tokens), reply.finish) == (3, "length")
    assert reply.tokens == ChatSession(model, **greedy).ask("w4").tokens[:3]


def test_changes_of_config_and_template_have_effect(folder):
    model = NPUModelForCausalLM.from_pretrained(folder)
    session = ChatSession(model, suppress_tokens=[0, 1, 2, 3])
    model.generation_config.max_new_tokens = 2
    assert len(session.ask("w4").tokens) == 2
    reply = session.ask("w5")
    model.tokenizer.chat_template = "w6"
    assert session.ask("w5").prompt_tokens == 1 < reply.prompt_tokens


def test_sampling_with_a_seed_repeats(model):
    texts = []
    for _ in range(2):
        torch.manual_seed(3)
        session = ChatSession(model, do_sample=True, temperature=2.0, max_new_tokens=8)
        texts.append([session.ask("w4").tokens, session.ask("w5").tokens])
    assert texts[0] == texts[1]


def test_guesses_by_prompt_lookup_change_no_answer(model, greedy):
    plain, guessing = (
        ChatSession(model, **greedy, **how) for how in ({}, {"prompt_lookup_num_tokens": 4})
    )
    for text in ("w4 w5 w6", "w4 w5", "w6"):
        answer = guessing.ask(text)
        assert answer.tokens == plain.ask(text).tokens
        assert guessing.cached_tokens == answer.prompt_tokens + len(answer.tokens) - 1


def test_template_gets_tools_and_options(model, greedy):
    def w77(place: str) -> str:
        """Tells the weather.

        Args:
            place: where.
        """

    plain = ChatSession(model, **greedy).ask("w4").prompt_tokens
    with_tools = ChatSession(model, tools=[w77], **greedy)
    assert with_tools.ask("w4").prompt_tokens == plain + 4
    reply = with_tools.ask({"role": "tool", "name": "w77", "content": "w8"})
    assert [m["role"] for m in with_tools.messages] == ["user", "assistant", "tool", "assistant"]
    assert reply.prefilled_tokens == 1 + 1 + 4 + 2


def test_answers_that_the_template_shows_otherwise_are_read_again(model, answer_of, greedy):
    session = ChatSession(model, template_options={"forget_thoughts": True}, **greedy)
    w9 = model.tokenizer.convert_tokens_to_ids("w9")
    first = session.ask("w4", sequence_bias=[[[w9], 1e3]])
    assert set(first.tokens) == {w9}
    reply = session.ask("w5", suppress_tokens=[0, 1, 2, 3, w9])
    # The thoughts are removed: the common prefix ends before them.
    common = first.prompt_tokens
    assert reply.prefilled_tokens == reply.prompt_tokens - common
    assert reply.tokens == answer_of(
        [{"role": "user", "content": "w4"}, {"role": "assistant", "content": ""},
         {"role": "user", "content": "w5"}],
        suppress_tokens=[0, 1, 2, 3, w9],
    )  # fmt: skip


# Changing the past


def test_edit_reads_from_the_change_on(session, model, answer_of):
    for number in range(4):
        session.ask(question(number))
    session.edit(3, "w90 w91")
    common = tokens_of(model, session.messages[:3]).shape[1]
    reply = session.ask("w5")
    assert reply.prefilled_tokens == reply.prompt_tokens - common
    assert reply.tokens == answer_of(session.messages[:-1])


def test_undo_and_rewind_keep_what_came_before(session, answer_of):
    first = session.ask("w4")
    session.ask("w5")
    assert session.undo() == "w5"
    reply = session.ask("w6")
    assert reply.prompt_tokens - reply.prefilled_tokens == first.prompt_tokens + 8 + 3
    assert reply.tokens == answer_of(session.messages[:-1])
    session.rewind(1)
    assert [message["role"] for message in session.messages] == ["system"]
    assert session.undo() is None


def test_reset_keeps_the_system_message_and_what_was_read_of_it(session):
    first = session.ask("w4")
    session.reset()
    again = session.ask("w4")
    assert again.tokens == first.tokens
    assert again.prefilled_tokens == 1


def test_system_message_can_be_changed(session, answer_of):
    session.ask("w4")
    session.system = "w7"
    assert session.messages[0] == {"role": "system", "content": "w7"}
    reply = session.ask("w5")
    assert reply.tokens == answer_of(session.messages[:-1])
    session.system = None
    assert session.system is None
    assert [message["role"] for message in session.messages] == ["user", "assistant"] * 2


def test_appended_messages_are_read_with_the_question(session):
    session.append("w4")
    session.append({"role": "tool", "content": "w5"})
    session.ask("w6")
    roles = [message["role"] for message in session.messages]
    assert roles == ["system", "user", "tool", "user", "assistant"]


def test_cache_that_cannot_be_cut_is_made_anew(session, model, answer_of, monkeypatch):
    monkeypatch.setattr(type(model.new_cache()), "is_croppable", False)
    session.ask("w4")
    kept = session.ask("w5")
    assert kept.prefilled_tokens < kept.prompt_tokens
    session.undo()
    reply = session.ask("w6")
    assert reply.prefilled_tokens == reply.prompt_tokens
    assert reply.tokens == answer_of(session.messages[:-1])


# The context's end


def test_conversation_that_outgrows_the_context_is_an_error(small, greedy, assert_code):
    session = ChatSession(small, "w1", **greedy)
    session.ask("w4")
    before = session.messages
    with pytest.raises(ContextError) as caught:
        session.ask("w5 " * 60)
    assert_code(caught, "context-overflow", "64", "drop_oldest")
    assert session.messages == before
    session.ask("w5")


def test_answer_ends_where_the_context_does(small, greedy):
    reply = ChatSession(small, **greedy).ask("w4 " * 50, max_new_tokens=40)
    assert reply.finish == "length"
    assert reply.prompt_tokens + len(reply.tokens) == 64


def test_oldest_turns_go_and_the_system_message_stays(small, greedy, assert_code):
    session = ChatSession(small, "w1", overflow="drop_oldest", **greedy)
    replies = [session.ask(question(number)) for number in range(6)]
    assert sum(reply.dropped_messages for reply in replies) > 0
    messages = session.messages
    assert [message["role"] for message in messages[:2]] == ["system", "user"]
    assert messages[-2]["content"] == question(5)
    with pytest.raises(ContextError) as caught:
        session.ask("w5 " * 70)
    assert_code(caught, "context-overflow", "64")
    assert session.messages == messages


# Refusals


def test_model_without_a_tokenizer(model, monkeypatch, assert_code):
    monkeypatch.setattr(NPUModelForCausalLM, "has_tokenizer", False)
    with pytest.raises(ModelError) as caught:
        ChatSession(model)
    assert_code(caught, "missing-tokenizer", "words")


def test_options_that_a_session_does_not_take(session, model, assert_code):
    for name, value in (("num_beams", 4), ("past_key_values", session), ("use_cache", False)):
        with pytest.raises(OptionError) as caught:
            session.ask("w4", **{name: value})
        assert_code(caught, "session-option", name)
    with pytest.raises(OptionError) as caught:
        ChatSession(model, num_return_sequences=2)
    assert_code(caught, "session-option", "num_return_sequences=2")
    with pytest.raises(OptionError) as caught:
        ChatSession(model, overflow="weep")
    assert_code(caught, "overflow-policy", "weep", "drop_oldest")


def test_message_that_is_none(session, assert_code):
    for wrong in (3, {"content": "w4"}):
        with pytest.raises(OptionError) as caught:
            session.ask(wrong)
        assert_code(caught, "message-kind", repr(wrong))


def test_message_that_is_not_there(session, assert_code):
    for call in (lambda: session.edit(1, "w4"), lambda: session.rewind(-2)):
        with pytest.raises(OptionError) as caught:
            call()
        assert_code(caught, "message-index", "1 messages")


def test_messages_that_the_template_refuses(model, assert_code):
    session = ChatSession(model)
    session.append({"role": "robot", "content": "w4"})
    with pytest.raises(OptionError) as caught:
        session.ask("w5")
    assert_code(caught, "chat-template", "robot, user", "no robots")


@pytest.mark.parametrize("given", [{"streamer": "x"}, {"cancel": 1}], ids=repr)
def test_a_streamer_or_a_cancel_that_is_none(session, given):
    with pytest.raises(TypeError, match=r"ChatSession: .* must have") as caught:
        session.ask("w5", **given)
    assert caught.value.code == "argument-kind"


def test_an_option_that_nobody_knows(session):
    with pytest.raises(OptionError, match="bogus") as caught:
        session.ask("w5", bogus=1)
    assert caught.value.code == "generate-option"


# Arguments that the engine adds to those of generate


def test_penalties_biases_and_log_probabilities(session):
    plain = session.ask("w4", logprobs=2)
    assert [token.id for token in plain.logprobs] == list(plain.tokens)
    assert all(token.top[0][1] >= token.top[1][1] for token in plain.logprobs)
    session.undo()
    first = plain.tokens[0]
    assert session.ask("w4", logit_bias={first: -100.0}).tokens[0] != first
    session.undo()
    penalized = session.ask("w4", frequency_penalty=100.0, max_new_tokens=20)
    assert len(set(penalized.tokens)) == len(penalized.tokens)


def test_a_seed_of_an_answer_repeats_it(session):
    drawn = {"do_sample": True, "temperature": 2.0, "seed": 3}
    first = session.ask("w4", **drawn)
    session.undo()
    assert session.ask("w4", **drawn).tokens == first.tokens


def test_a_stop_string_ends_the_text(session):
    words = session.ask("w4").text.split()
    session.undo()
    reply = session.ask("w4", stop_strings=[words[3]])
    assert reply.finish == "stop"
    assert reply.text.split() == words[: words.index(words[3]) + 1]
