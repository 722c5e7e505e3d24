"""Trace file: written in chunks while the program runs, readable at any time.

A growing file has Chrome's array form with its optional closing bracket, so that Perfetto opens
the trace of a killed program. The end converts it to the object form: it overwrites the head and
appends a tail.
"""

import gzip
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from npu_profiler.trace_format.timeline import Piece, Track

__all__ = ["TraceFile", "finite", "format_piece", "format_tracks", "new_flow_ids"]

# Arrows between ops, numbered by the runtime and torch, have lower ids.
_FIRST_FLOW_ID = 1 << 40


def format_tracks(tracks: Iterable[Track]) -> bytes:
    """Formats the names and order of rows, each event after a comma and a line break."""
    return "".join(f",\n{json.dumps(event)}" for event in _metadata(tracks)).encode()


def new_flow_ids() -> Iterator[int]:
    """Returns ids for the arrows of a trace; Perfetto drops arrows with text ids."""
    return itertools.count(_FIRST_FLOW_ID)


def format_piece(piece: Piece, base_ns: int, *, flow_ids: Iterator[int]) -> bytes:
    """Formats events, each after a comma and a line break; times are relative to `base_ns`.

    Ids of arrows are renumbered; see `new_flow_ids`.
    """
    return "".join(f",\n{line}" for line in _lines(piece, base_ns, flow_ids)).encode()


def finite(value: Any) -> Any:
    """Replaces numbers that JSON lacks by text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _lines(piece: Piece, base_ns: int, flow_ids: Iterator[int]) -> Iterator[str]:
    quoted = _Quoted()
    for item in piece.slices:
        # An event that began before the recording is shown from its start.
        start_ns = max(item.start_ns, base_ns)
        yield (
            f'{{"ph":"X","cat":{quoted[item.category]},"name":{quoted[item.name]},'
            f'"pid":{item.track.pid},"tid":{item.track.tid},"ts":{_us(start_ns - base_ns)},'
            f'"dur":{_us(max(item.end_ns - start_ns, 0))}{_args(item.args)}}}'
        )
    for mark in piece.instants:
        yield (
            f'{{"ph":"i","s":"t","cat":{quoted[mark.category]},"name":{quoted[mark.name]},'
            f'"pid":{mark.track.pid},"tid":{mark.track.tid},"ts":{_us(mark.time_ns - base_ns)}'
            f"{_args(mark.args)}}}"
        )
    for sample in piece.samples:
        yield (
            f'{{"ph":"C","name":{quoted[sample.counter]},"pid":{sample.track.pid},'
            f'"tid":{sample.track.tid},"ts":{_us(sample.time_ns - base_ns)},'
            f'"args":{{{quoted[sample.series]}:{sample.value:.15g}}}}}'
        )
    for flow in piece.flows:
        named = f'"cat":{quoted[flow.category]},"name":{quoted[flow.name]}'
        common = f'"id":{next(flow_ids)},{named}'
        source, target = flow.source, flow.target
        yield (
            f'{{"ph":"s",{common},"pid":{source.track.pid},"tid":{source.track.tid},'
            f'"ts":{_us(source.time_ns - base_ns)}}}'
        )
        yield (
            f'{{"ph":"f","bp":"e",{common},"pid":{target.track.pid},"tid":{target.track.tid},'
            f'"ts":{_us(target.time_ns - base_ns)}}}'
        )


def _metadata(tracks: Iterable[Track]) -> Iterator[dict[str, Any]]:
    seen: set[int] = set()
    for track in tracks:
        if track.pid not in seen:
            seen.add(track.pid)
            yield _meta("process_name", track, {"name": track.process})
            yield _meta("process_sort_index", track, {"sort_index": track.process_order})
        yield _meta("thread_name", track, {"name": track.name})
        yield _meta("thread_sort_index", track, {"sort_index": track.order})


def _meta(name: str, track: Track, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": track.pid, "tid": track.tid, "ts": 0, "args": args}


class _Quoted(dict[str, str]):
    """JSON strings of names: a trace has many events and few names."""

    def __missing__(self, name: str) -> str:
        text = self[name] = json.dumps(name)
        return text


def _us(ns: int) -> str:
    ns = max(ns, 0)
    return f"{ns // 1000}.{ns % 1000:03d}"


def _args(args: Mapping[str, Any] | None) -> str:
    if not args:
        return ""
    try:
        text = json.dumps(dict(args), default=str, allow_nan=False)
    except ValueError:  # JSON has no NaN or infinity
        text = json.dumps(finite(args), default=str)
    return f',"args":{text}'


# Level 9 takes eight times as long for 15 % less (2026-11, an eager Llama step).
GZIP_LEVEL = 3

# Both heads have this length, also compressed: the second overwrites the first.
_HEAD_BYTES = 96


class TraceFile:
    """A growing trace file, not thread-safe.

    Args:
        path: path of the file, which replaces an existing one. Compressed if the name ends in .gz,
            each chunk separately.
        start_ns: origin of the events' times, Unix epoch.
        first: the first events, from `format_tracks`.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, *, start_ns: int, first: bytes) -> None:
        self._path = path
        self._start_ns = start_ns
        self._is_packed = path.suffix == ".gz"
        # Unlinked first: a program may still read the old file, or it may be a link.
        path.unlink(missing_ok=True)
        self._file = path.open("wb", buffering=0)
        self._put(self._head(b"["))
        self.write(first.removeprefix(b","))

    def write(self, events: bytes) -> None:
        """Appends events, each after a comma and a line break; OSError if the disk is full."""
        if events:
            self._put(gzip.compress(events, GZIP_LEVEL, mtime=0) if self._is_packed else events)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Completes the file with metadata in JSON types, and closes it.

        Raises OSError if it cannot be written, or was moved.
        """
        with self._file:
            # Writes to a file in a removed directory succeed, so check the path.
            if not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                raise FileNotFoundError(2, "the file was replaced", str(self._path))
            tail = json.dumps(finite(dict(facts)), default=str)
            self.write(f'\n],"otherData":{tail}}}\n'.encode())
            # Small numbers keep their nanoseconds in a double, so times are relative to this.
            head = f'{{"displayTimeUnit":"ms","baseTimeNanoseconds":{self._start_ns},'
            self._file.seek(0)
            self._put(self._head(head.encode(), b'"traceEvents":['))

    def close(self) -> None:
        """Closes the file as it is, which is readable."""
        self._file.close()

    def _head(self, begin: bytes, end: bytes = b"") -> bytes:
        text = begin + b" " * (_HEAD_BYTES - len(begin) - len(end)) + end
        assert len(text) == _HEAD_BYTES
        return gzip.compress(text, 0, mtime=0) if self._is_packed else text

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
