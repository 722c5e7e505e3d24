import argparse
import contextlib
import io
import os
import pty
import select
import signal
import sys

import pytest

import forked_python
from npu_llm import NPUModelForCausalLM
from npu_llm.cli import main
from npu_llm.cli.arguments import SAMPLING
from npu_llm.cli.chat import LocalModels
from npu_llm.cli.terminal import Display, LineReader
from npu_llm.cli.turns import Chat
from npu_llm.kv_cache.paged import PagedCache


@pytest.fixture(scope="module")
def model(checkpoint, shared):
    return shared.load(NPUModelForCausalLM, checkpoint, dtype="float32")


@pytest.fixture
def new_chat(model, tmp_path):
    """new_chat(**options): a chat that has not begun."""

    def make(**changes):
        plain = {
            "system": None, "max_new_tokens": 12, "greedy": True, "temperature": None,
            "stop": [], **dict.fromkeys(SAMPLING),
        }  # fmt: skip
        options = argparse.Namespace(**{**plain, **changes})
        display = Display()
        models = LocalModels(options, display)
        session = models.new_session(model)
        session.system = options.system
        return Chat(session, models, display, LineReader(tmp_path / "history"), is_plain=False)

    return make


@pytest.fixture
def talk(checkpoint, cache_dir, monkeypatch, capsys):
    """talk(lines): exit code, standard output, standard error of a chat with piped input."""

    def run(*lines, arguments=()):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        place = ["--model", str(checkpoint), "--cache-dir", str(cache_dir), "--dtype", "float32"]
        code = main(["chat", *place, "--greedy", "--max-new-tokens", "8", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def take(chat, text):
    """Types a line."""
    (chat.command if text.startswith("/") else chat.ask)(text)


def roles(chat):
    return [message["role"] for message in chat.session.messages]


def contents(chat):
    return [message["content"] for message in chat.session.messages]


# From a pipe


def test_turns_from_a_pipe_end_with_it(talk):
    code, out, err = talk("the quick", "brown fox")
    assert code == 0
    assert out.count("\n") >= 2
    assert err.count(" tokens and wrote 8, the first after ") == 2


def test_figures_say_how_much_of_the_prompt_was_read(talk):
    _, _, err = talk("the quick")
    (line,) = (line for line in err.splitlines() if line.startswith("Read "))
    read, of = line.removeprefix("Read ").split(" tokens")[0].split(" of ")
    assert read == of


def test_help_is_no_turn_and_exit_leaves(talk):
    code, out, err = talk("/help", "/nonsense", "/exit", "never read")
    assert (code, out) == (0, "")
    assert "/reset" in err
    assert "no command /nonsense" in err


def test_what_only_other_chats_have_is_said_to_be_so(new_chat, capsys):
    chat = new_chat()
    take(chat, "/image some.png")
    take(chat, "/nothing")
    said = capsys.readouterr().err
    assert "does not read images" in said
    assert "There is no command /nothing" in said


@pytest.mark.parametrize("word", ["/bye", "/exit"])
def test_bye_leaves(talk, word):
    code, out, _ = talk(word, "never read")
    assert (code, out) == (0, "")


def test_an_answer_without_a_maximum_ends_with_the_context(new_chat, capsys):
    chat = new_chat(max_new_tokens=None)
    take(chat, "the quick")
    assert chat.session.last_reply.finish == "length"
    assert chat.session.cached_tokens >= 255
    err = capsys.readouterr().err
    assert "the answer was cut; /set max_new_tokens N" in err
    take(chat, "/stats")
    assert "length: the answer was cut" in capsys.readouterr().err


def test_reset_forgets(talk):
    _, once, _ = talk("the quick")
    _, twice, err = talk("the quick", "/reset", "the quick")
    assert twice == once * 2
    assert "forgotten" in err


def test_lines_that_belong_together_are_one_message(talk, new_chat, monkeypatch):
    _, _, err = talk("the quick \\", "brown", '"""', "fox", "/reset", '"""')
    assert err.count("Read ") == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO('one\\\ntwo\n"""\nthree\n\nfour\n"""\n'))
    chat = new_chat()
    chat.run()
    assert contents(chat)[::2] == ["one\ntwo", "three\n\nfour"]


def test_session_is_saved_at_the_end_and_taken_up_again(talk, tmp_path):
    place = ("--session", str(tmp_path / "talk.session"))
    _, first, err = talk("the quick", arguments=place)
    assert "saved in" in err
    _, second, err = talk("brown fox", arguments=place)
    assert "continuing with 2 messages" in err
    _, whole, _ = talk("the quick", "brown fox")
    assert first + second == whole


def test_session_that_cannot_be_read_ends_the_start(talk, tmp_path):
    (tmp_path / "talk.session").write_text("no session")
    code, out, err = talk("the quick", arguments=("--session", str(tmp_path / "talk.session")))
    assert (code, out) == (2, "")
    assert err.endswith("[session-unreadable]\n")


# Commands


def test_undo_retry_and_edit(new_chat, capsys):
    chat = new_chat()
    for line in ("/undo", "/retry", "/edit", "the quick", "brown fox"):
        take(chat, line)
    err = capsys.readouterr().err
    assert err.count("no question yet") == 2
    assert "/edit TEXT" in err
    before = contents(chat)
    take(chat, "/retry")
    assert contents(chat) == before
    take(chat, "/edit lazy dog")
    assert contents(chat)[:3] == [*before[:2], "lazy dog"]
    take(chat, "/undo")
    assert contents(chat) == before[:2]
    assert "Forgotten: lazy dog" in capsys.readouterr().err


def test_edit_without_a_terminal_wants_the_text(new_chat, capsys):
    chat = new_chat()
    take(chat, "the quick")
    take(chat, "/edit")
    assert "/edit TEXT" in capsys.readouterr().err
    assert contents(chat)[:1] == ["the quick"]


def test_system_message_is_shown_and_changed(new_chat, capsys):
    chat = new_chat(system="the fox")
    take(chat, "/system")
    take(chat, "/system the lazy dog")
    shown = [line for line in capsys.readouterr().err.splitlines() if line.startswith("system:")]
    assert shown == ["system: the fox", "system: the lazy dog"]
    assert chat.session.system == "the lazy dog"


def test_set_changes_the_next_answers(new_chat, capsys):
    chat = new_chat(greedy=False, temperature=5.0, max_new_tokens=12)
    for line in ("/set", "/set temperature 0", "/set max_new_tokens=3", "the quick", "/retry"):
        take(chat, line)
    err = capsys.readouterr().err
    assert "set: nothing" in err
    assert "set: temperature 0, max_new_tokens 3" in err
    assert err.count(" and wrote 3, ") == 2
    first = contents(chat)[-1]
    take(chat, "/retry")
    assert contents(chat)[-1] == first


def test_settings_of_sampling_reach_the_answer(new_chat, model):
    chat = new_chat(max_new_tokens=20, repetition_penalty=1.8)
    take(chat, "the quick")
    penalized = contents(chat)[-1]
    chat = new_chat(max_new_tokens=20)
    take(chat, "the quick")
    plain = contents(chat)[-1]
    assert penalized != plain
    take(chat, "/set repetition_penalty 1.8")
    take(chat, "/retry")
    assert contents(chat)[-1] == penalized
    chat = new_chat(max_new_tokens=20, stop=[plain[4:6]])
    take(chat, "the quick")
    assert contents(chat)[-1] == plain[: plain.index(plain[4:6]) + 2]


def test_stats_show_the_figures_of_the_last_answer(new_chat, capsys):
    chat = new_chat()
    take(chat, "/stats")
    assert "There is no answer yet." in capsys.readouterr().err
    take(chat, "the quick")
    capsys.readouterr()
    take(chat, "/stats")
    rows = capsys.readouterr().err
    assert f"{chat.session.cached_tokens} of 256 tokens" in rows
    assert "12 tokens" in rows


def test_another_model_goes_on_with_the_conversation(
    checkpoint, cache_dir, wide, capsys, monkeypatch
):
    words = ("/model", "the quick", "/model nowhere", f"/model {wide}", "brown fox", "/model")
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(words)))
    place = ["--model", str(checkpoint), "--cache-dir", str(cache_dir), "--dtype", "float32"]
    assert main(["chat", *place, "--greedy", "--max-new-tokens", "4"]) == 0
    err = capsys.readouterr().err
    assert [line for line in err.splitlines() if line.startswith("model: ")] == [
        f"model: {checkpoint.name}, float32",
        *[f"model: {wide.name}, float32"] * 2,
    ]
    assert "[hub-failed]" in err or "[model-not-found]" in err
    last = err.rsplit("Read ", 1)[1]
    read, of = last.split(" tokens")[0].split(" of ")
    assert read == of, "the new model has read nothing yet"


