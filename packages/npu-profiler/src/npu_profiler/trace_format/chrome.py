"""Events as Chrome trace JSON, which Perfetto and chrome://tracing open.

Format: "Trace Event Format" (Google, public document), phases X, i, C, s, f and M.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from npu_profiler.trace_format.timeline import Piece, Track

__all__ = ["finite", "format_piece", "format_tracks", "new_flow_ids"]

# Arrows between ops, which the runtime and torch number themselves, have lower ones.
_FIRST_FLOW_ID = 1 << 40


def format_tracks(tracks: Iterable[Track]) -> bytes:
    """The names and places of rows, each event after a comma and a line break."""
    return "".join(f",\n{json.dumps(event)}" for event in _metadata(tracks)).encode()


def new_flow_ids() -> Iterator[int]:
    """Numbers for the arrows of one trace; Perfetto drops an arrow whose id is a text."""
    return itertools.count(_FIRST_FLOW_ID)


def format_piece(piece: Piece, base_ns: int, *, flow_ids: Iterator[int]) -> bytes:
    """What happened, each event after a comma and a line break.

    Args:
        piece: slices, marks, samples and arrows.
        base_ns: what times count from, Unix epoch.
        flow_ids: numbers for arrows, each a new one in its trace; see `new_flow_ids`.
    """
    return "".join(f",\n{line}" for line in _lines(piece, base_ns, flow_ids)).encode()


def finite(value: Any) -> Any:
    """The same with text for numbers that JSON does not have."""
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
        # What began before the recording shows from there on.
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
    """JSON text of names: a trace has many events and few names."""

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
    except ValueError:  # JSON has no NaN and no infinity
        text = json.dumps(finite(args), default=str)
    return f',"args":{text}'
