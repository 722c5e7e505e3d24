"""Measured peaks of a device: arithmetic per precision, and memory bandwidth."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_command.whole_files import locked, write_json
from npu_profiler.config import read_cache_dir
from npu_profiler.errors import TraceError

if TYPE_CHECKING:
    import torch

__all__ = ["ABOVE_PEAK", "PRECISIONS", "Peaks", "find_peaks", "product_model", "relu_model"]


def product_model(*, rows: int, size: int, dtype: str) -> str:
    """Builds a product of x (rows, size) and a transposed constant (size, size) of equal weights.

    The dtype is in IR's spelling: "f32", "bf16", "f16".
    """
    size_bytes = size * size * (4 if dtype == "f32" else 2)
    weight = (
        '<layer id="1" name="w" type="Const" version="opset1">'
        f'<data element_type="{dtype}" shape="{size},{size}" offset="0" size="{size_bytes}"/>'
        f"<output>{_port(0, dtype, (size, size))}</output></layer>"
    )
    product = (
        '<layer id="2" name="product" type="MatMul" version="opset1">'
        '<data transpose_a="false" transpose_b="true"/>'
        f"<input>{_port(0, dtype, (rows, size))}{_port(1, dtype, (size, size))}</input>"
        f"<output>{_port(2, dtype, (rows, size))}</output></layer>"
    )
    edges = _edge(0, 0, 2, 0) + _edge(1, 0, 2, 1) + _edge(2, 2, 3, 0)
    ends = _ends((rows, size), dtype, last_id=3)
    return _net(ends[0] + weight + product + ends[1], edges)


def relu_model(*, size: int) -> str:
    """Builds a ReLU of x (size,) in float32."""
    relu = (
        '<layer id="1" name="relu" type="ReLU" version="opset1">'
        f"<input>{_port(0, 'f32', (size,))}</input><output>{_port(1, 'f32', (size,))}</output>"
        "</layer>"
    )
    ends = _ends((size,), "f32", last_id=2)
    return _net(ends[0] + relu + ends[1], _edge(0, 0, 1, 0) + _edge(1, 1, 2, 0))


def _ends(shape: Sequence[int], dtype: str, *, last_id: int) -> tuple[str, str]:
    """Returns the input and the output."""
    sizes = ",".join(map(str, shape))
    first = (
        '<layer id="0" name="x" type="Parameter" version="opset1">'
        f'<data shape="{sizes}" element_type="{dtype}"/>'
        f"<output>{_port(0, dtype, shape)}</output></layer>"
    )
    last = (
        f'<layer id="{last_id}" name="y" type="Result" version="opset1">'
        f"<input>{_port(0, dtype, shape)}</input></layer>"
    )
    return first, last


def _port(index: int, dtype: str, shape: Sequence[int]) -> str:
    precision = {"f32": "FP32", "f16": "FP16", "bf16": "BF16"}[dtype]
    dims = "".join(f"<dim>{size}</dim>" for size in shape)
    return f'<port id="{index}" precision="{precision}">{dims}</port>'


def _edge(source: int, source_port: int, target: int, target_port: int) -> str:
    return (
        f'<edge from-layer="{source}" from-port="{source_port}" '
        f'to-layer="{target}" to-port="{target_port}"/>'
    )


def _net(layers: str, edges: str) -> str:
    return (
        '<?xml version="1.0"?><net name="probe" version="11">'
        f"<layers>{layers}</layers><edges>{edges}</edges></net>"
    )


PRECISIONS = ("f32", "bf16", "f16")
ABOVE_PEAK = (
    "* above 100 %: the data came from a cache, which is faster than the memory, or the device was "
    "busy while its peaks were measured"
)

_FILE = "peaks.json"
# Long enough to hide the start of a run, short enough for about twenty runs per second.
_PRODUCT_SIZE = 2048
# 268 MB: several times the size of caches.
_ROW_SIZE = 8192
_RELU_SIZE = 1 << 26
_PROBE_S = 0.7
_LEAST_RUNS = 5
# Share of processor time during a probe's best run; below it, other processes were running.
_QUIET_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks of one device."""

    device: str  # measured device: product, driver version, threads
    bytes_per_s: float  # of the memory
    flops_per_s: Mapping[str, float]  # by precision: "f32", "bf16", "f16"

    def lines(self) -> list[str]:
        """Returns text for a terminal."""
        rates = ", ".join(
            f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in self.flops_per_s.items()
        )
        return [
            f"device: {self.device}",
            f"peaks: {self.bytes_per_s / 1e9:,.1f} GB/s, {rates or 'no arithmetic'}",
        ]