def test_save_and_load(new_chat, capsys, tmp_path):
    chat = new_chat()
    take(chat, "the quick")
    for line in ("/save", "/load", f"/save {tmp_path / 'a'}", "/reset", f"/load {tmp_path / 'a'}"):
        take(chat, line)
    assert roles(chat) == ["user", "assistant"]
    err = capsys.readouterr().err
    assert "/save FILE" in err
    assert "/load FILE" in err


def test_what_the_session_refuses_is_said_and_the_chat_goes_on(
    new_chat, capsys, tmp_path, monkeypatch
):
    lines = ("zq " * 200, f"/load {tmp_path / 'none'}", "/save /nowhere/a", "the quick")
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    chat = new_chat()
    chat.run()
    err = capsys.readouterr().err
    for code in ("context-overflow", "session-unreadable", "session-unwritable"):
        assert f"[{code}]" in err
    assert contents(chat)[:1] == ["the quick"]


def test_oldest_turns_go_when_the_context_is_full(new_chat, capsys):
    chat = new_chat(max_new_tokens=30)
    for _ in range(6):
        take(chat, "the quick brown fox jumps over the lazy dog")
    assert len(chat.session.messages) < 12
    assert "dropped" in capsys.readouterr().err


def test_interrupted_answer_stays_in_the_history(new_chat, monkeypatch, capsys):
    chat = new_chat()
    steps = 0
    step = PagedCache.append

    def interrupted(self, *arguments, **keywords):
        nonlocal steps
        steps += 1
        if steps == 4:
            raise KeyboardInterrupt
        return step(self, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(PagedCache, "append", interrupted)
        take(chat, "the quick")
    assert "interrupted" in capsys.readouterr().err
    assert roles(chat) == ["user", "assistant"]
    take(chat, "brown fox")
    assert len(chat.session.messages) == 4


# In a terminal


PROMPT = b"\x1b[?2004h> "  # an answer may hold the two letters alone
TAKEN = b"\r\n\x1b[?2004l\r"  # a line has been read, and readline's mode of pasting ends


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, checkpoint, cache_dir, *arguments, preload):
        line = [sys.executable, "-m", "npu_llm.cli", "chat", "--model", str(checkpoint)]
        line += ["--cache-dir", str(cache_dir), "--dtype", "float32", *arguments]
        terminal, inside = pty.openpty()
        files = dict.fromkeys(("stdin", "stdout", "stderr"), inside)
        self.process = forked_python.start(line, start_new_session=True, preload=preload, **files)
        os.close(inside)
        self.screen = os.fdopen(terminal, "r+b", buffering=0)
        self.seen = b""

    def read(self):
        ready, _, _ = select.select([self.screen], [], [], 120)
        if not ready:  # a test that waits forever would not report
            self.process.kill()
            pytest.fail(f"nothing came any more after {self.seen!r}")
        part = self.screen.read(1)
        if not part:
            raise EOFError
        self.seen += part

    def wait_for(self, end):
        while not self.seen.endswith(end):
            self.read()

    def type(self, keys):
        self.screen.write(keys)
        self.seen += b"|"

    def end(self):
        """The exit code, after all output was read."""
        with contextlib.suppress(OSError, EOFError):  # Linux returns EIO at its end
            while True:
                self.read()
        self.screen.close()
        return self.process.wait()


