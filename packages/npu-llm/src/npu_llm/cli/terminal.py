"""Terminal: reads typed lines, streams answers to standard output, and the rest to standard error.

On a terminal, typed lines have editing and a history. Answers are streamed with word wrap;
npu_llm.cli.markdown renders Markdown.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from npu_command.output import OUTPUT, Imports, is_quiet
from npu_llm.errors import read_text
from npu_llm.progress import STAGES, ProgressListener, Stage

__all__ = [
    "Counter",
    "Display",
    "LineReader",
    "WordWrap",
    "can_render",
    "text_writer",
    "unechoed",
    "without_controls",
    "writer_beside_json",
]

# Called with the number of finished items and the total.
Counter = Callable[[int, int], None]


_LINE_S = 10.0  # interval of progress lines without a terminal


class Display:
    """Lines, progress bars and tables on standard error; plain lines if it is not a terminal.

    With --quiet, it shows only replies.
    """

    def __init__(self) -> None:
        self.console = Console(
            stderr=True,
            highlight=False,
            markup=False,
            quiet=is_quiet(),
            # Without color, rich would still write the codes of bold and dim.
            color_system=None if os.environ.get("NO_COLOR") else "auto",
        )
        # Word wrap on a terminal; whole lines for programs.
        self.console.soft_wrap = not self.console.is_terminal

    def line(self, text: str, *, style: str | None = None) -> None:
        """Prints a line."""
        self.console.print(text, style=style)

    def reply(self, text: str, *, style: str | None = None) -> None:
        """Prints a reply to a command, or an error, also with --quiet."""
        with self.asked_for():
            self.line(text, style=style)

    def thought(self, text: str) -> None:
        """Prints a piece of a model's reasoning on a terminal."""
        if self.console.is_terminal:
            self.console.print(without_controls(text), style="dim", end="", soft_wrap=True)

    @contextmanager
    def asked_for(self) -> Iterator[None]:
        """Ignores --quiet inside the block."""
        self.console.quiet = False
        try:
            yield
        finally:
            self.console.quiet = is_quiet()

    def table(self, rows: Mapping[str, str]) -> None:
        """Prints names and values."""
        table = Table(show_header=False, pad_edge=False)
        table.add_column(style="bold")
        table.add_column()
        for name, value in rows.items():
            table.add_row(name, value)
        self.console.print(table, soft_wrap=False)

    @contextmanager
    def progress(self, stages: Sequence[Stage] = STAGES) -> Iterator[ProgressListener]:
        """Shows the progress of stages; yields the listener to call with a stage and its share."""
        if self.console.is_terminal:
            with self._bar(stages) as listener:
                yield listener
        else:
            yield self._lines()

    @contextmanager
    def counting(self, title: str, what: str) -> Iterator[Counter]:
        """Shows a counter; yields the function to call with the finished items and the total.

        Without a terminal it prints a line at the end, unless the work fails.

        Args:
            title: the work, such as "reading the text".
            what: the items, such as "tokens".
        """
        columns = (
            self._spinner(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:,} of {task.total:,} " + what, markup=False),
            TimeElapsedColumn(),
        )
        started, last = time.perf_counter(), 0
        # Drawn once a second, because timed work may run meanwhile.
        with Progress(
            *columns,
            console=self.console,
            transient=True,
            refresh_per_second=1,
            disable=not self.console.is_terminal,
        ) as bar:
            task = bar.add_task(title, total=0)

            def counter(done: int, total: int) -> None:
                nonlocal last
                last = done
                bar.update(task, completed=done, total=total)

            yield counter
        if not self.console.is_terminal:
            seconds = time.perf_counter() - started
            self.line(f"{title}: {last:,} {what} in {seconds:.1f} s")

    def _lines(self) -> ProgressListener:
        started: dict[str, float] = {}
        told_s = time.perf_counter()

        def listener(stage: Stage, share: float) -> None:
            nonlocal told_s
            now = time.perf_counter()
            if stage.name not in started:
                started[stage.name] = told_s = now
            elif stage.doing and now >= told_s + _LINE_S:
                told_s = now
                self.line(f"{stage.title}: {stage.doing}, {now - started[stage.name]:.0f} s")
            elif share >= 1.0 and not stage.doing and started[stage.name] >= 0:
                seconds = time.perf_counter() - started[stage.name]
                started[stage.name] = -1.0
                self.line(f"{stage.title}: {seconds:.1f} s")

        return listener

    @contextmanager
    def _bar(self, stages: Sequence[Stage]) -> Iterator[ProgressListener]:
        columns = (
            self._spinner(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
        )
        places = {stage.name: place for place, stage in enumerate(stages)}
        with _Bar(*columns, console=self.console) as bar:
            total = sum(stage.weight for stage in stages)
            task = bar.add_task("starting", total=total)
            furthest = 0.0

            def listener(stage: Stage, share: float) -> None:
                nonlocal furthest
                place = places[stage.name]
                before = sum(other.weight for other in stages[:place])
                furthest = max(furthest, before + share * stage.weight)
                bar.does(stage, f"step {place + 1} of {len(stages)}, ")
                bar.update(task, description=stage.title, completed=furthest)

            yield listener

    def _spinner(self) -> SpinnerColumn:
        return SpinnerColumn("line" if self.console.options.ascii_only else "dots")


class _Bar(Progress):
    """A progress bar with a line below it: the step, its time and its current item.

    A separate thread draws it. The line also shows slow imports.
    """

    def __init__(self, *columns: ProgressColumn, console: Console) -> None:
        self._stage = ""
        self._place = self._doing = ""
        self._since = self._told_at = time.perf_counter()
        self._imports = Imports()
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)

    def does(self, stage: Stage, place: str) -> None:
        """Sets the current stage and its number."""
        self._told_at = time.perf_counter()
        if self._stage != stage.name:
            self._since = self._told_at
        self._stage, self._place, self._doing = stage.name, place, stage.doing

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yields the bar, and a line that is cropped to the terminal."""
        yield from super().get_renderables()
        said = self._imports.newest(since=self._told_at) or self._doing
        seconds = f"{time.perf_counter() - self._since:.0f} s"
        text = f"{seconds}: {said}" if said else seconds
        yield Text(f"  {self._place}{text}", no_wrap=True, overflow="crop")


_PROMPT, _MORE = "> ", "... "
_BLOCK = '"""'
_HISTORY_LINES = 1000
# Replaces newlines in the history file, which has one entry per line.
_NEWLINE = "\x1e"


