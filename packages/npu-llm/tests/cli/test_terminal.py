import io
import sys
import types
from dataclasses import replace

import pytest
from rich.console import Console

from npu_command import output
from npu_llm.cli.terminal import Display
from npu_llm.progress import MERGE_STAGES


@pytest.fixture
def screen():
    """A display on a terminal of 80 columns, whose file has what was sent there."""
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
