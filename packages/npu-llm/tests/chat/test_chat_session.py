"""Sessions with a small model: what they read, what they answer, and how they end and go on."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from npu_llm import (
    ChatSession,
    ContextError,
    ModelError,
    NPUModelForCausalLM,
    OptionError,
    SessionError,
)
from npu_llm.chat.chat_prompt import encode_chat
from npu_llm.steps.session_cache import SessionCache
from npu_runtime import Session, observe

# A thought ends at w9; of earlier answers the template shows what follows it alone.
TEMPLATE = """\
{%- if messages[0].role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}
{%- if tools %}<s> system {{ tools[0].function.name }} </s> {% endif %}
{%- for m in messages %}<s> {{ m.role }} {% if forget_thoughts and m.role == 'assistant' -%}
{{ m.content.split('w9')[-1] }}{% else %}{{ m.content }}{% endif %} </s> {% endfor %}
{%- if add_generation_prompt %}<s> assistant {% endif %}"""
WORDS = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", "system", "tool"]
WORDS += [f"w{number}" for number in range(97 - len(WORDS))]
GREEDY = {"do_sample": False, "max_new_tokens": 8, "suppress_tokens": [0, 1, 2, 3]}
SIZES = {
    "vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "initializer_range": 0.3, "max_position_embeddings": 2048,
}  # fmt: skip


def save_checkpoint(folder, *, seed=11, **changes):
    """A Llama with random weights whose tokens are words."""
    words = models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes})).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("talk") / "words"


@pytest.fixture(scope="module")
def reference(folder):
    return save_checkpoint(folder)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("talk-cache")


@pytest.fixture(scope="module")
def model(reference, folder, cache_dir):
    return NPUModelForCausalLM.from_pretrained(folder, dtype="float32", cache_dir=cache_dir)


@pytest.fixture
def small(tmp_path, cache_dir):
    """A model whose context holds 64 tokens."""
    save_checkpoint(tmp_path / "small", max_position_embeddings=64)
    return NPUModelForCausalLM.from_pretrained(
        tmp_path / "small", dtype="float32", cache_dir=cache_dir
    )


@pytest.fixture
def session(model):
    return ChatSession(model, "w1 w2 w3", **GREEDY)


@pytest.fixture
def steps():
    """(phase, tokens) of each step that any model runs."""
    found = []

    def note(spans):
        found.extend((s.category, s.args["tokens"]) for s in spans if "tokens" in s.args)

    observe.add_listener(note)
    yield found
    observe.remove_listener(note)


def tokens_of(model, messages):
    return encode_chat(model.tokenizer, messages)["input_ids"]


def answer_of(reference, model, messages, **options):
    """What transformers' model answers to the whole conversation."""
    prompt = tokens_of(model, messages)
    mask = torch.ones_like(prompt)
    output = reference.generate(prompt, attention_mask=mask, **{**GREEDY, **options})
    return tuple(output[0, prompt.shape[1] :].tolist())


def question(number):
    return f"w{10 + number} w{50 + number % 30} w{20 + number}"


def resident_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def assert_code(caught, code, *quoted):
    assert caught.value.code == code
    for word in quoted:
        assert word in str(caught.value)


# Turns


def test_forty_turns_read_their_own_tokens_only(session, model, reference, steps):
    for turn in range(40):
        held = session.cached_tokens
        reply = session.ask(question(turn))
        asked = [*session.messages[:-1]]
        assert reply.prompt_tokens == tokens_of(model, asked).shape[1]
        assert reply.prefilled_tokens == reply.prompt_tokens - held
        # The former answer's last token and its end, the question in its frame, the next frame.
        assert reply.prefilled_tokens == (14 if turn == 0 else 2 + 6 + 2)
        assert steps[0][1] == reply.prefilled_tokens
        assert [tokens for _, tokens in steps[1:]] == [1] * 7
        assert reply.tokens == answer_of(reference, model, asked)
        steps.clear()
    assert len(session.messages) == 81


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
    for turn in range(150):
        session.undo()
        session.ask(question(turn % 30))
        assert session._read.cache.hidden_tokens <= 256 + 20


def test_reply_says_what_it_took(session):
    reply = session.ask("w4", max_new_tokens=5)
    assert (len(reply.tokens), reply.finish) == (5, "length")
    assert reply.text == session.messages[-1]["content"]
    assert reply.time_to_first_token_s > 0
    assert reply.tokens_per_s > 0
    assert reply is session.last_reply
    end = session.ask("w5", eos_token_id=list(range(97)))
    assert (len(end.tokens), end.finish, end.tokens_per_s) == (1, "stop", None)