def find_peaks(
    precisions: Iterable[str],
    *,
    device_index: int = 0,
    is_fresh: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Peaks:
    """Returns the peaks of a device, cached or measured now.

    Precisions without a probe are left out; a probe takes one to three seconds. Raises
    [roofline-device] if the device cannot be opened.
    """
    device = _describe(device_index)
    path = read_cache_dir() / _FILE
    kept = {} if is_fresh else _read(path).get(device, {})
    rates: dict[str, float] = dict(kept.get("flops_per_s", {}))
    bandwidth = kept.get("bytes_per_s")
    missing = [name for name in PRECISIONS if name in set(precisions) and name not in rates]
    is_quiet = True
    if bandwidth is None:
        say(f"measuring the memory bandwidth of {device}")
        bandwidth, is_quiet = _measure_bandwidth(device_index)
    for name in missing:
        say(f"measuring the arithmetic of {device} in {name}")
        rates[name], was_quiet = _measure_product(name, device_index)
        is_quiet = is_quiet and was_quiet
    if not is_quiet:
        say("other programs were running: these peaks are too low, and are not kept")
    elif missing or kept.get("bytes_per_s") is None:
        _keep(path, device, {"bytes_per_s": bandwidth, "flops_per_s": rates})
    return Peaks(device, bandwidth, rates)


def _describe(device_index: int) -> str:
    # A heavy import, which a missing file should not wait for.
    import torch

    from npu_runtime import info
    from npu_runtime.errors import NpuError

    try:
        about = info.device_info(device_index)
    except NpuError as failure:
        raise TraceError(
            f"roofline: the device must be available to measure its peaks, got: {failure}. Pass "
            "--bandwidth and --peak instead.",
            code="roofline-device",
        ) from failure
    threads = f", {torch.get_num_threads()} threads" if about.device == "CPU" else ""
    version = about.driver_version.split("-", maxsplit=1)[0]
    return f"{about.full_name or about.device} ({about.driver} {version}{threads})"


def _measure_product(precision: str, device_index: int) -> tuple[float, bool]:
    """Returns operations per second, and whether the machine was otherwise idle."""
    import torch

    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[precision]
    size = _PRODUCT_SIZE
    seconds, is_quiet = _best_time(
        product_model(rows=size, size=size, dtype=precision),
        torch.full((size, size), 0.01, dtype=dtype),
        torch.full((size, size), 0.01, dtype=dtype),
        precision,
        device_index,
    )
    return 2 * size**3 / seconds, is_quiet


def _measure_bandwidth(device_index: int) -> tuple[float, bool]:
    """Measures the faster of reading a large matrix, and of reading and writing a long vector.

    Returns bytes per second, and whether the machine was otherwise idle.
    """
    import torch

    read_s, read_is_quiet = _best_time(
        product_model(rows=1, size=_ROW_SIZE, dtype="f32"),
        torch.full((_ROW_SIZE, _ROW_SIZE), 0.01),
        torch.full((1, _ROW_SIZE), 0.01),
        "f32",
        device_index,
    )
    x = torch.full((_RELU_SIZE,), 0.01)
    copy_s, copy_is_quiet = _best_time(relu_model(size=_RELU_SIZE), None, x, "f32", device_index)
    rates = (4 * _ROW_SIZE**2 / read_s, read_is_quiet), (8 * _RELU_SIZE / copy_s, copy_is_quiet)
    return max(rates)


def _best_time(
    model: str,
    weights: torch.Tensor | None,
    x: torch.Tensor,
    precision: str,
    device_index: int,
) -> tuple[float, bool]:
    """Returns the seconds of the best run, and whether the machine was otherwise idle."""
    import torch

    import npu_runtime

    # A view as bytes: numpy has no bfloat16.
    stored = None if weights is None else weights.view(torch.uint8)
    program = npu_runtime.load_program(
        model.encode(),
        stored,
        name="probe",
        options={"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"},
        device_index=device_index,
    )
    output = [torch.empty_like(x)]
    threads = torch.get_num_threads() if program.device == "CPU" else 0
    best, best_share = math.inf, 1.0
    begin = time.perf_counter()
    runs = 0
    while runs < _LEAST_RUNS or time.perf_counter() - begin < _PROBE_S:
        start, used = time.perf_counter(), time.process_time()
        program.run([x], outputs=output)
        took = time.perf_counter() - start
        if took < best:
            share = (time.process_time() - used) / (took * threads) if threads else 1.0
            best, best_share = took, share
        runs += 1
    return best, best_share >= _QUIET_SHARE


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}  # measured again; a broken cache file is not the user's error
    return found if isinstance(found, dict) else {}


def _keep(path: Path, device: str, measured: Mapping[str, Any]) -> None:
    with locked(path):
        write_json(path, {**_read(path), device: measured}, indent=2)
