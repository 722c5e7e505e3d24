"""What the page draws of a trace: slices by row and depth, with short ones gathered where too many.

Times are whole nanoseconds; starts are written as differences, which are short numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from npu_profiler.reading import Counter, Trace, Track

__all__ = ["DEFAULT_LIMIT", "Timeline", "choose"]

DEFAULT_LIMIT = 200_000
_MOST_DETAILS = 20_000
_MOST_SAMPLES = 4_000
_MOST_ARROWS = 20_000
_MOST_MARKS = 20_000
_DETAILED = ("program", "layer", "prefill", "decode", "compile", "copy")
_GATHERED = -1


@dataclass(frozen=True, slots=True)
class Timeline:
    """What is drawn.

    Attributes:
        document: for the page, as JSON takes it.
        slices: how many slices the trace has.
        drawn: how many boxes are drawn for them.
        cell_ns: of slices below this the neighbours are gathered in boxes as wide; 0 for none.
        left_out: what is not drawn at all: "30,000 arrows", for people.
    """

    document: dict[str, Any]
    slices: int
    drawn: int
    cell_ns: int
    left_out: tuple[str, ...]


@dataclass(slots=True)
class _Boxes:
    """Boxes of one depth of one row, by their start.

    Attributes:
        starts: of each box.
        durations: of each box.
        names: of each box in the track's words, or `_GATHERED`.
        counts: how many slices a gathered box stands for.
        slices: the slice that each other box stands for.
    """

    starts: array[int]
    durations: array[int]
    names: array[int]
    counts: dict[int, int]
    slices: dict[int, int]

    def gather(self, end_ns: int) -> None:
        """Makes the latest box stand for one slice more."""
        last = len(self.starts) - 1
        self.durations[last] = max(self.durations[last], end_ns - self.starts[last])
        self.counts[last] = self.counts.get(last, 1) + 1
        self.names[last] = _GATHERED
        self.slices.pop(last, None)


def choose(trace: Trace, *, limit: int = DEFAULT_LIMIT) -> Timeline:
    """Chooses what is drawn.

    Args:
        trace: the trace.
        limit: how many boxes at most, about. When the trace has more slices, short neighbours
            become one box that says how many it stands for.
    """
    tracks = [track for track in trace.tracks if len(track)]
    total = sum(map(len, tracks))
    cell_ns = 0
    rows = [_levels(track, 0) for track in tracks]
    if total > limit:
        cell_ns = _cell(trace, sum(map(len, rows)), limit)
        rows = [_levels(track, cell_ns) for track in tracks]
    left_out: list[str] = []
    names = _Names()
    document = {
        "begin": trace.start_ns,
        "end": max(trace.end_ns, trace.start_ns + 1),
        "cell": cell_ns,
        "tracks": [
            _track(track, levels, names) for track, levels in zip(tracks, rows, strict=True)
        ],
        "details": _details(tracks, rows, left_out),
        "marks": _marks(trace, tracks, names, left_out),
        "arrows": _arrows(trace, tracks, left_out),
        "counters": [_counter(counter) for counter in trace.counters if counter.times],
        "names": names.words,
    }
    return Timeline(document, total, _box_count(rows), cell_ns, tuple(left_out))


class _Names:
    """Words of the page by number."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, word: str) -> int:
        number = self._numbers.setdefault(word, len(self.words))
        if number == len(self.words):
            self.words.append(word)
        return number


