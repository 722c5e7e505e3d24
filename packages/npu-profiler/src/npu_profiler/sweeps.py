"""Sweeps over sizes, dtypes and modes: workloads, measurements, tables and charts.

Importing this module imports torch.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from npu_command.charts import Chart, Panel, draw_bars
from npu_profiler.reports.tables import Column, Table
from npu_profiler.roofline.peaks import ABOVE_PEAK, Peaks

__all__ = [
    "MODES",
    "PRECISIONS",
    "Measurement",
    "Sweep",
    "Workload",
    "draw_sweep",
    "has_backend",
    "matmul",
    "measure",
    "mlp",
    "notes",
    "records",
    "to_table",
]


@dataclass(frozen=True, slots=True)
class Workload:
    """A function with its inputs."""

    function: Callable[..., torch.Tensor]  # arguments of the call
    inputs: Sequence[torch.Tensor]  # synchronizes the device
    flops: int  # per call, a multiply-add counted as two
    # Minimum bytes that a call reads and writes: inputs, weights and result, once each.
    size_bytes: int


class _GatedNetwork(torch.nn.Module):
    """down(silu(gate(x)) * up(x)), as in Llama; x: (batch, hidden)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(hidden, inner, bias=False)
        self.up = torch.nn.Linear(hidden, inner, bias=False)
        self.down = torch.nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns (batch, hidden)."""
        result: torch.Tensor = self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))
        return result


def matmul(sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> Workload:
    """A product of (m, k) and (k, n), for sizes m, k and n."""
    m, k, n = sizes
    a = torch.randn(m, k).to(device=device, dtype=dtype)
    b = torch.randn(k, n).to(device=device, dtype=dtype)
    count = m * k + k * n + m * n
    return Workload(torch.matmul, (a, b), 2 * m * k * n, count * dtype.itemsize)


def mlp(sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> Workload:
    """The gated MLP of a decoder layer, for sizes rows, hidden and inner."""
    rows, hidden, inner = sizes
    network = _GatedNetwork(hidden, inner).to(device=device, dtype=dtype).eval()
    x = torch.randn(rows, hidden).to(device=device, dtype=dtype)
    count = 3 * hidden * inner + 2 * rows * hidden
    return Workload(network, (x,), 6 * rows * hidden * inner, count * dtype.itemsize)


MODES = ("eager", "compiled")
_BACKEND = "npu"
_WARM_UP = 2
_LEAST_RUNS, _MOST_RUNS = 5, 1000
# A call that takes seconds is not repeated five times.
_MOST_TIMES = 10


@dataclass(frozen=True, slots=True)
class Sweep:
    """Options: `make` builds a workload of each size and dtype on a device, in some of `MODES`.

    Each measurement lasts `seconds`.
    """

    make: Callable[[Sequence[int], torch.dtype, torch.device], Workload]
    sizes: Sequence[tuple[int, ...]]
    dtypes: Sequence[torch.dtype]
    modes: Sequence[str]
    device: torch.device
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of a sweep."""

    sizes: tuple[int, ...]  # of the workload
    dtype: str  # "float32"
    mode: str  # "eager" or "compiled"
    time_ns: float | None  # median time of a call; None if it did not run
    runs: int  # number of measured calls
    flops: int  # per call
    size_bytes: int  # per call
    problem: str = ""  # reason for not running; empty if it ran

    @property
    def size(self) -> str:
        """Sizes as given and shown: "64x1024x256"."""
        return "x".join(map(str, self.sizes))

    @property
    def flops_per_s(self) -> float | None:
        """Operations per second."""
        return None if not self.time_ns else self.flops / self.time_ns * 1e9

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second."""
        return None if not self.time_ns else self.size_bytes / self.time_ns * 1e9


def has_backend() -> bool:
    """Whether torch.compile has the backend, which another wheel provides."""
    return _BACKEND in torch._dynamo.list_backends(exclude_tags=())


def measure(sweep: Sweep) -> Iterator[Measurement]:
    """Measures each combination; sizes vary slowest, modes fastest."""
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
        # A dtype that a device lacks is a result of a sweep, not an error.
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


# Precision names of torch's dtypes.
PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def to_table(measured: Sequence[Measurement], peaks: Peaks | None, *, title: str) -> Table:
    """Returns one row per measurement, in order."""
    columns = [
        Column("size", "size"),
        Column("dtype", "dtype"),
        Column("mode", "mode"),
        Column("time_ns", "ms", "ns"),
        Column("gflops_per_s", "GFLOP/s", "number"),
        Column("gbytes_per_s", "GB/s", "number"),
        Column("runs", "runs", "count"),
    ]
    if peaks is not None:
        columns[-1:-1] = [Column("peak_share", "of peak", "roof"), Column("bound", "bound by")]
    return Table.of(
        title,
        columns,
        measured,
        gflops_per_s=lambda one: _billions(one.flops_per_s),
        gbytes_per_s=lambda one: _billions(one.bytes_per_s),
        peak_share=lambda one: _roof(one, peaks)[0],
        bound=lambda one: _roof(one, peaks)[1],
    )


def notes(measured: Sequence[Measurement], peaks: Peaks | None) -> list[str]:
    """Returns notes below the table: reasons for not running, and shares above 100 %."""
    lines = [
        f"{one.size} {one.dtype} {one.mode} did not run: {one.problem}"
        for one in measured
        if one.problem
    ]
    if any((_roof(one, peaks)[0] or 0) > 1 for one in measured):
        lines.append(ABOVE_PEAK)
    return lines


def records(measured: Sequence[Measurement], peaks: Peaks | None) -> list[dict[str, Any]]:
    """Returns measurements for programs; times in nanoseconds, rates per second."""
    found = []
    for one in measured:
        share, bound = _roof(one, peaks)
        found.append(
            {
                **dataclasses.asdict(one),
                "flops_per_s": one.flops_per_s,
                "bytes_per_s": one.bytes_per_s,
                "peak_share": share,
                "bound": bound,
            }
        )
    return found


def draw_sweep(measured: Sequence[Measurement], *, title: str) -> Chart:
    """Draws bars of GFLOP/s: a panel per size, a bar per dtype and mode."""
    panels = []
    for size in dict.fromkeys(one.size for one in measured):
        groups: dict[str, dict[str, float]] = {}
        for one in measured:
            if one.size == size and one.flops_per_s is not None:
                groups.setdefault(one.dtype, {})[one.mode] = one.flops_per_s / 1e9
        panels.append(Panel(f"{size} (GFLOP/s)", groups))
    return draw_bars(panels, title=title)


def _roof(one: Measurement, peaks: Peaks | None) -> tuple[float | None, str | None]:
    """Returns the share of the roof, and its limiting resource."""
    peak = None if peaks is None else peaks.flops_per_s.get(PRECISIONS.get(one.dtype, ""))
    if one.time_ns is None or peaks is None or peak is None:
        return None, None
    compute_s, memory_s = one.flops / peak, one.size_bytes / peaks.bytes_per_s
    bound = "compute" if compute_s > memory_s else "memory"
    return max(compute_s, memory_s) / one.time_ns * 1e9, bound


def _billions(rate: float | None) -> float | None:
    return None if rate is None else rate / 1e9