@pytest.fixture
def terminal(cache_dir, shared, preload):
    """terminal(checkpoint, *arguments): a chat in a pseudo-terminal."""

    def start(checkpoint, *arguments):
        shared.load(NPUModelForCausalLM, checkpoint, dtype="float32")
        return Terminal(checkpoint, shared.cache_dir(checkpoint), *arguments, preload=preload)

    return start


def test_terminal_gets_a_prompt_and_end_of_input_leaves(checkpoint, terminal):
    chat = terminal(checkpoint, "--greedy", "--max-new-tokens", "4")
    for typed in (b"/help\n", b"the quick\n", b"\x04"):
        chat.wait_for(b"> ")
        chat.type(typed)
    assert chat.end() == 0
    assert b"/reset" in chat.seen
    assert b"Read " in chat.seen


def test_what_was_typed_is_recalled_in_the_next_chat(checkpoint, terminal):
    first = terminal(checkpoint, "--greedy", "--max-new-tokens", "4")
    for typed in (b"\x1b[200~/system the\nlazy dog\x1b[201~\n", b"\x04"):
        first.wait_for(b"> ")
        first.type(typed)
    assert first.end() == 0
    second = terminal(checkpoint, "--greedy", "--max-new-tokens", "4")
    for typed in (b"\x1b[A\n", b"\x04"):  # the key "up"
        second.wait_for(b"> ")
        second.type(typed)
    assert second.end() == 0
    assert b"lazy dog" in second.seen.partition(b"system: the")[2]


