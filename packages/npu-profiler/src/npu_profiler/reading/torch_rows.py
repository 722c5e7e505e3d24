"""Gives a trace that torch's profiler exported the names that a trace of our own has.

`npu_profiler.profile` adds layers to such a trace, on a row of their own. What the events are
called there is decided in packages/npu-runtime/csrc/kineto/activities.cpp.
"""

from array import array

from npu_profiler.reading.model import Flows, Instant, Track

__all__ = ["adopt_torch_rows"]

_CATEGORIES = {"kernel": "program", "gpu_memcpy": "copy"}
_LAUNCHES = "ac2g"
_FALLBACK = "npu::fallback "


def adopt_torch_rows(tracks: list[Track], flows: dict[str, Flows], instants: list[Instant]) -> None:
    """Renames device events and arrows, marks fallbacks, and puts layers on their programs' rows.

    Args:
        tracks: rows, not yet sorted; those of other traces stay as they are.
        flows: arrows by name.
        instants: marks.
    """
    for track in tracks:
        instants += _fallbacks(track)
    if _LAUNCHES in flows and "launch" not in flows:
        flows["launch"] = flows.pop(_LAUNCHES)
    on_devices = [track for track in tracks if track.device is not None]
    renamed = [track for track in on_devices if _rename(track)]
    for track in on_devices:
        if track not in renamed and track.name.startswith("layers"):
            for target in renamed:
                if target.device == track.device:
                    _move_layers(track, target)


def _fallbacks(track: Track) -> list[Instant]:
    words = track.names.words
    numbers = {number for number, word in enumerate(words) if word.startswith(_FALLBACK)}
    if not numbers:
        return []
    return [
        Instant(
            track,
            "fallback",
            words[name].removeprefix(_FALLBACK),
            track.starts[index],
            {"duration_us": track.durations[index] / 1000},
        )
        for index, name in enumerate(track.name_numbers)
        if name in numbers
    ]


def _rename(track: Track) -> bool:
    numbers = {
        track.names.find(torch_name): track.names.number(name)
        for torch_name, name in _CATEGORIES.items()
    }
    if not any(number in numbers for number in track.category_numbers):
        return False
    track.category_numbers = array(
        "i", (numbers.get(number, number) for number in track.category_numbers)
    )
    return True


def _move_layers(source: Track, target: Track) -> None:
    """Moves the layers that lie within programs of another row to that row."""
    program = target.names.find("program")
    spans = sorted(
        (start, start + duration)
        for start, duration, category in zip(
            target.starts, target.durations, target.category_numbers, strict=True
        )
        if category == program
    )
    kept: list[int] = []
    order = sorted(range(len(source)), key=source.starts.__getitem__)
    at = 0
    for index in order:
        start = source.starts[index]
        while at < len(spans) and spans[at][1] <= start:
            at += 1
        if at < len(spans) and spans[at][0] <= start:
            _copy(source, index, target)
        else:
            kept.append(index)
    _keep(source, kept)


def _copy(source: Track, index: int, target: Track) -> None:
    if index in source.args_by_slice:
        target.args_by_slice[len(target)] = source.args_by_slice[index]
    target.starts.append(source.starts[index])
    target.durations.append(source.durations[index])
    target.name_numbers.append(source.name_numbers[index])
    target.category_numbers.append(source.category_numbers[index])


def _keep(track: Track, kept: list[int]) -> None:
    old = track.args_by_slice
    track.args_by_slice = {place: old[index] for place, index in enumerate(kept) if index in old}
    track.starts = array("q", map(track.starts.__getitem__, kept))
    track.durations = array("q", map(track.durations.__getitem__, kept))
    track.name_numbers = array("i", map(track.name_numbers.__getitem__, kept))
    track.category_numbers = array("i", map(track.category_numbers.__getitem__, kept))
