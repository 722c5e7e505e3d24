"""Controls of the simulated device (``NPU_DRIVER=sim``) for tests: delays, failures, bit flips.

The device itself is native (csrc/driver/sim.cpp).
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from npu_runtime import _C
from npu_runtime.config import config
from npu_runtime.errors import InputError
from npu_runtime.public_calls import public_call

__all__ = ["Flip", "Flips", "Status", "delay", "failure", "flips"]


class Status(IntEnum):
    """Status codes of the driver interface that a test can inject."""

    ERROR = 1
    ARGUMENT = 2
    MEMORY = 3
    UNSUPPORTED = 4


@dataclass(frozen=True)
class Flip:
    """One flipped bit of an output.

    Attributes:
        run: index of the run, from 0, among the runs of the selected programs.
        program: name of the program's model.
        output: index of the output.
        element: index of the element, in memory order.
        bit: index of the bit, from the least significant.
        before: the computed value.
        after: the value after the flip.
    """

    run: int
    program: str
    output: int
    element: int
    bit: int
    before: float
    after: float


class Flips:
    """The record of :func:`flips` so far."""

    def __init__(self) -> None:
        self._report: tuple[int, tuple[Flip, ...]] | None = None

    @property
    def runs(self) -> int:
        """Number of successful runs of the selected programs."""
        return self._read()[0]

    @property
    def hits(self) -> tuple[Flip, ...]:
        """The runs with a flipped bit, in order."""
        return self._read()[1]

    def end(self) -> None:
        """Stops flipping bits, and keeps the report."""
        _C.sim_end_flips()
        self._report = self._read()

    def _read(self) -> tuple[int, tuple[Flip, ...]]:
        if self._report is not None:
            return self._report
        runs, hits = _C.sim_flip_report()
        return runs, tuple(Flip(*hit) for hit in hits)


@contextlib.contextmanager
@public_call
def delay(least_us: int, most_us: int, *, seed: int = 0) -> Iterator[None]:
    """Delays each enqueued item by a random time in microseconds."""
    _C.sim_set_delay(least_us, most_us, seed)
    try:
        yield
    finally:
        _C.sim_set_delay(0, 0, 0)


@contextlib.contextmanager
@public_call
def failure(
    call: str, *, status: Status = Status.ERROR, skip: int = 0, times: int = 1
) -> Iterator[None]:
    """Makes the driver function ``call`` fail ``times`` times, after ``skip`` successful calls.

    Args:
        call: name in the driver table, for example ``"request_run"``.
        status: the returned status.
        skip: number of successful calls before the failures.
        times: number of failing calls.
    """
    _C.sim_inject_failure(call, int(status), skip, times)
    try:
        yield
    finally:
        _C.sim_clear()


@contextlib.contextmanager
@public_call
def flips(
    probability: float, *, seed: int = 0, programs: str = "*", bit: int | None = None
) -> Iterator[Flips]:
    """Flips a bit in some runs' outputs, as silent data corruption would.

    A run is hit with the given probability. One bit of one element of its outputs, chosen
    uniformly, is then flipped. The same seed hits the same runs, if they come in the same order.
    Enqueued runs are hit only if they end inside the ``with``: synchronize there. Blocks cannot
    overlap.

    Args:
        probability: probability of a flip in a run, from 0 to 1.
        seed: seed of the choice of runs and elements.
        programs: glob pattern of the programs' model names.
        bit: index of the bit, from the least significant; at most the highest. By default the
            highest below the sign, the top exponent bit of a floating-point number, which exceeds
            any tolerance: 0.5 becomes 1.7e38 in float32, and 3 becomes 8.8e-39. A bool is always
            negated.

    Yields:
        The number of runs and the flips; readable after the end too.

    Raises:
        InputError: the probability is not in 0 to 1, the bit is negative, or another driver is in
            use (code ``sim-input``).
    """
    if not 0 <= probability <= 1:
        raise InputError(
            f"npu_runtime.sim.flips: `probability` must be from 0 to 1, got {probability}. "
            "Pass 1 to hit each run.",
            code="sim-input",
        )
    if bit is not None and bit < 0:
        raise InputError(
            f"npu_runtime.sim.flips: `bit` must be 0, the least significant, or more, got {bit}. "
            "Omit it for the highest below the sign.",
            code="sim-input",
        )
    if config.driver != "sim":
        raise InputError(
            "npu_runtime.sim.flips: the driver must be the simulated one, got "
            f"NPU_DRIVER={config.driver!r}. Start the process with NPU_DRIVER=sim.",
            code="sim-input",
        )
    _C.sim_begin_flips(probability, seed, programs, -1 if bit is None else bit)
    made = Flips()
    try:
        yield made
    finally:
        made.end()
