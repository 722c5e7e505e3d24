"""Output of commands in terminals of three widths, with and without colour and UTF-8."""

import fcntl
import json
import locale
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

# A process with another locale than this one's cannot be forked.
UTF_8 = {} if locale.getencoding().lower() == "utf-8" else {"LC_ALL": "C.UTF-8"}
PLACES = {
    "colour": {"TERM": "xterm-256color", **UTF_8},
    "plain": {"TERM": "xterm-256color", "NO_COLOR": "1", **UTF_8},
    "ascii": {
        "TERM": "xterm", "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
    },
}  # fmt: skip
LINES = [
    ("npu_runtime", "doctor"),
    ("npu_runtime", "info"),
    ("npu_llm", "cache"),
    ("npu_llm", "info"),
    ("npu_llm", "--help"),
    ("npu_compiler", "--help"),
    ("npu_ops", "--help"),
    ("npu_profiler", "--help"),
    ("npu_llm", "generate", "--help"),
]
SEEN = [("colour", 60), ("plain", 60), ("plain", 160), ("ascii", 80)]
ANSWER = """# Rivers

A river *begins* where rain or melting snow gathers, and grows by every brook that joins it — the
longest ones cross several countries before they reach an ocean.\x1b]0;title\x07

1. The Rhône flows through Geneva.
2. The Mississippi collects the water of thirty-one states, or of parts of them.

| river | length |
|-------|--------|
| Rhône | 813 km |

```python
length_km = {"Rhône": 813}
```
"""
_CONTROL_OR_SIGN = re.compile(r"\x1b\[\??([0-9;]*)([A-Za-z])|([^\x1b])", re.DOTALL)
_NUMBER = re.compile(r"^[0-9.,]+$")
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\r")


def shown(words, width, environment, typed=(), start=subprocess.Popen):
    """The bytes that a command sends to a terminal.

    At each prompt the terminal gets the width and then the line that `typed` has next.
    """
    package, *arguments = words
    code = f"import npu_command, sys; sys.exit(npu_command.{package}())"
    terminal, inner = pty.openpty()
    resize(inner, width)
    kept = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    process = start(
        [sys.executable, "-c", code, *arguments],
        stdin=inner, stdout=inner, stderr=inner, env=kept | environment,
    )  # fmt: skip
    os.close(inner)
    output, waiting = b"", [*typed]
    try:
        while part := os.read(terminal, 65536):
            output += part
            if waiting and output.endswith(b"> "):
                width, line = waiting.pop(0)
                resize(terminal, width)
                os.write(terminal, line)
    except OSError:  # Linux returns EIO after the other side has closed
        pass
    os.close(terminal)
    assert process.wait(60) == 0, output
    return output


def resize(terminal, width):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))


def words_of(text):
    """Its words in their order, whatever lines they stand in; frames are no words."""
    return [word for word in text.split() if not set(word) <= set("─━┃│┏┓┗┛┡┩└┘┳┴┼╇-+|?")]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_no_terminal_breaks_a_word_or_a_line(words, start, tmp_path):
    if words[0] != "npu_runtime":
        start = subprocess.Popen  # without torch a new process costs no more
    texts = {}
    for place, width in SEEN:
        environment = PLACES[place] | {"NPU_LLM_CACHE_DIR": str(tmp_path)}
        output = shown(words, width, environment, start=start)
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


class Server(BaseHTTPRequestHandler):
    """It answers everything with ANSWER, in pieces that end within words."""

    def do_GET(self):
        self.send("application/json", [json.dumps({"data": [{"id": "rivers"}]})])

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        pieces = [ANSWER[start : start + 7] for start in range(0, len(ANSWER), 7)]
        usage = {"prompt_tokens": 12, "completion_tokens": len(pieces)}
        chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
        end = [
            {"choices": [{"delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ]
        texts = [*map(json.dumps, [*chunks, *end]), "[DONE]"]
        self.send("text/event-stream", [f"data: {text}\n\n" for text in texts])

    def send(self, kind, parts):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        for part in parts:
            self.wfile.write(part.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def screen(text):
    """The final screen of a terminal of any width."""
    lines, column = [""], 0
    for number, control, sign in _CONTROL_OR_SIGN.findall(text):
        line = lines[-1]
        if sign == "\n":
            lines.append("")
        elif sign == "\r":
            column = 0
        elif sign:
            lines[-1] = line[:column] + sign + line[column + 1 :]
            column += 1
        elif control == "D":
            column -= int(number)
        elif control == "K":
            lines[-1] = line[:column]
        else:
            assert control in "mhl", control  # styles, and readline's mode for pasted text
    return "\n".join(lines)


@pytest.mark.parametrize("place", PLACES)
def test_no_terminal_breaks_a_word_of_a_chat(place, url, tmp_path):
    environment = PLACES[place] | {"NPU_LLM_CACHE_DIR": str(tmp_path)}
    widths = (60, 80, 160)
    typed = [(width, b"Rivers?\n") for width in widths] + [(80, b"\x04")]
    output = shown(("npu_llm", "chat", "--server", url), 60, environment, typed)
    assert bool(re.search(rb"\x1b\[[0-9;]*m", output)) is (place != "plain"), "styles"
    assert not re.search(rb"\x1b\]|\x07", output), "an answer steers the terminal"
    _, *turns = screen(output.decode()).split("> Rivers?\n")
    answers = [turn.partition("\n> ")[0] for turn in turns]
    for width, answer in zip(widths, answers, strict=True):
        assert max(map(len, answer.splitlines())) <= width
    # Speeds differ; a table that is rendered may be wider where there is room.
    texts = [[word for word in words_of(answer) if not _NUMBER.match(word)] for answer in answers]
    assert texts[0] == texts[1] == texts[2]
    assert {"Mississippi", "wrote"} <= set(texts[0])
    assert ("Rhône" in texts[0]) is (place != "ascii")
