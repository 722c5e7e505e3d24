"""Finds what launched each device program and draws the arrow from there.

A program has no parent of its own in the recording: torch knows the ops, the runtime knows the
programs. They meet by thread and time: the launcher is the innermost slice that was open on the
program's thread when it began. Rows and clocks are settled before, in `assemble.py`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from npu_profiler.timeline import Flow, FlowEnd, Slice, Track

__all__ = ["connect_launches"]


def connect_launches(
    host: Iterable[Slice],
    *,
    callers: Mapping[int, int],
    programs: Sequence[tuple[Slice, int]],
    thread_track: Callable[[int], Track],
) -> tuple[list[Slice], list[Flow]]:
    """Draws an arrow to every program.

    Args:
        host: Ops, Python calls and phases that may have launched a program.
        callers: By `id` of a slice its thread, where its track does not say it.
        programs: Each device slice with the OS id of the thread that launched it.
        thread_track: Gives the row of a thread.

    Returns:
        A "launch" slice on the thread's row for every program that nothing enclosed (an arrow
        needs a slice at both ends), and the arrows.
    """
    host_by_thread: dict[int, list[Slice]] = defaultdict(list)
    for item in host:
        host_by_thread[callers.get(id(item), item.track.tid)].append(item)
    programs_by_thread: dict[int, list[Slice]] = defaultdict(list)
    for program, thread_id in programs:
        programs_by_thread[thread_id].append(program)

    launches = []
    flows = []
    for thread_id, own_programs in programs_by_thread.items():
        own_programs.sort(key=lambda program: program.start_ns)
        found = _innermost(host_by_thread[thread_id], [p.start_ns for p in own_programs])
        for program, launcher in zip(own_programs, found, strict=True):
            if launcher is None:
                launcher = Slice(
                    thread_track(thread_id),
                    "launch",
                    f"launch {program.name}",
                    program.start_ns,
                    program.duration_ns,
                )
                launches.append(launcher)
            flows.append(
                Flow(
                    "launch",
                    "launch",
                    FlowEnd(launcher.track, program.start_ns),
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
