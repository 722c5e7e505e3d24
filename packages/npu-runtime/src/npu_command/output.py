"""Output of commands: text or JSON results, columns, HTML pages and --quiet.

The result goes to standard output: as text, or as JSON with --json. With --json FILE the text stays
on standard output, and JSON goes to the file. Everything else goes to standard error, unless
--quiet; on a terminal, this includes a line about slow imports, such as torch's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from npu_command.errors import FileAccessError
from npu_command.whole_files import write_text

__all__ = [
    "OUTPUT",
    "Imports",
    "add_json",
    "aligned",
    "be_quiet",
    "check_writable",
    "give_answer",
    "import_notice",
    "is_quiet",
    "render_page",
    "terminal_width",
    "with_json_file",
]

OUTPUT = Path("-")  # the value of --json without FILE

_JSON = "--json"
_SUFFIX = ".json"
_quiet = False


def be_quiet() -> None:
    """Restricts standard error to errors in this process."""
    global _quiet  # one per process, as standard error is
    _quiet = True


def is_quiet() -> bool:
    """Whether to print only errors and the answer."""
    return _quiet


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds --json [FILE], which `give_answer` reads; the file is checked before the work."""
    parser.add_argument(
        _JSON,
        nargs="?",
        const=OUTPUT,
        # An action has a separate option; if it is not given, the command's applies.
        default=argparse.SUPPRESS if len(parser.prog.split()) > 2 else None,
        type=Path,
        action=_Json,
        metavar="FILE",
        help="print JSON instead of text; with FILE, a name ending in .json, write it there too",
    )


def give_answer(
    place: Path | None, value: object, show: Callable[[], object], *, is_lines: bool = False
) -> None:
    """Writes a command's answer as --json requests, or calls `show` to print it as text.

    Paths become text, and numbers that JSON lacks become null; with `is_lines`, each list item is a
    line. Raises [output-file] if the file cannot be written.
    """
    if place != OUTPUT:
        show()
        if place is None:
            return
    plain = _plain(value)
    documents, indent = (plain, None) if is_lines else ([plain], 2)
    texts = [json.dumps(one, indent=indent, default=str, allow_nan=False) for one in documents]
    text = "".join(f"{one}\n" for one in texts)
    if place == OUTPUT:
        print(text, end="")
        return
    assert place is not None
    try:
        write_text(place, text)
    except OSError as failure:
        raise _unwritable(place, failure.strerror or str(failure)) from failure


def check_writable(place: Path) -> None:
    """Raises [output-file], before the work, if the result cannot be written."""
    try:
        is_folder, has_place = place.is_dir(), place.absolute().parent.is_dir()
    except (OSError, ValueError) as failure:
        raise _unwritable(place, str(failure)) from failure
    if is_folder or not has_place:
        raise _unwritable(place, "a folder" if is_folder else "no such folder")


def with_json_file(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Joins `--json FILE` into one word, and expands a bare `--json`.

    The word after --json may be another argument, such as a script or a model. It is a file if its
    name ends in .json and all required arguments are present without it, or if the command takes no
    arguments. `--json=FILE` takes any name.
    """
    taken = [action for action in parser._actions if not action.option_strings]
    needed = sum(action.nargs in (None, "+") for action in taken)
    given = [place for place, is_option in _arguments(parser, words) if not is_option]
    if any(action.nargs == argparse.REMAINDER for action in taken) and given:
        own, rest = list(words[: given[0] + 1]), words[given[0] + 1 :]  # a script's arguments
    else:
        own, rest = list(words), ()
    for place in range(len(own) - 2, -1, -1):
        following = own[place + 1]
        if own[place] != _JSON or following.startswith("-"):
            continue
        is_file = not taken or (following.endswith(_SUFFIX) and len(given) > needed)
        own[place : place + 2] = (
            [f"{_JSON}={following}"] if is_file else [f"{_JSON}={OUTPUT}", following]
        )
    return [*own, *rest]


def _arguments(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[tuple[int, bool]]:
    """Returns the positions of words, and whether each belongs to an option."""
    found: list[tuple[int, bool]] = []
    is_value = False
    for place, word in enumerate(words):
        is_option = word.startswith("-") and word != "-"
        found.append((place, is_option or is_value))
        action = parser._option_string_actions.get(word) if is_option else None
        is_value = action is not None and action.nargs is None
    return found


class _Json(argparse.Action):
    """Rejects a file that cannot be written, before the work."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        options: argparse.Namespace,
        value: Any,
        word: str | None = None,
    ) -> None:
        if value != OUTPUT:
            check_writable(value)
        setattr(options, self.dest, value)


