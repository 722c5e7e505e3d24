"""Runs a command in a terminal and draws its screens as an animated SVG.

    python tools/terminal_recording.py -o docs/assets/first-answer.svg -- npu-llm generate "..."

The picture plays once and stops at the last screen; with reduced motion, it shows only that screen.
It needs pyte, a terminal emulator (`pip install pyte`).
"""

from __future__ import annotations

import argparse
import html
import os
import pty
import select
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyte

# Pixels; a character of the monospaced fonts that browsers choose is 0.6 of the size wide.
_SIZE, _LINE, _MARGIN = 14, 20, 14
_COLUMN = 0.602 * _SIZE
# Shorter changes are drawn together; longer waits are shortened.
_FRAME_S, _LONGEST_WAIT_S = 0.08, 1.2


@dataclass(frozen=True)
class Frame:
    """The screen from a time on.

    Attributes:
        at: seconds since the start.
        lines: text of each row, without trailing spaces.
    """

    at: float
    lines: tuple[str, ...]


def record(command: Sequence[str], *, columns: int, rows: int) -> list[Frame]:
    """Runs a command in a terminal of a size; returns its screens."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm", COLUMNS=str(columns), LINES=str(rows), NO_COLOR="1")
        os.execvp(command[0], list(command))
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    frames = [Frame(0.0, (f"$ {' '.join(_quoted(word) for word in command)}",))]
    shown, last, clock = 0.6, time.perf_counter(), time.perf_counter()
    while True:
        ready, _, _ = select.select([terminal], [], [], _FRAME_S)
        if ready:
            try:
                stream.feed(os.read(terminal, 65536))
            except OSError:  # the command has ended
                break
        clock = time.perf_counter()
        lines = (frames[0].lines[0], *(line.rstrip() for line in screen.display))
        while lines and not lines[-1]:
            lines = lines[:-1]
        if lines != frames[-1].lines and clock - last >= _FRAME_S:
            shown += min(clock - last, _LONGEST_WAIT_S)
            frames.append(Frame(shown, lines))
            last = clock
    os.waitpid(child, 0)
    lines = (frames[0].lines[0], *(line.rstrip() for line in screen.display))
    while not lines[-1]:
        lines = lines[:-1]
    return [*frames, Frame(shown + _FRAME_S, lines)]


def _quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word


def draw(frames: Sequence[Frame], *, columns: int, title: str) -> str:
    """Returns the frames as an SVG that plays once."""
    rows = max(len(frame.lines) for frame in frames)
    width, height = round(columns * _COLUMN + 2 * _MARGIN), rows * _LINE + 2 * _MARGIN
    said = html.escape(title)
    texts = [text for row in range(rows) for text in _row(frames, row)]
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
aria-label="{said}">
<title>{said}</title>
<style>
text {{
  font: {_SIZE}px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace;
  fill: #e6e6e6; visibility: hidden; white-space: pre;
}}
@keyframes show {{ to {{ visibility: visible }} }}
@keyframes hide {{ to {{ visibility: hidden }} }}
@media (prefers-reduced-motion: reduce) {{
  text {{ animation: none !important }}
  .last {{ visibility: visible }}
}}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#16181d"/>
{chr(10).join(texts)}
</svg>
"""


def _row(frames: Sequence[Frame], row: int) -> Iterator[str]:
    """Returns a text element for each content of a row, with its times."""
    states = [(one.at, one.lines[row] if row < len(one.lines) else "") for one in frames]
    changes = [states[0]]
    for state in states:
        if state[1] != changes[-1][1]:
            changes.append(state)
    for (at, line), following in zip(changes, [*changes[1:], None], strict=True):
        hides = "" if following is None else f",hide 1ms {following[0]:.2f}s forwards"
        last = ' class="last"' if following is None else ""
        if line:
            yield (
                f'<text{last} x="{_MARGIN}" '
                f'y="{_MARGIN + row * _LINE + _SIZE}" '
                f'style="animation:show 1ms {at:.2f}s forwards{hides}">{html.escape(line)}</text>'
            )


def main() -> int:
    """Records the given command; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", metavar="FILE.svg", type=Path, required=True)
    parser.add_argument("--columns", metavar="N", type=int, default=84)
    parser.add_argument("--rows", metavar="N", type=int, default=30)
    parser.add_argument("command", metavar="COMMAND", nargs="+")
    options = parser.parse_args()
    frames = record(options.command, columns=options.columns, rows=options.rows)
    title = f"A terminal: {' '.join(options.command)}"
    options.output.write_text(draw(frames, columns=options.columns, title=title))
    print(f"{options.output}: {len(frames)} screens, {frames[-1].at:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
