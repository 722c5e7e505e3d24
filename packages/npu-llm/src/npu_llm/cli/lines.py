"""Reads what is typed: with editing and a history in a terminal, as plain lines from a pipe."""

from __future__ import annotations

import contextlib
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

from npu_llm.tokenizer.unicode_text import read_text

__all__ = ["LineReader", "unechoed"]

_PROMPT, _MORE = "> ", "... "
_BLOCK = '"""'
_HISTORY_LINES = 1000
# Stands for the end of a line in the file of the history, which has an entry on each line.
_NEWLINE = "\x1e"


@contextlib.contextmanager
def unechoed() -> Iterator[None]:
    """Keeps what is typed meanwhile off the screen; the next prompt takes it.

    Ctrl-C works as before. Nothing changes where input is no terminal.
    """
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


class LineReader:
    """Reads messages of one or more lines from standard input."""

    def __init__(self, history: Path) -> None:
        """Names the history.

        Args:
            history: the file that keeps what is typed into a terminal; not used if it cannot be
                read or written.
        """
        self._history = history
        self._has_history = False

    @property
    def can_edit(self) -> bool:
        """Whether there is a terminal to edit a draft in."""
        return sys.stdin.isatty() and sys.stdout.isatty()

    def read(self, draft: str = "") -> str | None:
        """Returns the next message; None at the end of the input.

        Args:
            draft: what the line already contains, where there is a terminal to edit it in.

        Raises:
            KeyboardInterrupt: for Ctrl-C.
            OptionError: [text-encoding] for bytes that are not UTF-8.
        """
        line = self._line(_PROMPT, draft)
        if line is None:
            return None
        if line.strip() == _BLOCK:
            return self._block()
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1].removesuffix("\\")
            following = self._line(_MORE)
            if following is None:
                break
            lines.append(following)
        return "\n".join(lines)

    def _block(self) -> str:
        lines: list[str] = []
        while (line := self._line(_MORE)) is not None and line.strip() != _BLOCK:
            lines.append(line)
        return "\n".join(lines)

    def _line(self, prompt: str, draft: str = "") -> str | None:
        if self.can_edit:
            return self._typed(prompt, draft)
        if sys.stdin.isatty():
            # input() would write its prompt to standard output, among the answers.
            print(prompt, end="", file=sys.stderr, flush=True)
        line = read_text("standard input", sys.stdin.readline)
        return line.removesuffix("\n") if line else None

    def _typed(self, prompt: str, draft: str) -> str | None:
        import readline  # line editing and recall for input()

        if not self._has_history:
            self._has_history = True
            readline.set_history_length(_HISTORY_LINES)
            # Pasted lines are one message; Python turns this off for its own prompt.
            readline.parse_and_bind("set enable-bracketed-paste on")
            with contextlib.suppress(OSError):
                readline.read_history_file(self._history)
            for place in range(readline.get_current_history_length()):
                entry = readline.get_history_item(place + 1)
                if entry is not None and _NEWLINE in entry:
                    readline.replace_history_item(place, entry.replace(_NEWLINE, "\n"))
        readline.set_startup_hook(lambda: readline.insert_text(draft))
        try:
            line = read_text("the line", lambda: input(prompt))
        except EOFError:
            print(file=sys.stderr)
            return None
        finally:
            readline.set_startup_hook()
        if line:
            self._keep(line)
        return line

    def _keep(self, line: str) -> None:
        """Adds a line to the file: at once, not at the end, which a killed chat does not reach."""
        import readline

        last = readline.get_current_history_length() - 1
        if last < 0:  # where the user's inputrc keeps no history
            return
        readline.replace_history_item(last, line.replace("\n", _NEWLINE))
        with contextlib.suppress(OSError):
            self._history.parent.mkdir(parents=True, exist_ok=True)
            self._history.touch(mode=0o600)
            readline.append_history_file(1, self._history)
        readline.replace_history_item(last, line)
