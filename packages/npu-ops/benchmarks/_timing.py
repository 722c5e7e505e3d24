"""How these benchmarks compare a call on npu with the same one on the CPU; the calls are theirs."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Ratio", "compare"]

Call = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """What one call took on both devices.

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


def compare(on_cpu: Call, on_npu: Call, *, repeats: int = 9, budget_ms: float = 10.0) -> Ratio:
    """Measures both calls in turn, ``repeats`` times each, about ``budget_ms`` a measurement.

    The machine may be busy with other things. Neighbouring measurements share what disturbs them,
    hence the ratio is taken of pairs, and the order within a pair alternates.
    """
    count = max(1, math.ceil(budget_ms * 1e3 / max(_us(on_cpu, 1), _us(on_cpu, 2), 0.2)))
    count = min(count, 20_000)
    _us(on_npu, max(1, count // 8))
    pairs = []
    for turn in range(repeats):
        if turn % 2:
            npu = _us(on_npu, count)
            pairs.append((_us(on_cpu, count), npu))
        else:
            cpu = _us(on_cpu, count)
            pairs.append((cpu, _us(on_npu, count)))
    ratios = [npu / cpu for cpu, npu in pairs]
    low, _, high = statistics.quantiles(ratios, n=4)
    return Ratio(
        statistics.median(cpu for cpu, _ in pairs),
        statistics.median(npu for _, npu in pairs),
        statistics.median(ratios),
        low,
        high,
    )


def _us(call: Call, count: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - start) / count / 1000
