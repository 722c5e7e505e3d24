"""Controls of the simulated device (``NPU_DRIVER=sim``), for tests: delays, failures, wrong values.

What the device does with them is native (csrc/driver/sim.cpp).
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
    """The driver interface's status codes that a test can plant."""

    ERROR = 1
    ARGUMENT = 2
    MEMORY = 3
    UNSUPPORTED = 4


@dataclass(frozen=True)
class Flip:
    """One value of one output that was made wrong.

    Attributes:
        run: which run it was, from 0, among those of the programs that were asked for.
        program: the name of the program's model.
        output: which output.
        element: which of its elements, in the memory's order.
        bit: which of the element's bits, from the least significant.
        before: what the program had computed.
        after: what it was given as.
    """

    run: int
    program: str
    output: int
    element: int
    bit: int
    before: float
    after: float


class Flips:
    """What :func:`flips` has done so far."""

    def __init__(self) -> None:
        self._report: tuple[int, tuple[Flip, ...]] | None = None

    @property
    def runs(self) -> int:
        """How many runs of the programs that were asked for have ended well."""
        return self._read()[0]

    @property
    def hits(self) -> tuple[Flip, ...]:
        """The runs among them whose result is wrong, in their order."""
        return self._read()[1]

    def end(self) -> None:
        """Lets later runs be right, and keeps the report."""
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
    """Each piece of enqueued work waits a random time, in microseconds, before it runs."""
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
    """The driver's function ``call`` fails ``times`` times, after ``skip`` good calls.

    Args:
        call: name in the driver table, for example ``"request_run"``.
        status: what it returns.
        skip: how many calls go well before.
        times: how many calls fail then.
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
    """Runs end well with one value wrong, now and then: what a verifier of results is there to see.

    A run is hit with the given probability; then one element of one of its outputs, each as likely
    as any other, has one bit flipped. The same seed hits the same runs, if they come in the same
    order. Of enqueued runs, only those that end inside the ``with`` are hit: synchronize there.
    One such block at a time.

    Args:
        probability: of a run to be hit, from 0 to 1.
        seed: of which runs and elements are hit.
        programs: a pattern of the names that the programs' models have, as for file names.
        bit: which bit, from the least significant; at most the highest. By default the highest
            below the sign, the exponent's in a floating point number, which no tolerance hides:
            0.5 becomes 1.7e38 in float32, and 3 becomes 8.8e-39. A bool is negated in any case.

    Yields:
        How many runs there were, and which were hit; readable after the end too.

    Raises:
        InputError: the probability is not in 0 to 1, the bit is negative, or another driver serves
            (code ``sim-input``).
    """
    if not 0 <= probability <= 1:
        raise InputError(
            f"npu_runtime.sim.flips: probability must be from 0 to 1, got {probability}. "
            "Pass 1 to hit each run.",
            code="sim-input",
        )
    if bit is not None and bit < 0:
        raise InputError(
            f"npu_runtime.sim.flips: bit counts from 0, the least significant, got {bit}. "
            "Omit it for the highest below the sign.",
            code="sim-input",
        )
    if config.driver != "sim":
        raise InputError(
            "npu_runtime.sim.flips: only the simulated device computes wrong values on purpose, "
            f"got NPU_DRIVER={config.driver!r}. Start the process with NPU_DRIVER=sim.",
            code="sim-input",
        )
    _C.sim_begin_flips(probability, seed, programs, -1 if bit is None else bit)
    made = Flips()
    try:
        yield made
    finally:
        made.end()