def test_generation_config_object(model):
    config = GenerationConfig(
        max_new_tokens=3, do_sample=False, suppress_tokens=[0, 1, 2, 3], eos_token_id=5,
        pad_token_id=0,
    )  # fmt: skip
    reply = ChatSession(model, generation_config=config).ask("w4")
    assert (len(reply.tokens), reply.finish) == (3, "length")
    assert reply.tokens == ChatSession(model, **GREEDY).ask("w4").tokens[:3]


def test_sampling_with_a_seed_repeats(model):
    texts = []
    for _ in range(2):
        torch.manual_seed(3)
        session = ChatSession(model, do_sample=True, temperature=2.0, max_new_tokens=8)
        texts.append([session.ask("w4").tokens, session.ask("w5").tokens])
    assert texts[0] == texts[1]


def test_guesses_by_prompt_lookup_change_no_answer(model):
    plain, guessing = (
        ChatSession(model, **GREEDY, **how) for how in ({}, {"prompt_lookup_num_tokens": 4})
    )
    for text in ("w4 w5 w6", "w4 w5", "w6"):
        answer = guessing.ask(text)
        assert answer.tokens == plain.ask(text).tokens
        assert guessing.cached_tokens == answer.prompt_tokens + len(answer.tokens) - 1


def test_template_gets_tools_and_options(model):
    def w77(place: str) -> str:
        """Tells the weather.

        Args:
            place: where.
        """

    plain = ChatSession(model, **GREEDY).ask("w4").prompt_tokens
    with_tools = ChatSession(model, tools=[w77], **GREEDY)
    assert with_tools.ask("w4").prompt_tokens == plain + 4
    reply = with_tools.ask({"role": "tool", "name": "w77", "content": "w8"})
    assert [m["role"] for m in with_tools.messages] == ["user", "assistant", "tool", "assistant"]
    assert reply.prefilled_tokens == 1 + 1 + 4 + 2


def test_answers_that_the_template_shows_otherwise_are_read_again(model, reference):
    session = ChatSession(model, template_options={"forget_thoughts": True}, **GREEDY)
    w9, w1, w2 = (WORDS.index(word) for word in ("w9", "w1", "w2"))
    first = session.ask("w4", sequence_bias=[[[w9], 1e3]])
    assert set(first.tokens) == {w9}
    reply = session.ask("w5", suppress_tokens=[0, 1, 2, 3, w9])
    # The thoughts are gone: what is common ends before them.
    common = first.prompt_tokens
    assert reply.prefilled_tokens == reply.prompt_tokens - common
    assert reply.tokens == answer_of(
        reference, model,
        [{"role": "user", "content": "w4"}, {"role": "assistant", "content": ""},
         {"role": "user", "content": "w5"}],
        suppress_tokens=[0, 1, 2, 3, w9],
    )  # fmt: skip
    assert w1 != w2


# Changing the past


def test_edit_reads_from_the_change_on(session, model, reference):
    for number in range(4):
        session.ask(question(number))
    session.edit(3, "w90 w91")
    common = tokens_of(model, session.messages[:3]).shape[1]
    reply = session.ask("w5")
    assert reply.prefilled_tokens == reply.prompt_tokens - common
    assert reply.tokens == answer_of(reference, model, session.messages[:-1])


def test_undo_and_rewind_keep_what_came_before(session, model, reference):
    first = session.ask("w4")
    session.ask("w5")
    assert session.undo() == "w5"
    reply = session.ask("w6")
    assert reply.prompt_tokens - reply.prefilled_tokens == first.prompt_tokens + 8 + 3
    assert reply.tokens == answer_of(reference, model, session.messages[:-1])
    session.rewind(1)
    assert [message["role"] for message in session.messages] == ["system"]
    assert session.undo() is None


def test_reset_keeps_the_system_message_and_what_was_read_of_it(session):
    first = session.ask("w4")
    session.reset()
    again = session.ask("w4")
    assert again.tokens == first.tokens
    assert again.prefilled_tokens == 1


def test_system_message_can_be_changed(session, model, reference):
    session.ask("w4")
    session.system = "w7"
    assert session.messages[0] == {"role": "system", "content": "w7"}
    reply = session.ask("w5")
    assert reply.tokens == answer_of(reference, model, session.messages[:-1])
    session.system = None
    assert session.system is None
    assert [message["role"] for message in session.messages] == ["user", "assistant"] * 2


