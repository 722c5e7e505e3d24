"""Ops: their calls, host time, and the device time of the programs they launched."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from npu_profiler.queries.spans import Launch
from npu_profiler.reading import Trace, Track
from npu_profiler.recording.summary import is_op

__all__ = ["OpRow", "fallback_totals", "is_op_number", "op_rows"]


@dataclass(frozen=True, slots=True)
class OpRow:
    """All calls of one op."""

    name: str
    calls: int
    self_ns: int  # host time without the ops that it called
    total_ns: int  # host time with them; a recursive call is counted once
    device_ns: int  # time of the programs that were launched within it
    fallbacks: int  # number of calls computed by a CPU kernel


def op_rows(trace: Trace, launched: Iterable[Launch]) -> list[OpRow]:
    """Ops by own host time, the longest first."""
    calls: Counter[str] = Counter()
    self_ns: Counter[str] = Counter()
    total_ns: Counter[str] = Counter()
    for track in trace.host_tracks:
        _add_track(track, calls, self_ns, total_ns)
    device_ns: Counter[str] = Counter()
    for launch in launched:
        names = {around.name for around in launch.causes() if around.category == "cpu_op"}
        for name in names:
            device_ns[name] += launch.program.duration_ns
    fallbacks = _fallbacks_by_op(trace)
    rows = [
        OpRow(name, calls[name], self_ns[name], total_ns[name], device_ns[name], fallbacks[name])
        for name in calls
    ]
    return sorted(rows, key=lambda row: (-row.self_ns, row.name))


def is_op_number(track: Track) -> list[bool]:
    """Returns, for each word number, whether the word is an op's name."""
    return [is_op(word) for word in track.names.words]


def fallback_totals(trace: Trace) -> dict[str, tuple[int, int]]:
    """Returns each op's fallback count and their host time in nanoseconds, longest first."""
    count: Counter[str] = Counter()
    spent_ns: Counter[str] = Counter()
    for mark in trace.instants:
        if mark.category == "fallback":
            count[mark.name] += 1
            spent_ns[mark.name] += round(float(mark.args.get("duration_us", 0)) * 1000)
    return {
        name: (count[name], spent_ns[name])
        for name in sorted(count, key=lambda name: (-spent_ns[name], name))
    }


def _add_track(
    track: Track, calls: Counter[str], self_ns: Counter[str], total_ns: Counter[str]
) -> None:
    category = track.names.find("cpu_op")
    is_op_name = is_op_number(track)
    words = track.names.words
    own: Counter[int] = Counter()
    whole: Counter[int] = Counter()
    count: Counter[int] = Counter()
    names, categories = track.name_numbers, track.category_numbers
    stack: list[tuple[int, int]] = []  # end and name of the ops that are open
    for index, (start, duration) in enumerate(zip(track.starts, track.durations, strict=True)):
        name = names[index]
        if categories[index] != category or not is_op_name[name]:
            continue
        end = start + duration
        while stack and stack[-1][0] <= start:
            stack.pop()
        count[name] += 1
        own[name] += duration
        if not any(other == name for _, other in stack):
            whole[name] += duration
        if stack:
            # By clock rounding, an op may seem to outlive its caller.
            own[stack[-1][1]] -= min(end, stack[-1][0]) - start
        stack.append((end, name))
    for name, number in count.items():
        calls[words[name]] += number
        self_ns[words[name]] += own[name]
        total_ns[words[name]] += whole[name]


def _fallbacks_by_op(trace: Trace) -> Counter[str]:
    found: Counter[str] = Counter()
    for mark in trace.instants:
        if mark.category != "fallback":
            continue
        around = mark.track.at(mark.time_ns)
        while around is not None and not (around.category == "cpu_op" and is_op(around.name)):
            around = around.parent
        found[mark.name if around is None else around.name] += 1
    return found
