"""Finds what launched each device program and draws the arrow from there.

A program has no parent of its own in the recording: torch knows the ops, the runtime knows the
programs. They meet by thread and time: the launcher is the innermost slice that was open on the
thread that asked for the program, when it asked. Rows and clocks are settled before, in
`assemble.py`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from npu_profiler.timeline import Flow, FlowEnd, Slice, Track

__all__ = ["Launched", "connect_launches"]


@dataclass(frozen=True, slots=True)
class Launched:
    """A program's slice on its device, and who asked for it.

    Attributes:
        thread_id: The OS id of the thread that asked.
        time_ns: When it asked: before the slice begins if the program was enqueued.
    """

    program: Slice
    thread_id: int
    time_ns: int


def connect_launches(
    host: Iterable[Slice],
    *,
    callers: Mapping[int, int],
    programs: Sequence[Launched],
    thread_track: Callable[[int], Track],
) -> tuple[list[Slice], list[Flow]]:
    """Draws an arrow to every program.

    Args:
        host: Ops, Python calls and phases that may have launched a program.
        callers: By `id` of a slice its thread, where its track does not say it.
        programs: Each device slice with who asked for it.
        thread_track: Gives the row of a thread.

    Returns:
        A "launch" slice on the thread's row for every program that nothing enclosed (an arrow
        needs a slice at both ends), and the arrows.
    """
    host_by_thread: dict[int, list[Slice]] = defaultdict(list)
    for item in host:
        host_by_thread[callers.get(id(item), item.track.tid)].append(item)
    launched_by_thread: dict[int, list[Launched]] = defaultdict(list)
    for launched in programs:
        launched_by_thread[launched.thread_id].append(launched)

    launches = []
    flows = []
    for thread_id, own in launched_by_thread.items():
        own.sort(key=lambda launched: launched.time_ns)
        found = _innermost(host_by_thread[thread_id], [launched.time_ns for launched in own])
        for launched, launcher in zip(own, found, strict=True):
            program = launched.program
            if launcher is None:
                # In line the call took as long as the program; of another nobody told its length.
                is_inline = launched.time_ns == program.start_ns
                launcher = Slice(
                    thread_track(thread_id),
                    "launch",
                    f"launch {program.name}",
                    launched.time_ns,
                    program.duration_ns if is_inline else 0,
                )
                launches.append(launcher)
            flows.append(
                Flow(
                    "launch",
                    "launch",
                    FlowEnd(launcher.track, launched.time_ns),
                    FlowEnd(program.track, program.start_ns),
                )
            )
    return launches, flows


def _innermost(slices: list[Slice], moments: Sequence[int]) -> list[Slice | None]:
    """For each moment, in rising order, the latest begun slice that contains it."""
    slices.sort(key=lambda item: (item.start_ns, -item.duration_ns))
    found: list[Slice | None] = []
    stack: list[Slice] = []
    position = 0
    for moment in moments:
        while position < len(slices) and slices[position].start_ns <= moment:
            while stack and stack[-1].end_ns <= slices[position].start_ns:
                stack.pop()
            stack.append(slices[position])
            position += 1
        while stack and stack[-1].end_ns <= moment:
            stack.pop()
        # Slices of two clocks may cross by a fraction of a microsecond: look below the top as well.
        found.append(next((item for item in reversed(stack) if moment < item.end_ns), None))
    return found