def test_appended_messages_are_read_with_the_question(session):
    session.append("w4")
    session.append({"role": "tool", "content": "w5"})
    session.ask("w6")
    roles = [message["role"] for message in session.messages]
    assert roles == ["system", "user", "tool", "user", "assistant"]


def test_cache_that_cannot_be_cut_is_made_anew(session, model, reference, monkeypatch):
    monkeypatch.setattr(SessionCache, "is_croppable", False)
    session.ask("w4")
    kept = session.ask("w5")
    assert kept.prefilled_tokens < kept.prompt_tokens
    session.undo()
    reply = session.ask("w6")
    assert reply.prefilled_tokens == reply.prompt_tokens
    assert reply.tokens == answer_of(reference, model, session.messages[:-1])


# Stopping


class At:
    """A streamer that does something when the answer has some tokens."""

    def __init__(self, count, act):
        self.count, self.act = count, act

    def put(self, value):
        self.count -= 1
        if self.count == -1:
            self.act()

    def end(self):
        pass


def assert_goes_on(session, model, reference, tokens):
    """That a stopped session holds its answer, and reads nothing twice."""
    held = session.cached_tokens
    answer = session.last_reply
    assert (len(answer.tokens), answer.finish) == (tokens, "cancelled")
    assert session.messages[-1] == {"role": "assistant", "content": answer.text}
    assert held == answer.prompt_tokens + tokens - 1
    reply = session.ask("w6")
    assert reply.prefilled_tokens == reply.prompt_tokens - held
    assert reply.tokens == answer_of(reference, model, session.messages[:-1])


@pytest.mark.parametrize("way", ["event", "method"])
def test_another_thread_stops_an_answer(session, model, reference, way):
    session.ask("w4")
    event = threading.Event()
    stop = event.set if way == "event" else session.cancel

    def from_another_thread():
        other = threading.Thread(target=stop)
        other.start()
        other.join()

    reply = session.ask("w5", streamer=At(3, from_another_thread), cancel=event)
    assert reply is session.last_reply
    assert_goes_on(session, model, reference, 3)