def _unwritable(place: Path, received: str) -> FileAccessError:
    return FileAccessError(
        f"`{place}` must be a file in a folder that exists, got {received}. Name another, or "
        "create it.",
        code="output-file",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


_LEAST = 24  # a narrower last column is not wrapped: it would have one word per line


def terminal_width() -> int | None:
    """Returns the terminal's width in characters; None if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def aligned(
    rows: Sequence[Sequence[str]], *, indent: int = 0, width: int | None = None
) -> list[str]:
    """Returns the lines of rows of equal length, with the columns two spaces apart.

    The last column wraps between words if a width is given.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for *cells, last in rows:
        columns = [cell.ljust(wide) for cell, wide in zip(cells, widths, strict=False)]
        head = " " * indent + "".join(f"{column}  " for column in columns)
        if width is None or width - len(head) < _LEAST:
            lines.append(f"{head}{last}".rstrip())
            continue
        # Paths and commands are copied from here: never break them.
        parts = textwrap.wrap(
            last, width - len(head), break_long_words=False, break_on_hyphens=False
        )
        lines.append(f"{head}{parts[0] if parts else ''}".rstrip())
        lines += [" " * len(head) + part for part in parts[1:]]
    return lines


def render_page(template: Path, **values: object) -> str:
    """Returns a template of jinja2 with these values, escaped; it may include its neighbours.

    A missing value is an error.
    """
    # Importing jinja2 takes 50 ms, and most commands write no page.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template.name).render(values)


_PATIENCE_S, _PERIOD_S = 0.5, 0.2
_SHOWN_S = 1.0  # seconds that the last import is shown
_ERASE = "\r\x1b[K"


class Imports:
    """Watches the imported modules."""

    def __init__(self) -> None:
        """Starts from the modules imported now."""
        self._count = len(sys.modules)
        self._seen_at = time.perf_counter()

    def newest(self, *, since: float = 0.0) -> str:
        """Returns the latest import, if it was within a second; "" for none."""
        names, now = list(sys.modules), time.perf_counter()
        if len(names) > self._count:
            self._count, self._seen_at = len(names), now
        elif self._seen_at <= since or now - self._seen_at > _SHOWN_S:
            return ""
        return f"importing {names[-1]}, {len(names):,} modules"


@contextmanager
def import_notice() -> Iterator[None]:
    """Shows a line about imports in the body on standard error, if that is a terminal.

    It appears after half a second, and disappears at the end.
    """
    if is_quiet() or not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield
        return
    is_over = threading.Event()
    thread = threading.Thread(target=_tell, args=(is_over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _tell(is_over: threading.Event) -> None:
    imports, started = Imports(), time.perf_counter()
    if is_over.wait(_PATIENCE_S):
        return
    try:
        while True:
            seconds = time.perf_counter() - started
            text = f"{seconds:.0f} s: {imports.newest() or 'starting'}"
            room = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"{_ERASE}{text[:room]}")
            sys.stderr.flush()
            if is_over.wait(_PERIOD_S):
                break
        sys.stderr.write(_ERASE)
        sys.stderr.flush()
    except OSError:  # the terminal is closed; the command will fail by itself
        return
