"""A worker process of the fuzzer: compares graphs, and shrinks those that fail."""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from npu_command.children import Say, serve
from npu_compiler.fuzz.comparison import Comparison, compare, with_indices_inside
from npu_compiler.fuzz.drawing import draw_graph
from npu_compiler.fuzz.graph import (
    FLOAT_EDGES,
    InputSpec,
    RandomGraph,
    Step,
    references,
    renumbered,
    replaced_reference,
)
from npu_compiler.fuzz.modes import Mode, draw_mode

__all__ = ["main", "shrink", "without_dead_code"]

# Whole calls are removed first: a result becomes an input, or an earlier value an output. Then the
# mode and the inputs are simplified.


def shrink(
    graph: RandomGraph,
    mode: Mode,
    found: Comparison,
    *,
    limit_s: float,
    run: Callable[[RandomGraph, Mode], Comparison] = compare,
) -> tuple[RandomGraph, Mode]:
    """Returns a smaller graph and a simpler mode with the same failure, within a time limit."""
    until = time.monotonic() + limit_s
    is_smaller = True
    while is_smaller and time.monotonic() < until:
        is_smaller = False
        for smaller, simpler in _candidates(graph, mode):
            if time.monotonic() > until:
                break
            if _same_end(run(smaller, simpler), found):
                graph, mode, is_smaller = smaller, simpler, True
                break
    return graph, mode


def _same_end(left: Comparison, right: Comparison) -> bool:
    if left.kind != right.kind:
        return False
    if left.kind == "raises":
        return left.detail.split(":")[0] == right.detail.split(":")[0]
    # A wrong number and a lost NaN are different failures.
    return ("eager has" in left.detail) == ("eager has" in right.detail)


def _candidates(graph: RandomGraph, mode: Mode) -> Iterator[tuple[RandomGraph, Mode]]:
    for smaller in _smaller(graph):
        yield smaller, mode
    for simpler in mode.simpler():
        yield graph, simpler
    for size in sorted({size for spec in graph.inputs for size in spec.shape if size > 2}):
        yield _resized(graph, size, 2), mode
    for index, spec in enumerate(graph.inputs):
        for plainer in _plainer(spec):
            inputs = (*graph.inputs[:index], plainer, *graph.inputs[index + 1 :])
            yield dataclasses.replace(graph, inputs=inputs), mode


def _smaller(graph: RandomGraph) -> Iterator[RandomGraph]:
    first = len(graph.inputs)
    values = with_indices_inside(graph).values()
    if len(graph.outputs) > 1:
        for index in graph.outputs:
            yield without_dead_code(dataclasses.replace(graph, outputs=(index,)))
    for index in range(first, len(values) - 1):
        if isinstance(values[index], torch.Tensor) and (index,) != graph.outputs:
            yield without_dead_code(dataclasses.replace(graph, outputs=(index,)))
    for index in reversed(range(first, len(values))):
        if isinstance(values[index], torch.Tensor) and index not in graph.outputs:
            yield _with_input(graph, index, values[index])
    for index in range(first, len(values)):
        for source in set(references(list(graph.steps[index - first].arguments))):
            if _alike(values[source], values[index]):
                steps = [
                    dataclasses.replace(
                        step,
                        arguments=replaced_reference(step.arguments, index, source),
                        keywords=replaced_reference(step.keywords, index, source),
                    )
                    for step in graph.steps
                ]
                outputs = tuple(source if i == index else i for i in graph.outputs)
                if any(output >= first for output in outputs):
                    yield without_dead_code(RandomGraph(graph.inputs, tuple(steps), outputs))


def _resized(graph: RandomGraph, old: int, new: int) -> RandomGraph:
    """Returns the graph with a size replaced in all inputs; eager may reject it."""
    inputs = [
        dataclasses.replace(spec, shape=tuple(new if size == old else size for size in spec.shape))
        for spec in graph.inputs
    ]
    return dataclasses.replace(graph, inputs=tuple(inputs))


