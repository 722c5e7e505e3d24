"""Writes a timeline as Chrome trace JSON, which Perfetto and chrome://tracing open.

Format: "Trace Event Format" (Google, public document), phases X, i, C, s, f and M. The file appears
whole or not at all. What a timeline is stands in `timeline.py`.
"""

import gzip
import io
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from npu_profiler.errors import TraceError
from npu_profiler.timeline import Timeline, Track

__all__ = ["check_writable", "write_chrome_trace"]

# Level 9 takes eight times as long for 15 % less (2026-11, an eager Llama step).
GZIP_LEVEL = 3


def check_writable(path: Path) -> None:
    """Makes sure that a trace can be written to `path`, before anything is recorded for it.

    Raises:
        TraceError: [output-unwritable] The directory is not there or takes no file, or `path` is
            itself a directory.
    """
    if path.is_dir():
        raise TraceError(
            f"trace output: must be a file; got the directory {path}. Name a file in it",
            "output-unwritable",
        )
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise TraceError(
            f"trace output: its directory must be there and writable; got {path} "
            f"({error.strerror}). Pass another path with -o",
            "output-unwritable",
        ) from None


def write_chrome_trace(timeline: Timeline, path: Path) -> None:
    """Writes `timeline` to `path`, compressed if the name ends in .gz.

    Raises:
        OSError: It cannot be written; an older file at `path` is then still there, unchanged.
    """
    # Not NamedTemporaryFile: its mode is 0600, and a trace is to be shared.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as raw:
            if path.suffix == ".gz":
                with (
                    gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0) as packed,
                    io.TextIOWrapper(packed, encoding="utf-8") as text,
                ):
                    _write(timeline, text)
            else:
                with io.TextIOWrapper(raw, encoding="utf-8") as text:
                    _write(timeline, text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _write(timeline: Timeline, file: IO[str]) -> None:
    head = {
        "displayTimeUnit": "ms",
        # The epoch of every ts. Small numbers keep their nanoseconds in a double.
        "baseTimeNanoseconds": timeline.start_ns,
        "otherData": dict(timeline.facts),
    }
    file.write(json.dumps(_finite(head), default=str)[:-1] + ',\n"traceEvents": [\n')
    separator = ""
    for line in _lines(timeline):
        file.write(separator + line)
        separator = ",\n"
    file.write("\n]}\n")


def _lines(timeline: Timeline) -> Iterator[str]:
    base_ns = timeline.start_ns
    quoted = _Quoted()
    yield from _metadata(timeline.tracks)
    for item in timeline.slices:
        yield (
            f'{{"ph":"X","cat":{quoted[item.category]},"name":{quoted[item.name]},'
            f'"pid":{item.track.pid},"tid":{item.track.tid},"ts":{_us(item.start_ns - base_ns)},'
            f'"dur":{_us(item.duration_ns)}{_args(item.args)}}}'
        )
    for mark in timeline.instants:
        yield (
            f'{{"ph":"i","s":"t","cat":{quoted[mark.category]},"name":{quoted[mark.name]},'
            f'"pid":{mark.track.pid},"tid":{mark.track.tid},"ts":{_us(mark.time_ns - base_ns)}'
            f"{_args(mark.args)}}}"
        )
    for sample in timeline.samples:
        yield (
            f'{{"ph":"C","name":{quoted[sample.counter]},"pid":{sample.track.pid},'
            f'"tid":{sample.track.tid},"ts":{_us(sample.time_ns - base_ns)},'
            f'"args":{{{quoted[sample.series]}:{sample.value:.15g}}}}}'
        )
    for number, flow in enumerate(timeline.flows, start=1):
        common = f'"id":{number},"cat":{quoted[flow.category]},"name":{quoted[flow.name]}'
        source, target = flow.source, flow.target
        yield (
            f'{{"ph":"s",{common},"pid":{source.track.pid},"tid":{source.track.tid},'
            f'"ts":{_us(source.time_ns - base_ns)}}}'
        )
        yield (
            f'{{"ph":"f","bp":"e",{common},"pid":{target.track.pid},"tid":{target.track.tid},'
            f'"ts":{_us(target.time_ns - base_ns)}}}'
        )


def _metadata(tracks: tuple[Track, ...]) -> Iterator[str]:
    seen: set[int] = set()
    for track in tracks:
        if track.pid not in seen:
            seen.add(track.pid)
            yield _meta("process_name", track, {"name": track.process})
            yield _meta("process_sort_index", track, {"sort_index": track.process_order})
        yield _meta("thread_name", track, {"name": track.name})
        yield _meta("thread_sort_index", track, {"sort_index": track.order})


def _meta(name: str, track: Track, args: Mapping[str, Any]) -> str:
    event = {"ph": "M", "name": name, "pid": track.pid, "tid": track.tid, "ts": 0, "args": args}
    return json.dumps(event)


class _Quoted(dict[str, str]):
    """JSON text of names: a trace has many events and few names."""

    def __missing__(self, name: str) -> str:
        text = self[name] = json.dumps(name)
        return text


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _args(args: Mapping[str, Any] | None) -> str:
    if not args:
        return ""
    try:
        text = json.dumps(dict(args), default=str, allow_nan=False)
    except ValueError:  # JSON has no NaN and no infinity
        text = json.dumps(_finite(args), default=str)
    return f',"args":{text}'


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
