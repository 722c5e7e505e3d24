"""Controls of the simulated device (``NPU_DRIVER=sim``): delays and planted failures, for tests.

What the device does with them is native (csrc/driver/sim.cpp).
"""

import contextlib
from collections.abc import Iterator
from enum import IntEnum

from npu_runtime import _C

__all__ = ["Status", "delay", "failure"]


class Status(IntEnum):
    """The driver interface's status codes that a test can plant."""

    ERROR = 1
    ARGUMENT = 2
    MEMORY = 3
    UNSUPPORTED = 4


@contextlib.contextmanager
def delay(least_us: int, most_us: int, *, seed: int = 0) -> Iterator[None]:
    """Each piece of enqueued work waits a random time, in microseconds, before it runs."""
    _C.sim_set_delay(least_us, most_us, seed)
    try:
        yield
    finally:
        _C.sim_set_delay(0, 0, 0)


@contextlib.contextmanager
def failure(
    call: str, *, status: Status = Status.ERROR, skip: int = 0, times: int = 1
) -> Iterator[None]:
    """The driver's function ``call`` fails ``times`` times, after ``skip`` good calls.

    Args:
        call: Name in the driver table, for example ``"request_run"``.
        status: What it returns.
        skip: How many calls go well before.
        times: How many calls fail then.
    """
    _C.sim_inject_failure(call, int(status), skip, times)
    try:
        yield
    finally:
        _C.sim_clear()
