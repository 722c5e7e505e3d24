"""Reads a trace file that npu-profiler wrote, whole or cut off, packed or not.

    from npu_profiler.reading import load_trace

    trace = load_trace("trace.json.gz")
    for track in trace.tracks:                    # rows: threads, programs of a device, copies
        print(track.process, "/", track.name, len(track), "slices", track.device)
    for layer in trace.slices("layer"):           # SliceRef: name, category, start_ns, args, ...
        program = layer.parent                    # the slice around it on its row
        print(layer.name, layer.duration_ns, layer.args["type"], program and program.name)
    for arrow in trace.flows.get("launch", ()):   # from an op to the program that it launched
        print(arrow.cause, arrow.effect)
    for mark in trace.instants:                   # fallbacks, for example
        print(mark.category, mark.name, mark.time_ns)
    for curve in trace.counters:                  # of memory, by time
        print(curve.process, curve.name, curve.series, max(curve.values))

Times are nanoseconds since the first event, as viewers show them. A million slices take 30 bytes
each: a loop over all of them is quicker over the columns (`track.starts`, `durations`,
`name_numbers`, `category_numbers`, `parents`, `self_ns`; numbers stand for `track.names.words`)
than over SliceRef.

Questions about it are in `npu_profiler.queries`.
"""

from npu_profiler.reading.loading import check_trace, load_trace
from npu_profiler.reading.model import Counter, Flow, Flows, Instant, SliceRef, Trace, Track

__all__ = [
    "Counter",
    "Flow",
    "Flows",
    "Instant",
    "SliceRef",
    "Trace",
    "Track",
    "check_trace",
    "load_trace",
]
