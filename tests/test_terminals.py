"""What commands print in terminals of three widths, with and without colour and UTF-8."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios

import pytest

PLACES = {
    "colour": {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"},
    "plain": {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "NO_COLOR": "1"},
    "ascii": {
        "TERM": "xterm", "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
    },
}  # fmt: skip
LINES = [
    ("npu_runtime", "doctor"),
    ("npu_runtime", "info"),
    ("npu_llm", "models"),
    ("npu_llm", "info"),
    ("npu_llm", "--help"),
    ("npu_compiler", "--help"),
    ("npu_ops", "--help"),
    ("npu_profiler", "--help"),
    ("npu_llm", "generate", "--help"),
]
SEEN = [("colour", 60), ("plain", 60), ("plain", 80), ("plain", 160), ("ascii", 80)]
_NUMBER = re.compile(r"^[0-9.,]+$")
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\r")


def shown(words, width, environment):
    """The bytes that a command sends to a terminal."""
    package, *arguments = words
    code = f"import npu_command, sys; sys.exit(npu_command.{package}())"
    process, terminal = pty.fork()
    if process == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        kept = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LANG")}
        line = [sys.executable, "-c", code, *arguments]
        os.execve(line[0], line, kept | environment)
    output = b""
    try:
        while part := os.read(terminal, 65536):
            output += part
    except OSError:  # Linux says EIO when the other side has gone
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0, output
    return output


def words_of(text):
    """Its words in their order, whatever lines they stand in; frames are no words."""
    return [word for word in text.split() if not set(word) <= set("─━┃│┏┓┗┛┡┩└┘┳┴┼╇-+|?")]


@pytest.mark.slow
@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_no_terminal_breaks_a_word_or_a_line(words, tmp_path):
    texts = {}
    for place, width in SEEN:
        output = shown(words, width, PLACES[place] | {"NPU_LLM_CACHE_DIR": str(tmp_path)})
        if place != "colour":
            assert not re.search(rb"\x1b\[[0-9;]*3[0-9]", output), "a colour"
        text = texts[place, width] = _CONTROL.sub(b"", output).decode()
        whole = max(map(len, words_of(text)))
        for line in text.splitlines():
            # A path longer than the space that it has is left whole.
            assert len(line) <= max(width, whole + 24), line
    assert texts["ascii", 80].isascii()
    if "--help" not in words:  # argparse writes a usage by itself
        # Free memory differs between two moments.
        narrow, wide = (
            sorted(word for word in words_of(texts["plain", width]) if not _NUMBER.match(word))
            for width in (60, 160)
        )
        assert narrow == wide
