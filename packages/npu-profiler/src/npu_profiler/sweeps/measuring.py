"""Times of a workload over sizes, dtypes and ways of running it: eager, and compiled for npu.

Importing this module imports torch.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from npu_profiler.sweeps.workloads import Workload

__all__ = ["MODES", "Measurement", "Sweep", "has_backend", "measure"]

MODES = ("eager", "compiled")
_BACKEND = "npu"
_WARM_UP = 2
_LEAST_RUNS, _MOST_RUNS = 5, 1000
# A call that takes seconds is not repeated five times.
_MOST_TIMES = 10


@dataclass(frozen=True, slots=True)
class Sweep:
    """What to measure.

    Attributes:
        make: makes a workload of sizes, a dtype and a device.
        sizes: the first argument of `make`, one after the other.
        dtypes: also.
        modes: some of `MODES`.
        device: where it runs.
        seconds: for how long each is repeated.
    """

    make: Callable[[Sequence[int], torch.dtype, torch.device], Workload]
    sizes: Sequence[tuple[int, ...]]
    dtypes: Sequence[torch.dtype]
    modes: Sequence[str]
    device: torch.device
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of a sweep.

    Attributes:
        sizes: of the workload.
        dtype: "float32".
        mode: "eager" or "compiled".
        time_ns: the median of the calls; None when it did not run.
        runs: how many calls counted.
        flops: of one call.
        size_bytes: of one call.
        problem: why it did not run; empty when it did.
    """

    sizes: tuple[int, ...]
    dtype: str
    mode: str
    time_ns: float | None
    runs: int
    flops: int
    size_bytes: int
    problem: str = ""

    @property
    def size(self) -> str:
        """The sizes as they are given and shown: "64x1024x256"."""
        return "x".join(map(str, self.sizes))

    @property
    def flops_per_s(self) -> float | None:
        """Operations a second."""
        return None if not self.time_ns else self.flops / self.time_ns * 1e9

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes a second."""
        return None if not self.time_ns else self.size_bytes / self.time_ns * 1e9


def has_backend() -> bool:
    """Whether torch.compile knows the backend: whether a wheel that brings it is installed."""
    return _BACKEND in torch._dynamo.list_backends(exclude_tags=())


def measure(sweep: Sweep) -> Iterator[Measurement]:
    """Measures each combination, sizes first and modes last."""
    for sizes in sweep.sizes:
        for dtype in sweep.dtypes:
            workload = sweep.make(sizes, dtype, sweep.device)
            for mode in sweep.modes:
                yield _measure(sweep, sizes, dtype, mode, workload)


def _measure(
    sweep: Sweep, sizes: tuple[int, ...], dtype: torch.dtype, mode: str, workload: Workload
) -> Measurement:
    name = str(dtype).removeprefix("torch.")
    times: list[int] = []
    problem = ""
    try:
        times = _times(workload, mode, sweep)
    except (RuntimeError, NotImplementedError) as failure:
        # A dtype that a device lacks is a result of a sweep, not its end.
        problem = str(failure).strip().splitlines()[0] if str(failure) else repr(failure)
    finally:
        torch.compiler.reset()
    median = statistics.median(times) if times else None
    return Measurement(
        sizes,
        name,
        mode,
        median,
        len(times),
        workload.flops,
        workload.size_bytes,
        problem,
    )


def _times(workload: Workload, mode: str, sweep: Sweep) -> list[int]:
    function = workload.function
    if mode == "compiled":
        function = torch.compile(function, backend=_BACKEND)
    times: list[int] = []
    with torch.no_grad():
        for _ in range(_WARM_UP):
            function(*workload.inputs)
        _wait(sweep.device)
        begin = time.perf_counter()
        while not _is_enough(len(times), time.perf_counter() - begin, sweep.seconds):
            start = time.perf_counter_ns()
            function(*workload.inputs)
            _wait(sweep.device)
            times.append(time.perf_counter_ns() - start)
    return times


def _is_enough(runs: int, spent_s: float, wanted_s: float) -> bool:
    if runs < _LEAST_RUNS:
        return runs > 0 and spent_s > _MOST_TIMES * wanted_s
    return runs >= _MOST_RUNS or spent_s >= wanted_s


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