def test_pasted_lines_are_one_message(checkpoint, terminal):
    chat = terminal(checkpoint, "--greedy", "--max-new-tokens", "4")
    chat.wait_for(PROMPT)
    chat.type(b"\x1b[200~the quick\nbrown fox\x1b[201~\n")
    chat.wait_for(PROMPT)
    chat.type(b"\x04")
    assert chat.end() == 0
    assert chat.seen.count(b"Read ") == 1


def test_what_is_typed_during_an_answer_stands_at_the_next_prompt(talkative, terminal):
    chat = terminal(talkative, "--max-new-tokens", "300", "--greedy")
    chat.wait_for(PROMPT)
    chat.type(b"the quick\n")
    chat.wait_for(TAKEN)
    chat.read()  # the answer has begun
    chat.type(b"/set top_p 0.25\n")
    chat.wait_for(b"set: top_p 0.25")
    chat.wait_for(PROMPT)
    chat.type(b"\x04")
    assert chat.end() == 0
    answer, after = chat.seen.split(b"(the answer was cut; /set max_new_tokens N ")
    assert b"/set" not in answer
    assert b"/set top_p 0.25" in after


def test_ctrl_c_stops_the_answer_and_keeps_what_was_read(talkative, terminal):
    arguments = ("--max-new-tokens", "20000", "--temperature", "9", "--seed", "3")
    chat = terminal(talkative, *arguments)
    chat.wait_for(b"> ")
    chat.type(b"the quick\n")
    chat.wait_for(TAKEN)
    chat.read()  # the answer has begun
    chat.process.send_signal(signal.SIGINT)
    chat.wait_for(PROMPT)
    chat.type(b"brown fox\n")
    chat.wait_for(TAKEN)
    chat.read()
    chat.process.send_signal(signal.SIGINT)
    chat.wait_for(PROMPT)
    chat.type(b"\x04")
    assert chat.end() == 0
    text = chat.seen.decode(errors="replace")
    assert "(interrupted)" in text
    read, of = text.rsplit("Read ", 1)[1].split(" tokens")[0].split(" of ")
    assert int(read) < int(of)


def test_input_that_is_no_utf_8_ends_the_chat_with_an_error(in_process, monkeypatch):
    bytes_ = io.BytesIO(b"Hello \xff\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(bytes_, encoding="utf-8"))
    code, out, err = in_process("chat")
    assert (code, out) == (2, "")
    assert "`standard input` must be text in UTF-8" in err
    assert err.endswith("[text-encoding]\n")