@pytest.fixture
def interruptible():
    """Python's own handler of Ctrl-C, which a process that runs in the background lacks."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_an_answer_after_its_step(session, model, reference):
    session.ask("w4")
    with pytest.raises(KeyboardInterrupt):
        session.ask("w5", streamer=At(3, lambda: signal.raise_signal(signal.SIGINT)))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_goes_on(session, model, reference, 3)


def interrupt():
    raise KeyboardInterrupt


def test_interrupt_of_another_handler_keeps_what_is_known(session, model, reference):
    session.ask("w4")
    with pytest.raises(KeyboardInterrupt):
        session.ask("w5", streamer=At(3, interrupt))
    assert_goes_on(session, model, reference, 3)


def test_interrupt_inside_a_step_gives_the_cache_up(session, model, reference, monkeypatch):
    session.ask("w4")
    run = Session.run

    def broken(self, *arguments, **keywords):
        run(self, *arguments, **keywords)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "run", broken)
        with pytest.raises(KeyboardInterrupt):
            session.ask("w5")
    assert session.cached_tokens == 0
    assert [message["role"] for message in session.messages] == ["system", "user", "assistant"]
    reply = session.ask("w5")
    assert reply.prefilled_tokens == reply.prompt_tokens
    assert reply.tokens == answer_of(reference, model, session.messages[:-1])


def test_question_that_was_stopped_before_its_answer_goes(session):
    session.ask("w4")
    before = session.messages
    with pytest.raises(KeyboardInterrupt):
        session.ask("w5", streamer=At(0, interrupt))
    assert session.messages == before
    assert session.last_reply.finish == "cancelled"
    assert session.last_reply.text == ""


def test_failure_leaves_the_session_as_it_was(session, model, reference):
    session.ask("w4")
    before = session.messages

    def fail():
        raise RuntimeError("no paper")

    with pytest.raises(RuntimeError, match="no paper"):
        session.ask("w5", streamer=At(3, fail))
    assert session.messages == before
    reply = session.ask("w5")
    # The question was read already.
    assert reply.prefilled_tokens == 1
    assert reply.tokens == answer_of(reference, model, session.messages[:-1])


def test_second_thread_is_refused(session, tmp_path):
    caught = []

    def ask():
        with pytest.raises(SessionError) as refusal:
            session.ask("w5")
        caught.append(refusal)
        with pytest.raises(SessionError):
            session.save(tmp_path / "busy")

    session.ask("w4", streamer=At(2, ask))
    assert_code(caught[0], "session-busy", "cancel()")


# Streaming


def test_stream_gives_the_pieces_of_the_answer(session, model):
    with session.stream("w4") as stream:
        pieces = list(stream)
    assert len(pieces) > 4
    assert "".join(pieces) == stream.reply.text == session.last_reply.text
    plain = ChatSession(model, "w1 w2 w3", **GREEDY).ask("w4")
    assert stream.reply.tokens == plain.tokens


def test_stream_that_is_left_early_stops_the_answer(session):
    for _ in session.stream("w4", max_new_tokens=1500):
        break
    assert session.last_reply.finish == "cancelled"
    assert len(session.last_reply.tokens) < 1500
    assert session.ask("w5").prefilled_tokens < 20


def test_stream_raises_what_the_answer_does(small):
    stream = ChatSession(small, **GREEDY).stream("w4 " * 80)
    with pytest.raises(ContextError):
        list(stream)
    assert stream.reply is None


# The context's end


def test_conversation_that_outgrows_the_context_is_an_error(small):
    session = ChatSession(small, "w1", **GREEDY)
    session.ask("w4")
    before = session.messages
    with pytest.raises(ContextError) as caught:
        session.ask("w5 " * 60)
    assert_code(caught, "context-overflow", "64", "drop_oldest")
    assert session.messages == before
    session.ask("w5")


def test_answer_ends_where_the_context_does(small):
    reply = ChatSession(small, **GREEDY).ask("w4 " * 50, max_new_tokens=40)
    assert reply.finish == "length"
    assert reply.prompt_tokens + len(reply.tokens) == 64


def test_oldest_turns_go_and_the_system_message_stays(small):
    session = ChatSession(small, "w1", overflow="drop_oldest", **GREEDY)
    replies = [session.ask(question(number)) for number in range(6)]
    assert sum(reply.dropped_messages for reply in replies) > 0
    messages = session.messages
    assert [message["role"] for message in messages[:2]] == ["system", "user"]
    assert messages[-2]["content"] == question(5)
    with pytest.raises(ContextError) as caught:
        session.ask("w5 " * 70)
    assert_code(caught, "context-overflow", "64")
    assert session.messages == messages


# Saving


def test_restored_session_goes_on_where_it_was(session, model, tmp_path, steps):
    session.ask("w4")
    session.ask("w5")
    session.save(tmp_path / "talk")
    steps.clear()
    other = ChatSession.restore(model, tmp_path / "talk", **GREEDY)
    assert steps == [("prefill", session.cached_tokens)]  # at once, and in one go
    assert other.messages == session.messages
    mine, theirs = session.ask("w6"), other.ask("w6")
    assert theirs.tokens == mine.tokens
    assert theirs.prefilled_tokens == mine.prefilled_tokens
    assert list(tmp_path.iterdir()) == [tmp_path / "talk"]


def test_session_without_messages_can_be_saved(model, tmp_path):
    ChatSession(model).save(tmp_path / "talk")
    assert ChatSession.restore(model, tmp_path / "talk").messages == []


def test_cache_that_can_be_copied_is_saved_and_not_read_again(
    model, folder, cache_dir, tmp_path, monkeypatch, steps
):
    static = NPUModelForCausalLM.from_pretrained(
        folder, dtype="float32", pipeline="static", cache_dir=cache_dir
    )
    session = ChatSession(static, "w1 w2 w3", **GREEDY)
    session.ask("w4")
    session.save(tmp_path / "talk")
    steps.clear()
    other = ChatSession.restore(static, tmp_path / "talk", **GREEDY)
    assert steps == []
    assert other.cached_tokens == session.cached_tokens > 0
    mine, theirs = session.ask("w6"), other.ask("w6")
    assert theirs.tokens == mine.tokens
    assert theirs.prefilled_tokens == mine.prefilled_tokens
    # In another build or pipeline the cache is another, but not the tokens.
    steps.clear()
    ChatSession.restore(model, tmp_path / "talk", **GREEDY)
    monkeypatch.setattr(NPUModelForCausalLM, "cache_kind", "another")
    ChatSession.restore(static, tmp_path / "talk", **GREEDY)
    assert [phase for phase, _ in steps] == ["prefill", "prefill"]


def test_other_models_and_precisions_are_refused(session, model, folder, tmp_path, cache_dir):
    session.ask("w4")
    session.save(tmp_path / "talk")
    save_checkpoint(tmp_path / "words", max_position_embeddings=1024)
    save_checkpoint(tmp_path / "other")
    for place, dtype, what in (
        (folder, "int8", "precision"),
        (tmp_path / "words", "float32", "config"),
        (tmp_path / "other", "float32", "name"),
    ):
        stranger = NPUModelForCausalLM.from_pretrained(place, dtype=dtype, cache_dir=cache_dir)
        with pytest.raises(SessionError) as caught:
            ChatSession.restore(stranger, tmp_path / "talk")
        assert_code(caught, "session-model", "words in float32", f"by its {what}")


def changed(path, **metadata):
    """Writes a session's file anew with other metadata."""
    with safe_open(path, framework="pt") as file:
        old = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, {**old, **metadata})


