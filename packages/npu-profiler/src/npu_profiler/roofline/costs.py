"""What each recorded run of a layer computed and moved, by the shapes that the trace tells.

A layer tells its shapes when they differ from those of an earlier run of its program.
"""

from collections.abc import Iterator, Sequence

from npu_profiler.reading import SliceRef, Trace
from npu_profiler.roofline.layer_cost import Array, Cost, count_cost, parse_arrays

__all__ = ["costs_of_layers"]

_Arrays = Sequence[Array]


def costs_of_layers(trace: Trace) -> Iterator[tuple[SliceRef, _Arrays, Cost]]:
    """Yields the runs of layers by their begin, each with what it read and its cost."""
    shapes: dict[tuple[str, str], tuple[_Arrays, _Arrays]] = {}
    for item in sorted(trace.slices("layer"), key=lambda one: one.start_ns):
        args = item.args
        key = (item.parent.name if item.parent is not None else "", item.name)
        if "inputs" in args:
            shapes[key] = parse_arrays(args["inputs"]), parse_arrays(args["outputs"])
        inputs, outputs = shapes.get(key, ((), ()))
        yield item, inputs, count_cost(str(args.get("type") or ""), inputs, outputs)
