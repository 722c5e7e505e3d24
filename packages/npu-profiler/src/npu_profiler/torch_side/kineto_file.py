"""Reads the Chrome trace of torch's profiler, one event at a time.

The export is the public form of the recording and the smallest: torch's Python lists of events take
three times the memory.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

__all__ = [
    "ClockAlignment",
    "ClockMark",
    "KinetoFile",
    "TorchFlow",
    "TorchSlice",
    "align",
    "read_kineto_file",
]


@dataclass(frozen=True, slots=True)
class ClockMark:
    """An event of torch's, with the system clock right before and after it; Unix epoch, in ns."""

    before_ns: int
    after_ns: int
    torch_ns: int


@dataclass(frozen=True, slots=True)
class ClockAlignment:
    """The offset to subtract from torch's times, and its error bound."""

    offset_ns: int  # Torch's clock minus the system clock; 0 if the marks allow it
    error_ns: int | None  # bound of the offset's error; None without marks
    marks: int  # number of marks used


def align(marks: Sequence[ClockMark]) -> ClockAlignment:
    """Computes the offset that all marks allow.

    A mark bounds the offset to [torch - after, torch - before]. The result is the intersection over
    all marks. If the clocks drifted it is empty, and the result is the median of the midpoints with
    the largest deviation as its error.
    """
    if not marks:
        return ClockAlignment(0, None, 0)
    low = max(mark.torch_ns - mark.after_ns for mark in marks)
    high = min(mark.torch_ns - mark.before_ns for mark in marks)
    if low <= high:
        if low <= 0 <= high:
            return ClockAlignment(0, max(-low, high), len(marks))
        middle = (low + high) // 2
        return ClockAlignment(middle, high - middle, len(marks))
    middles = sorted(mark.torch_ns - (mark.before_ns + mark.after_ns) // 2 for mark in marks)
    median = middles[len(middles) // 2]
    error = max(
        max(
            abs(mark.torch_ns - mark.before_ns - median),
            abs(mark.torch_ns - mark.after_ns - median),
        )
        for mark in marks
    )
    return ClockAlignment(median, error, len(marks))


CHUNK_CHARS = 1 << 20

# Bookkeeping that kineto writes with every event and no reader needs.
BOOKKEEPING = frozenset({"External id", "Record function id", "Ev Idx", "Python id"})

# The layout of an ordinary op in kineto's files, nine of ten events: this is four times as fast as
# the JSON decoder (2026-11), which handles the other events.
_PLAIN_OP = re.compile(
    r"""\{\s+"ph":\ "X",\s+"cat":\ "(\w+)",\s+"name":\ "([^"\\]*)",\s+"pid":\ \d+,\s+"tid":\ (\d+),
    \s+"ts":\ (\d+)\.(\d{3}),\s+"dur":\ (\d+)\.(\d{3})\s*,\s+"args":\ \{
    \s*"External\ id":\ \d+,"Record\ function\ id":\ \d+,\ "Ev\ Idx":\ \d+\s*\}\s*\}""",
    re.VERBOSE,
)

_EPOCH = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d+)')
_THREAD_NAME = re.compile(r"^thread \d+ \((.*)\)$")


@dataclass(frozen=True, slots=True)
class TorchSlice:
    """An op, an annotation or a Python call, on the torch clock (Unix epoch ns)."""

    category: str  # kineto's category: "cpu_op", "user_annotation", "python_function"
    name: str
    thread_id: int  # OS id of the thread
    start_ns: int
    duration_ns: int
    args: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class TorchFlow:
    """An arrow from a forward op to its backward function."""

    source_thread_id: int
    source_ns: int
    target_thread_id: int
    target_ns: int


@dataclass(frozen=True, slots=True)
class KinetoFile:
    """The recording of one window of torch's profiler."""

    slices: list[TorchSlice]
    flows: list[TorchFlow]
    thread_names: dict[int, str]  # OS name of each thread, by OS id
    unreadable: int  # number of events that are not valid JSON


def read_kineto_file(path: Path) -> KinetoFile:
    """Reads an export of torch's profiler; OSError, or ValueError without a list of events."""
    slices: list[TorchSlice] = []
    sources: dict[int, tuple[int, int]] = {}
    targets: dict[int, tuple[int, int]] = {}
    names: dict[int, str] = {}
    unreadable = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        head, base_ns = _read_head(file)
        for event in _iterate_events(file, head):
            if event is None:
                unreadable += 1
                continue
            if isinstance(event, re.Match):
                slices.append(_plain_slice(event, base_ns))
                continue
            phase = event.get("ph")
            if phase == "X" and isinstance(event.get("tid"), int):
                slices.append(_slice(event, base_ns))
            elif phase in ("s", "f") and event.get("cat") == "fwdbwd":
                end = (event["tid"], base_ns + _microseconds_to_ns(event["ts"]))
                (sources if phase == "s" else targets)[event["id"]] = end
            elif phase == "M" and event.get("name") == "thread_name":
                match = _THREAD_NAME.match(event["args"]["name"])
                names[event["tid"]] = match.group(1) if match else event["args"]["name"]
    flows = [
        TorchFlow(*source, *targets[number])
        for number, source in sources.items()
        if number in targets
    ]
    return KinetoFile(slices, flows, names, unreadable)


def _plain_slice(match: re.Match[str], base_ns: int) -> TorchSlice:
    category, name, thread_id, start_us, start_ns, duration_us, duration_ns = match.groups()
    return TorchSlice(
        sys.intern(category),
        sys.intern(name),
        int(thread_id),
        base_ns + int(start_us + start_ns),
        int(duration_us + duration_ns),
        None,
    )


def _slice(event: dict[str, Any], base_ns: int) -> TorchSlice:
    args = event.get("args", {})
    kept = {key: value for key, value in args.items() if key not in BOOKKEEPING}
    if kept.get("Sequence number") is not None and not kept.get("Fwd thread id"):
        del kept["Fwd thread id"]
    return TorchSlice(
        sys.intern(event.get("cat", "")),
        sys.intern(event["name"]),
        event["tid"],
        base_ns + _microseconds_to_ns(event["ts"]),
        _microseconds_to_ns(event["dur"]),
        kept or None,
    )


def _read_head(file: IO[str]) -> tuple[str, int]:
    """Reads the header; returns the text after the events' opening bracket, and the epoch in ns."""
    text = ""
    while True:
        chunk = file.read(CHUNK_CHARS)
        text += chunk
        found = text.find('"traceEvents"')
        bracket = text.find("[", found) if found >= 0 else -1
        if bracket >= 0:
            epoch = _EPOCH.search(text, 0, bracket)
            return text[bracket + 1 :], int(epoch.group(1)) if epoch else 0
        if not chunk:
            raise ValueError(f"{file.name}: torch's profiler wrote no traceEvents")


def _iterate_events(file: IO[str], text: str) -> Iterator[dict[str, Any] | re.Match[str] | None]:
    """Yields each event; None for invalid JSON (kineto's escapes are incomplete)."""
    # Times have more digits than a float: they remain text until converted to nanoseconds.
    decoder = json.JSONDecoder(parse_float=str, strict=False)
    position = 0
    at_end = False
    while True:
        start = _next_object(text, position)
        if start is not None and start < len(text):
            plain = _PLAIN_OP.match(text, start)
            if plain is not None:
                position = plain.end()
                yield plain
                continue
            try:
                event, position = decoder.raw_decode(text, start)
            except json.JSONDecodeError:
                # Cut off at the chunk's end, or invalid; invalid if another event follows.
                following = text.find("\n  {", start + 1)
                if following >= 0:
                    position = following
                    yield None
                    continue
            else:
                yield event
                continue
        elif start is None:
            return
        if at_end:
            return
        chunk = file.read(CHUNK_CHARS)
        at_end = not chunk
        text = text[start:] + chunk
        position = 0


def _next_object(text: str, position: int) -> int | None:
    """Returns the offset of the next event; the text's length if incomplete, None at the end."""
    while position < len(text) and text[position] in " \t\r\n,":
        position += 1
    if position < len(text) and text[position] == "]":
        return None
    return position


def _microseconds_to_ns(value: str | int) -> int:
    """Exact, because the text has at most three decimals."""
    if isinstance(value, int):
        return value * 1000
    whole, _, fraction = value.partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])
