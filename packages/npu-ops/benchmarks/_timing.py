"""Compares the time of a call on npu with that on the CPU, for these benchmarks."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["CLOCKS", "Ratio", "compare"]

Call = Callable[[], object]
Clock = Callable[[], int]


@dataclass(frozen=True)
class Ratio:
    """Times of one call on both devices.

    Attributes:
        cpu_us: Median microseconds on the CPU.
        npu_us: Median microseconds on npu.
        ratio: Median of the ratios npu : cpu of neighbouring measurements.
        low, high: Quartiles of those ratios.
    """

    cpu_us: float
    npu_us: float
    ratio: float
    low: float
    high: float


# Wall time, and CPU time of this process: with one thread, the latter is the measure on a shared
# machine.
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter_ns, "cpu": time.process_time_ns}


def compare(
    on_cpu: Call,
    on_npu: Call,
    *,
    repeats: int = 9,
    budget_ms: float = 10.0,
    clock: Clock = time.perf_counter_ns,
) -> Ratio:
    """Measures both calls in turn, ``repeats`` times each, about ``budget_ms`` a measurement.

    Adjacent measurements have the same disturbances, so the ratio is taken of pairs, and the order
    within a pair alternates.
    """

    def measure(call: Call, count: int) -> float:
        start = clock()
        for _ in range(count):
            call()
        return (clock() - start) / count / 1000

    measure(on_cpu, 2), measure(on_npu, 2)
    count = math.ceil(budget_ms * 1e3 / max(measure(on_cpu, 3), 0.2))
    pairs = []
    for turn in range(repeats):
        if turn % 2:
            npu = measure(on_npu, count)
            pairs.append((measure(on_cpu, count), npu))
        else:
            cpu = measure(on_cpu, count)
            pairs.append((cpu, measure(on_npu, count)))
    ratios = [npu / cpu for cpu, npu in pairs]
    low, _, high = statistics.quantiles(ratios, n=4)
    return Ratio(
        statistics.median(cpu for cpu, _ in pairs),
        statistics.median(npu for _, npu in pairs),
        statistics.median(ratios),
        low,
        high,
    )
