"""Reads the Chrome trace that torch's profiler exports, one event at a time.

The export is the public face of the recording and the smallest: the lists that torch builds in
Python from it take three times the memory.
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
    """An event of torch's, and the system clock right before and after it; Unix epoch, in ns."""

    before_ns: int
    after_ns: int
    torch_ns: int


@dataclass(frozen=True, slots=True)
class ClockAlignment:
    """What to subtract from torch's times, and how wrong that may be."""

    offset_ns: int  # Torch's clock minus the system clock; 0 when the marks do not contradict that
    error_ns: int | None  # the true offset is at most this far away; None when there were no marks
    marks: int  # how many marks that rests on


def align(marks: Sequence[ClockMark]) -> ClockAlignment:
    """Finds the offset that all marks allow.

    A mark says: the offset lies within [torch - after, torch - before]. The narrowest statement is
    the intersection over all marks; when the clocks drifted there is none, and the median of the
    middles is taken with the largest deviation as its error.
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

# What kineto writes with every event and nobody reads: numbers of its own bookkeeping.
BOOKKEEPING = frozenset({"External id", "Record function id", "Ev Idx", "Python id"})

# An ordinary op exactly as kineto lays it out, with bookkeeping at most: nine of ten events, read
# four times as fast as by the JSON decoder (2026-11). Whatever looks different goes to the decoder.
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

    category: str  # Kineto's: "cpu_op", "user_annotation", "python_function"
    name: str
    thread_id: int  # the OS id of the thread
    start_ns: int
    duration_ns: int
    args: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class TorchFlow:
    """From a forward op to the backward function that belongs to it."""

    source_thread_id: int
    source_ns: int
    target_thread_id: int
    target_ns: int


@dataclass(frozen=True, slots=True)
class KinetoFile:
    """All that one window of torch's profiler recorded."""

    slices: list[TorchSlice]
    flows: list[TorchFlow]
    thread_names: dict[int, str]  # the OS's name of each thread, by its OS id
    unreadable: int  # how many events the file holds that are no JSON


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
    """Reads up to the events; returns what was read past their bracket, and the epoch in ns."""
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
    """Yields each event, and None for what is not valid JSON (kineto's escapes are incomplete)."""
    # Times have more digits than a float keeps: they stay text until they are nanoseconds.
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
                # Cut off at the chunk's end, or broken. An event that follows tells them apart.
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
    """Where the next event begins; the text's length if that is not there; None after the last."""
    while position < len(text) and text[position] in " \t\r\n,":
        position += 1
    if position < len(text) and text[position] == "]":
        return None
    return position


def _microseconds_to_ns(value: str | int) -> int:
    """Exact, as the text has three decimals at most."""
    if isinstance(value, int):
        return value * 1000
    whole, _, fraction = value.partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])
