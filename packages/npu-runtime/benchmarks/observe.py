"""Cost of an event, with a listener and without, against torch.profiler's.

    python packages/npu-runtime/benchmarks/observe.py

For each kind of event the same call three times: without listeners, a listener of
npu_runtime.observe collects (events are drained every thousand calls, and the draining counts),
torch.profiler records the device. An event's cost is the call's observed time less its unobserved
time, over the events of one call. The peer is torch's cheapest event: an empty ``with
_RecordFunctionFast("x")`` while torch.profiler records, over the same while it does not.

Without a listener a native site is one relaxed atomic load, a test and a branch, which no clock
here resolves; it can be read in the library:

    objdump -dC --no-show-raw-insn LIBRARY | grep -A3 'npu::observe::detail::listeners@@Base-'
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from _timing import median_us
from torch._C._profiler import _RecordFunctionFast
from torch.profiler import ProfilerActivity, profile, record_function

from npu_runtime import observe

CALLS = 1000
ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


@dataclass(frozen=True)
class Kind:
    """A call that makes events."""

    title: str
    call: Callable[[], object]


@contextlib.contextmanager
def listening() -> Iterator[list[int]]:
    """A listener that only notes how many events came each time."""
    counts: list[int] = []

    def hear(events: list[observe.Event]) -> None:
        counts.append(len(events))

    observe.add_listener(hear)
    try:
        yield counts
    finally:
        observe.remove_listener(hear)


def timed(call: Callable[[], object]) -> float:
    """Microseconds of one call, including the drain after a thousand of them."""

    def batch() -> None:
        for _ in range(CALLS):
            call()
        observe.flush()

    return median_us(batch, calls=1) / CALLS


def timed_in_profiler(call: Callable[[], object]) -> float:
    with profile(activities=ACTIVITIES):
        return timed(call)


def kinds() -> list[Kind]:
    x = torch.zeros(1, device="npu")
    host = torch.zeros(1)

    def span() -> None:
        with observe.span("test", "span"):
            pass

    def annotate() -> None:
        with record_function("x"):
            pass

    def record() -> None:
        with _RecordFunctionFast("x"):
            pass

    return [
        Kind("allocation and release (2 samples)", lambda: torch.empty(1, device="npu")),
        Kind("copy of one element (1 span)", lambda: x.copy_(host)),
        Kind("fallback of one element (1 span)", x.relu_),
        Kind("waiting for the device (1 span)", torch.npu.synchronize),
        Kind("observe.span in Python (1 span)", span),
        Kind("torch's record_function", annotate),
        Kind("torch's _RecordFunctionFast (peer)", record),
    ]


def main() -> None:
    rows = []
    for kind in kinds():
        alone = timed(kind.call)
        with listening() as counts:
            kind.call()
            observe.flush()
            per_call = sum(counts)
            observed = timed(kind.call)
        rows.append((kind, alone, observed, timed_in_profiler(kind.call), per_call))
    _, peer_alone, _, peer_recorded, _ = rows[-1]
    peer = peer_recorded - peer_alone
    columns = ("alone", "listener", "an event", "of peer's", "profiler")
    print(f"{'one call, us':36}" + "".join(f"{column:>10}" for column in columns))
    for kind, alone, observed, recorded, per_call in rows:
        cells = [f"{alone:10.3f}", f"{observed:10.3f}", f"{'-':>10}", f"{'-':>10}"]
        if per_call:
            each = (observed - alone) / per_call
            cells[2:] = [f"{each:10.3f}", f"{each / peer:9.2f}x"]
        print(f"{kind.title:36}{''.join(cells)}{recorded:10.3f}")
    print(f"the peer's event: {peer:.3f} us")


if __name__ == "__main__":
    main()