def _alike(left: Any, right: Any) -> bool:
    both = isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
    return both and (left.shape, left.dtype) == (right.shape, right.dtype)


def _with_input(graph: RandomGraph, index: int, value: torch.Tensor) -> RandomGraph:
    """Returns the graph with a result replaced by a similar input."""
    dtype = str(value.dtype).removeprefix("torch.")
    fill = "normal" if value.is_floating_point() else "quarters"
    if value.is_floating_point() and not bool(value.isfinite().all()):
        fill = next((s.fill for s in graph.inputs if s.fill in FLOAT_EDGES), "edges")
    spec = InputSpec(shape=tuple(value.shape), dtype=dtype, fill=fill)
    first = len(graph.inputs)
    # A no-op step in place of the result keeps the numbers in order.
    numbers = {i: i if i < first else i + 1 for i in range(first + len(graph.steps))}
    numbers[index] = first
    steps = [
        Step(s.target, renumbered(s.arguments, numbers), renumbered(s.keywords, numbers))
        for s in graph.steps
    ]
    outputs = tuple(numbers[i] for i in graph.outputs)
    return without_dead_code(RandomGraph((*graph.inputs, spec), tuple(steps), outputs))


def without_dead_code(graph: RandomGraph) -> RandomGraph:
    """Returns the graph without unused calls and inputs; calls that write stay."""
    first = len(graph.inputs)
    needed = set(graph.outputs)
    for number in reversed(range(len(graph.steps))):
        step = graph.steps[number]
        used = set(references([list(step.arguments), step.keywords]))
        if first + number in needed or (step.target.endswith("_") and used & needed):
            needed |= used | {first + number}
    kept = sorted(needed)
    numbers = {old: new for new, old in enumerate(kept)}
    return RandomGraph(
        tuple(graph.inputs[i] for i in kept if i < first),
        tuple(
            Step(s.target, renumbered(s.arguments, numbers), renumbered(s.keywords, numbers))
            for s in (graph.steps[i - first] for i in kept if i >= first)
        ),
        tuple(numbers[i] for i in graph.outputs),
    )


def _plainer(spec: InputSpec) -> Iterator[InputSpec]:
    for changes in (
        {"layout": ""}, {"order": ()}, {"names": ""}, {"frozen": False}, {"seed": 0},
    ):  # fmt: skip
        plainer = dataclasses.replace(spec, **changes)
        if plainer != spec:
            yield plainer
    if spec.fill in FLOAT_EDGES:
        yield dataclasses.replace(spec, fill="quarters")


# The worker reports each graph before it runs, so that the parent knows which one crashed it.


def main() -> None:
    """Compares graphs of tasks from the parent."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)  # tensors are tiny, and each core has a child
    serve(_reply)


def _reply(task: dict[str, Any], write: Say) -> None:
    """Compares the graphs of a task, or its single graph.

    Writes {"number": ...} before a graph, {"result": ...} after it, then {"smaller": ...} after a
    failure, and {"done": true} at the end.
    """

    def say(**what: Any) -> None:
        write(what)

    if "replay" in task:
        graph, mode = task["replay"]
        _compare(RandomGraph.from_json(graph), Mode.from_json(mode), 0.0, say)
    else:
        seed = task["seed"]
        for number in range(task["first"], task["end"]):
            kind, graph = draw_graph(seed, number)
            mode = draw_mode(
                seed, number, kind, graph, verify=task["verify"], target=task["target"]
            )
            say(number=number, kind=kind, graph=graph.to_json(), mode=mode.to_json())
            _compare(graph, mode, task["shrink_s"], say)
    say(done=True)


def _compare(graph: RandomGraph, mode: Mode, limit_s: float, say: Callable[..., None]) -> None:
    found = compare(graph, mode)
    say(result=dataclasses.asdict(found))
    if found.kind in ("equal", "invalid") or not limit_s:
        return
    smaller, simpler = shrink(graph, mode, found, limit_s=limit_s)
    say(smaller=smaller.to_json(), simpler=simpler.to_json())


if __name__ == "__main__":
    main()
