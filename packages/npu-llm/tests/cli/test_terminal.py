import io
import re
import sys
import types
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from npu_command import output
from npu_llm.cli import terminal
from npu_llm.cli.terminal import Display, WordWrap, text_writer
from npu_llm.progress import MERGE_STAGES


@pytest.fixture
def screen():
    """A display on a terminal of 80 columns; its file has the sent text."""
    display = Display()
    display.console = on_terminal(io.StringIO())
    return display


def on_terminal(file):
    return Console(file=file, force_terminal=True, width=80, highlight=False, markup=False)


def test_a_terminal_shows_how_many_of_many_are_done(screen):
    with screen.counting("measuring int8", "tokens") as counter:
        counter(1024, 4096)
        screen.line("said meanwhile")
    shown = screen.console.file.getvalue()
    assert "measuring int8" in shown
    assert "1,024 of 4,096 tokens" in shown
    assert "said meanwhile\n" in shown


def test_without_a_terminal_a_count_is_a_line_at_the_end(capsys):
    with Display().counting("measuring int8", "tokens") as counter:
        counter(1024, 4096)
        assert capsys.readouterr().err == ""
        counter(4096, 4096)
    assert capsys.readouterr().err == "measuring int8: 4,096 tokens in 0.0 s\n"


def test_a_count_that_fails_prints_no_line(capsys):
    with pytest.raises(ZeroDivisionError), Display().counting("measuring", "answers"):
        raise ZeroDivisionError
    assert capsys.readouterr().err == ""


def test_quiet_counts_in_silence(capsys, monkeypatch):
    monkeypatch.setattr(output, "_quiet", True)
    display = Display()
    with display.counting("measuring", "answers") as counter:
        counter(1, 1)
    with display.progress(MERGE_STAGES) as listener:
        listener(MERGE_STAGES[0], 0.0)
        listener(MERGE_STAGES[0], 1.0)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_the_stage_and_the_share_of_all_stages(screen):
    with screen.progress(MERGE_STAGES) as listener:
        listener(MERGE_STAGES[0], 1.0)
        listener(MERGE_STAGES[1], 0.5)
        screen.line("said meanwhile")
    share = MERGE_STAGES[0].weight + MERGE_STAGES[1].weight / 2
    shown = screen.console.file.getvalue()
    assert MERGE_STAGES[1].title in shown
    assert f"{share:.0f} %" in shown


def test_a_terminal_shows_what_a_stage_does_now_in_one_line(screen):
    with screen.progress(MERGE_STAGES) as listener:
        screen.line("said before: rich imports tables of its own")
        listener(replace(MERGE_STAGES[1], doing=f"adapter 3 of 90, {'deep.' * 20}"), 0.1)
        screen.line("said meanwhile")
    shown = screen.console.file.getvalue()
    assert "  step 2 of 3, 0 s: adapter 3 of 90, deep.deep." in shown
    (line,) = {line for line in shown.splitlines() if "adapter 3" in line}
    assert len(line) == 80


def test_a_bar_never_goes_back(screen):
    with screen.progress(MERGE_STAGES) as listener:
        listener(MERGE_STAGES[1], 1.0)
        listener(MERGE_STAGES[0], 0.0)
        screen.line("said meanwhile")
    last = screen.console.file.getvalue().rpartition("%")[0]
    assert last.endswith(f"{MERGE_STAGES[0].weight + MERGE_STAGES[1].weight} ")


def test_a_terminal_shows_what_is_imported(screen, monkeypatch):
    with screen.progress(MERGE_STAGES):
        screen.line("said before: rich imports tables of its own")
        monkeypatch.setitem(sys.modules, "slow.package", types.ModuleType("slow.package"))
        screen.line("said meanwhile")
    shown = screen.console.file.getvalue()
    assert f"importing slow.package, {len(sys.modules):,} modules" in shown


def test_a_terminal_without_utf8_gets_ascii(screen):
    sent = io.BytesIO()
    screen.console = on_terminal(io.TextIOWrapper(sent, "ascii", "backslashreplace"))
    with screen.progress(MERGE_STAGES) as listener, screen.counting("measuring", "tokens"):
        listener(MERGE_STAGES[0], 0.5)
    screen.console.file.flush()
    assert b"loading weights" in sent.getvalue()
    assert b"\\u" not in sent.getvalue()


def test_without_a_terminal_a_stage_is_a_line_at_its_end(capsys):
    with Display().progress(MERGE_STAGES) as listener:
        listener(MERGE_STAGES[0], 0.0)
        listener(replace(MERGE_STAGES[0], doing="tensor 2 of 2"), 1.0)
        assert capsys.readouterr().err == ""
        listener(MERGE_STAGES[0], 1.0)
    assert capsys.readouterr().err == "loading weights: 0.0 s\n"


# Answers


def shown(written, columns):
    """The screen of a terminal: it breaks lines at the edge, moves back and erases."""
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
    lines = shown("".join(written), columns)
    assert all(len(line) <= columns for line in lines)
    words = "".join(pieces).split()
    if all(len(word) < columns for word in words):
        assert [word for line in lines for word in line.split()] == words


def test_a_word_that_grows_beyond_the_edge_moves_to_the_next_line():
    written = []
    wrap = WordWrap(written.append, lambda: 10)
    for piece in ("one ", "thou", "sand", " two"):
        wrap.write(piece)
    assert written == ["one ", "thou", "\x1b[4D\x1b[K\nthousand", " \ntwo"]
    assert shown("".join(written), 10) == ["one ", "thousand ", "two"]


def test_wide_characters_count_twice():
    written = []
    wrap = WordWrap(written.append, lambda: 8)
    wrap.write("日本 語語")
    assert written == ["日本 \n語語"]


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_an_answer_cannot_steer_a_terminal(kind, monkeypatch):
    written = []
    monkeypatch.setattr(terminal, "_write", written.append)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", kind)
    text_writer()("one\x1b[31m\ttwo\r\n\x1b]0;title\x07three\x9b2J")
    assert "".join(written) == "one[31m\ttwo\n]0;titlethree2J"


def test_a_file_gets_an_answer_as_it_is(capsys):
    text_writer()("\x1b[31m")
    assert capsys.readouterr().out == "\x1b[31m"