@contextlib.contextmanager
def unechoed() -> Iterator[None]:
    """Turns off the echo of typed keys, which the next prompt reads.

    Ctrl-C still works. Does nothing if standard input is not a terminal.
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
        """Creates the reader.

        Args:
            history: the history file of a terminal; ignored if it cannot be read or written.
        """
        self._history = history
        self._has_history = False

    @property
    def can_edit(self) -> bool:
        """Whether a terminal can edit a draft."""
        return sys.stdin.isatty() and sys.stdout.isatty()

    def read(self, draft: str = "") -> str | None:
        """Returns the next message; None at the end of the input.

        Args:
            draft: initial text of the line on a terminal.

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
            # Makes pasted lines one message; Python turns this off for its prompt.
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
        """Adds a line to the history file at once, so that a killed chat keeps it."""
        import readline

        last = readline.get_current_history_length() - 1
        if last < 0:  # the user's inputrc disables the history
            return
        readline.replace_history_item(last, line.replace("\n", _NEWLINE))
        with contextlib.suppress(OSError):
            self._history.parent.mkdir(parents=True, exist_ok=True)
            self._history.touch(mode=0o600)
            readline.append_history_file(1, self._history)
        readline.replace_history_item(last, line)


_PIECES = re.compile(r"\n| |[^\n ]+")
# All but newlines and tabs.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def text_writer() -> Callable[[str], object]:
    """Returns the writer of an answer's pieces to standard output.

    On a terminal it wraps words and removes control characters; a file or a pipe gets the raw text.
    """
    if not sys.stdout.isatty():
        return _write
    write = _write if os.environ.get("TERM") == "dumb" else WordWrap(_write, _columns).write
    return lambda text: write(without_controls(text))


def without_controls(text: str) -> str:
    """Returns a text without control characters: escapes, bells, carriage returns."""
    return _CONTROLS.sub("", text)


def writer_beside_json(place: Path | None) -> Callable[[str], object]:
    """Returns text_writer(), or a writer that discards the text if JSON goes to standard output.

    Args:
        place: the value of --json.
    """
    return (lambda _: None) if place == OUTPUT else text_writer()


def can_render() -> bool:
    """Whether standard output is a terminal that shows styles and box-drawing characters."""
    encoding = codecs.lookup(sys.stdout.encoding or "ascii").name
    return (
        sys.stdout.isatty()
        and os.environ.get("TERM", "dumb") != "dumb"
        and not os.environ.get("NO_COLOR")
        and encoding == "utf-8"
    )


class WordWrap:
    """Wraps words of a stream. Its pieces may be parts of words; each is shown at once.

    If a word grows beyond the edge, its beginning moves to the next line. The terminal wraps words
    longer than a line, and scripts without spaces.

    Args:
        write: writes text with control sequences.
        columns: returns the terminal's width in characters.
    """

    def __init__(self, write: Callable[[str], object], columns: Callable[[], int]) -> None:
        self._write = write
        self._columns = columns
        self._column = 0
        self._word = ""

    def write(self, text: str) -> None:
        """Writes the next piece of the text, which may end within a word."""
        edge = self._columns() - 1  # terminals differ in the last column
        self._write("".join(self._placed(piece, edge) for piece in _PIECES.findall(text)))

    def _placed(self, piece: str, edge: int) -> str:
        if piece in ("\n", " "):
            self._word = ""
            ends = piece == "\n" or self._column >= edge
            self._column = 0 if ends else self._column + 1
            return "\n" if ends else " "
        width, begun = cell_len(piece), cell_len(self._word)
        self._word += piece
        if self._column + width <= edge or self._column == begun or begun + width > edge:
            self._column += width
            return piece
        self._column = begun + width
        taken_back = f"\x1b[{begun}D\x1b[K" if begun else ""
        return f"{taken_back}\n{self._word}"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