@pytest.mark.parametrize(
    "damage, quoted",
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(b"\x80\x04."), "SafetensorError"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "SafetensorError"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9] + b"\1" * 9), "digest"),
        (lambda path: changed(path, about=json.dumps({"messages": []})), "digest"),
        (lambda path: changed(path, version="2"), "format 2, where 1 is known"),
        (lambda path: save_file({"a": torch.ones(1)}, path), "another kind"),
    ],
    ids=["absent", "foreign", "cut", "flipped", "messages", "version", "weights"],
)
def test_file_that_is_no_session(session, model, tmp_path, damage, quoted):
    session.ask("w4")
    session.save(tmp_path / "talk")
    damage(tmp_path / "talk")
    with pytest.raises(SessionError) as caught:
        ChatSession.restore(model, tmp_path / "talk")
    assert_code(caught, "session-unreadable", "talk", quoted)


def test_place_that_cannot_be_written(session, tmp_path):
    with pytest.raises(SessionError) as caught:
        session.save(tmp_path / "nowhere" / "talk")
    assert_code(caught, "session-unwritable", "nowhere")
    session.append({"role": "tool", "content": object()})
    with pytest.raises(SessionError) as caught:
        session.save(tmp_path / "talk")
    assert_code(caught, "session-unwritable", "JSON")
    assert list(tmp_path.iterdir()) == []


CHILD = """
import sys
from npu_llm import ChatSession, NPUModelForCausalLM
model = NPUModelForCausalLM.from_pretrained(sys.argv[1], dtype="float32", cache_dir=sys.argv[2])
session = ChatSession(model, do_sample=False, max_new_tokens=8, suppress_tokens=[0, 1, 2, 3])
for number in range(3):
    session.ask(f"w{number}")
    session.save(sys.argv[3])
for piece in session.stream("w60", max_new_tokens=1500):
    print(piece, flush=True)
"""


def test_killed_process_is_taken_up_from_its_last_save(
    model, reference, folder, cache_dir, tmp_path
):
    line = [sys.executable, "-c", CHILD, str(folder), str(cache_dir), str(tmp_path / "talk")]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    session = ChatSession.restore(model, tmp_path / "talk", **GREEDY)
    questions = [m["content"] for m in session.messages if m["role"] == "user"]
    assert questions == ["w0", "w1", "w2"]
    reply = session.ask("w60")
    assert reply.prefilled_tokens == 1 + 1 + 4 + 2
    assert reply.tokens == answer_of(reference, model, session.messages[:-1])


# Refusals


def test_model_without_a_tokenizer(model, monkeypatch):
    monkeypatch.setattr(NPUModelForCausalLM, "tokenizer", None)
    with pytest.raises(ModelError) as caught:
        ChatSession(model)
    assert_code(caught, "missing-tokenizer", "words")


def test_options_that_a_session_does_not_take(session, model):
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


def test_message_that_is_none(session):
    for wrong in (3, {"content": "w4"}):
        with pytest.raises(OptionError) as caught:
            session.ask(wrong)
        assert_code(caught, "message-kind", repr(wrong))


def test_message_that_is_not_there(session):
    for call in (lambda: session.edit(1, "w4"), lambda: session.rewind(-2)):
        with pytest.raises(OptionError) as caught:
            call()
        assert_code(caught, "message-index", "1 messages")


def test_messages_that_the_template_refuses(model):
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
