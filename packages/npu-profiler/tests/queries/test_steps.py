import pytest

from npu_profiler.queries.steps import find_steps
from npu_profiler.reading import load_trace
from npu_profiler.trace_format.timeline import Slice, Track

MAIN = Track(1, 1, "main thread", "python x.py")
STEPS = Track(1, 9, "prefill and decode", "python x.py")


def mark(name, start, end):
    return Slice(MAIN, "user_annotation", name, start, end - start)


DECODES = [Slice(STEPS, kind, f"{kind} 1", at, 5) for at, kind in [(0, "prefill"), (8, "decode")]]
OPTIMIZERS = [mark("Optimizer.step#SGD.step", at, at + 2) for at in (10, 30)]


@pytest.mark.parametrize(
    "slices, found",
    [
        ([], []),
        ([mark("forward", 0, 9)], []),
        (DECODES, [("prefill", 1, 0, 5), ("decode", 1, 8, 13)]),
        ([*DECODES, *OPTIMIZERS], [("prefill", 1, 0, 5), ("decode", 1, 8, 13)]),
        ([mark("ProfilerStep#1", 3, 7), *OPTIMIZERS], [("step", 1, 3, 7)]),
        (
            [mark("forward", 4, 6), *OPTIMIZERS],
            [("optimizer step", 1, 0, 12), ("optimizer step", 2, 12, 32)],
        ),
        (
            [*OPTIMIZERS, mark("Optimizer.step#Adam.step", 14, 15)],
            [("optimizer step", 1, 0, 12), ("optimizer step", 2, 12, 32)],
        ),
    ],
    ids=["empty", "other", "answer", "answer first", "profiler", "optimizer", "two optimizers"],
)
def test_steps_are_the_first_kind_that_a_trace_has(write_trace, slices, found):
    begin = Slice(MAIN, "sync", "synchronize", 0, 0)  # times count from the first event
    steps = find_steps(load_trace(write_trace(slices=[begin, *slices])))
    assert [(step.kind, step.number, step.start_ns, step.end_ns) for step in steps] == found