def _cell(trace: Trace, levels: int, limit: int) -> int:
    """How wide cells are, so that half of the boxes fill all of them at all depths of all rows.

    The other half is for slices that are longer than a cell: at one depth they do not overlap.
    """
    duration = max(trace.end_ns - trace.start_ns, 1)
    return -(-duration * levels // max(limit // 2, 1))


def _levels(track: Track, cell_ns: int) -> list[_Boxes]:
    """The boxes of a row; slices below a cell's width that begin in one cell are one box."""
    levels: list[_Boxes] = []
    cells: list[int] = []  # by depth, the cell of the latest box; -1 when that is a long slice
    depths = array("i", bytes(4 * len(track)))
    columns = zip(track.starts, track.durations, track.name_numbers, track.parents, strict=True)
    for index, (start, duration, name, parent) in enumerate(columns):
        depth = depths[parent] + 1 if parent >= 0 else 0
        depths[index] = depth
        while depth >= len(levels):
            levels.append(_Boxes(array("q"), array("q"), array("i"), {}, {}))
            cells.append(-1)
        boxes = levels[depth]
        cell = start // cell_ns if duration < cell_ns else -1
        if cell >= 0 and cell == cells[depth]:
            boxes.gather(start + duration)
            continue
        cells[depth] = cell
        boxes.slices[len(boxes.starts)] = index
        boxes.starts.append(start)
        boxes.durations.append(duration)
        boxes.names.append(name)
    return levels


def _box_count(rows: Iterable[Sequence[_Boxes]]) -> int:
    return sum(len(boxes.starts) for levels in rows for boxes in levels)


def _track(track: Track, levels: Sequence[_Boxes], names: _Names) -> dict[str, Any]:
    words = track.names.words
    return {
        "process": track.process,
        "name": track.name,
        "levels": [
            {
                "s": list(_differences(boxes.starts)),
                "d": list(boxes.durations),
                "n": [names.number(words[name]) if name >= 0 else name for name in boxes.names],
                "c": boxes.counts,
            }
            for boxes in levels
        ],
    }


def _differences(values: Sequence[int]) -> Iterator[int]:
    if values:
        yield values[0]
    for one, following in pairwise(values):
        yield following - one


def _details(
    tracks: Sequence[Track], rows: Sequence[Sequence[_Boxes]], left_out: list[str]
) -> dict[str, str]:
    """What programs, layers and steps say of themselves, by "track/depth/box"."""
    found: dict[str, str] = {}
    missing = 0
    for row, (track, levels) in enumerate(zip(tracks, rows, strict=True)):
        wanted = {track.names.find(category) for category in _DETAILED}
        for depth, boxes in enumerate(levels):
            for box, index in boxes.slices.items():
                args = track.args_by_slice.get(index)
                if args is None or track.category_numbers[index] not in wanted:
                    continue
                if len(found) == _MOST_DETAILS:
                    missing += 1
                    continue
                pairs = zip(*args, strict=True)
                found[f"{row}/{depth}/{box}"] = "\n".join(
                    f"{key}: {value}" for key, value in pairs if value not in ("", None)
                )
    if missing:
        left_out.append(f"details of {missing:,} slices")
    return found


def _marks(
    trace: Trace, tracks: Sequence[Track], names: _Names, left_out: list[str]
) -> list[tuple[int, int, int]]:
    rows = {id(track): row for row, track in enumerate(tracks)}
    shown = [mark for mark in trace.instants if id(mark.track) in rows]
    if len(shown) > _MOST_MARKS:
        left_out.append(f"{len(shown) - _MOST_MARKS:,} marks")
    return [
        (rows[id(mark.track)], mark.time_ns, names.number(f"{mark.category} {mark.name}"))
        for mark in shown[:_MOST_MARKS]
    ]


def _arrows(
    trace: Trace, tracks: Sequence[Track], left_out: list[str]
) -> list[tuple[int, int, int, int]]:
    rows = {id(track): row for row, track in enumerate(tracks)}
    arrows: list[tuple[int, int, int, int]] = []
    missing = 0
    for flow in trace.flows.get("launch", ()):
        source, target = rows.get(id(flow.source)), rows.get(id(flow.target))
        if source is None or target is None:
            continue
        if len(arrows) < _MOST_ARROWS:
            arrows.append((source, flow.source_ns, target, flow.target_ns))
        else:
            missing += 1
    if missing:
        left_out.append(f"{missing:,} arrows")
    return arrows


def _counter(counter: Counter) -> dict[str, Any]:
    """A curve; of too many values the highest of each group, so that peaks stay."""
    times, values = list(counter.times), list(counter.values)
    step = -(-len(times) // _MOST_SAMPLES)
    if step > 1:
        groups = range(0, len(times), step)
        values = [max(values[at : at + step]) for at in groups]
        times = [times[at] for at in groups]
    return {
        "process": counter.process,
        "name": f"{counter.name} {counter.series}".strip(),
        "t": list(_differences(times)),
        "v": values,
    }
