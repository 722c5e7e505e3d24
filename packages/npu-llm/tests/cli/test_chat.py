import argparse
import contextlib
import io
import os
import pty
import sys

import pytest

from npu_llm import NPUModelForCausalLM
from npu_llm.cli import main
from npu_llm.cli.chat import Conversation
from npu_llm.cli.display import Display


def options(**changes):
    plain = {"system": None, "max_new_tokens": 12, "greedy": True, "temperature": None}
    return argparse.Namespace(**{**plain, **changes})


@pytest.fixture(scope="module")
def model(checkpoint, cache_dir):
    return NPUModelForCausalLM.from_pretrained(checkpoint, dtype="float32", cache_dir=cache_dir)


@pytest.fixture
def talk(checkpoint, cache_dir, monkeypatch, capsys):
    """talk(lines): exit code, standard output, standard error of a chat with piped input."""

    def run(*lines):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        place = ["--model", str(checkpoint), "--cache-dir", str(cache_dir), "--dtype", "float32"]
        code = main(["chat", *place, "--greedy", "--max-new-tokens", "8"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_turns_from_a_pipe_end_with_it(talk):
    code, out, err = talk("the quick", "brown fox")
    assert code == 0
    assert out.count("\n") >= 2
    assert err.count(" tokens in") == 2


def test_help_is_no_turn_and_exit_leaves(talk):
    code, out, err = talk("/help", "/nonsense", "/exit", "never read")
    assert (code, out) == (0, "")
    assert "/reset" in err
    assert "no command /nonsense" in err


def test_reset_forgets(talk):
    _, once, _ = talk("the quick")
    _, twice, err = talk("the quick", "/reset", "the quick")
    assert twice == once * 2
    assert "forgotten" in err


def test_later_turns_see_the_former(model):
    conversation = Conversation(model, options(), Display())
    conversation.ask("the quick")
    conversation.ask("brown fox")
    roles = [turn["role"] for turn in conversation.turns]
    assert roles == ["user", "assistant", "user", "assistant"]


def test_cache_of_former_turns_changes_no_token(model, capsys):
    kept, fresh = (Conversation(model, options(), Display()) for _ in range(2))
    for text in ("the quick", "brown fox", "lazy dog"):
        kept.ask(text)
        with_cache = capsys.readouterr().out
        fresh.ask(text)
        assert capsys.readouterr().out == with_cache
        fresh._forget_cache()


def test_interrupted_answer_stays_in_the_history(model, monkeypatch, capsys):
    conversation = Conversation(model, options(), Display())
    steps = 0
    forward = NPUModelForCausalLM.forward

    def interrupted(self, *arguments, **keywords):
        nonlocal steps
        steps += 1
        if steps == 4:
            raise KeyboardInterrupt
        return forward(self, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(NPUModelForCausalLM, "forward", interrupted)
        conversation.ask("the quick")
    assert "interrupted" in capsys.readouterr().err
    assert [turn["role"] for turn in conversation.turns] == ["user", "assistant"]
    conversation.ask("brown fox")
    assert len(conversation.turns) == 4


def test_oldest_turns_go_when_the_context_is_full(model, capsys):
    conversation = Conversation(model, options(max_new_tokens=30), Display())
    for _ in range(6):
        conversation.ask("the quick brown fox jumps over the lazy dog")
    assert len(conversation.turns) < 12
    assert "dropped" in capsys.readouterr().err


def test_turn_longer_than_the_context_is_refused_and_the_chat_goes_on(model, capsys):
    conversation = Conversation(model, options(), Display())
    conversation.ask("zq " * 200)
    assert "Say it shorter" in capsys.readouterr().err
    assert conversation.turns == []
    conversation.ask("the quick")
    assert len(conversation.turns) == 2


def test_terminal_gets_a_prompt_and_end_of_input_leaves(checkpoint, cache_dir):
    line = [sys.executable, "-m", "npu_llm.cli", "chat", "--greedy", "--max-new-tokens", "4"]
    line += ["--model", str(checkpoint), "--cache-dir", str(cache_dir), "--dtype", "float32"]
    process, terminal = pty.fork()
    if process == 0:
        os.execv(line[0], line)
    seen = b""
    with os.fdopen(terminal, "r+b", buffering=0) as screen:
        for typed in (b"/help\n", b"the quick\n", b"\x04"):
            while not seen.endswith(b"> "):
                seen += screen.read(1)
            screen.write(typed)
            seen += b"|"
        with contextlib.suppress(OSError):  # Linux says EIO when the other side has gone
            while part := screen.read(1024):
                seen += part
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert b"/reset" in seen
    assert b"tokens in" in seen
