"""Measures architectures, each in a supervised child process."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from npu_command.children import Child, Say, run_each, serve
from npu_compiler.config import read_settings
from npu_compiler.errors import SuiteError, WrongResultWarning
from npu_compiler.graph_compiler.records import GraphRecord, collecting
from npu_compiler.options import CompilerConfig
from npu_compiler.suite.families.architecture import Architecture, coinciding, make
from npu_compiler.suite.table import find
from npu_compiler.target_compiler import find_target, vendor_of

__all__ = [
    "BOUND",
    "Measurement",
    "make_child",
    "measure",
    "measure_in",
    "relative_error",
    "run_all",
    "tensors_of",
]


# Largest relative error against eager fp32 of a correct model. Another order of sums causes up to
# 1e-5 in these models, a wrong op 1e-2 and more.
BOUND = 1e-4

# A model that amplifies rounding exceeds BOUND in eager float32 too. It is right if its distance
# from eager is about that of eager from float64; beyond the limit the comparison is meaningless.
_OF_ROUNDING = 3.0
_MOST_ROUNDING = 1e-2
# In a target's precision, `rounding` is the distance of eager in that precision from eager float32.
_MOST_OF_HALF = 1e-1

# Bounds in a target's precision; a wrong op exceeds them in float16, too.
_ROUNDINGS = 8

_SHOWN_REASONS = 3


@dataclass(frozen=True)
class Measurement:
    """The result of one architecture."""

    # name and family of the architecture
    name: str
    family: str
    device: str = ""  # of the model, "npu" or "cpu"
    graph_breaks: int = 0  # number of graph breaks
    graphs: int = 0  # number of captured graphs
    programs: int = 0  # number of programs of all graphs
    nodes: int = 0  # number of calls in all graphs
    lowered: int = 0  # number of calls in programs
    # See relative_error; infinite if a result is missing or has another dtype or shape.
    error: float = float("inf")
    # Time of the first call, with capture, lowering and the device's compilation.
    compile_time_s: float = 0.0
    # Reasons for eager calls, or the failure of the run; or empty.
    detail: str = ""
    finished: bool = False  # whether there are results
    draw: int | None = None  # number of the draw of coinciding sizes; None for the usual sizes
    # Complaint of verification in the first run about right results; or empty.
    false_alarm: str = ""
    # Error of eager float32 against float64 if `error` is above BOUND; otherwise, or if the model
    # does not run in float64, 0.
    rounding: float = 0.0
    bound: float = BOUND  # bound of `error`, for the precision of programs

    @property
    def is_right(self) -> bool:
        """Whether results equal eager's up to rounding, and the run did not fail."""
        is_close = self.error <= max(self.bound, _OF_ROUNDING * self.rounding)
        is_telling = self.rounding <= (_MOST_ROUNDING if self.bound == BOUND else _MOST_OF_HALF)
        return self.finished and is_close and is_telling and not self.false_alarm

    @property
    def is_left_out(self) -> bool:
        """Whether torch rejects the drawn sizes."""
        return not self.finished and "[suite-sizes]" in self.detail

    @property
    def is_whole(self) -> bool:
        """Whether one program has all calls, from one graph without breaks."""
        return self.is_right and (
            (self.programs, self.graphs, self.graph_breaks) == (1, 1, 0)
            and self.lowered == self.nodes
        )

    def to_json(self) -> str:
        """Returns one line of JSON, which `from_json` reads."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Measurement:
        """Reads a line of `to_json`."""
        return cls(**json.loads(line))


def measure(
    architecture: Architecture, *, device: str = "npu", seed: int = 0, draw: int | None = None
) -> Measurement:
    """Builds a model, runs it eagerly on the CPU, compiles it, and compares two runs.

    The two runs are without the compiler's verification; a third run shows whether verification
    complains without reason.

    Args:
        architecture: the model to build.
        device: of the compiled model.
        seed: seed of weights and inputs.
        draw: number of the draw of coinciding sizes; None for the usual sizes.

    Raises:
        SuiteError: [suite-transformers] if transformers is missing, or lacks the architecture;
            [suite-timm] if timm is missing; [suite-sizes] if the model rejects the drawn sizes.
    """
    before = sum(counters["graph_break"].values())
    bound = _bound(read_settings().target)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, inputs, expected = _eager(architecture, seed, draw)
        model = model.to(device)
        placed = {key: value.to(device) for key, value in inputs.items()}
        compiled = torch.compile(model, backend="npu", options={"verify": "off"})
        with collecting() as records:
            started = time.perf_counter()
            first = tensors_of(compiled(**placed))
            compile_time_s = time.perf_counter() - started
            second = tensors_of(compiled(**placed))
        error = max(relative_error(results, expected) for results in (first, second))
        rounding = 0.0
        if error > bound:
            dtype = torch.float64 if bound == BOUND else torch.float16
            rounding = _rounding(architecture, seed, draw, expected, dtype)
    breaks = sum(counters["graph_break"].values()) - before
    detail = _reasons(records)
    return Measurement(
        name=architecture.name,
        family=architecture.family,
        device=device,
        graph_breaks=breaks,
        graphs=len(records),
        programs=sum(len(record.programs) for record in records),
        nodes=sum(record.node_count for record in records),
        lowered=sum(record.lowered_count for record in records),
        error=error,
        compile_time_s=compile_time_s,
        detail=detail,
        finished=True,
        draw=draw,
        rounding=rounding,
        bound=bound,
        false_alarm=_complaint(model, placed) if error <= bound else "",
    )


def _bound(target: str | None) -> float:
    """Returns the error bound for programs of a target."""
    if not CompilerConfig(target=target).is_for_vendor:
        return BOUND
    vendor = vendor_of(find_target(str(target), graphs=True))
    return _ROUNDINGS * torch.finfo(getattr(torch, vendor.precision)).eps


def _eager(
    architecture: Architecture, seed: int, draw: int | None
) -> tuple[torch.nn.Module, dict[str, torch.Tensor], list[torch.Tensor]]:
    """Returns the model, its inputs, and torch's results."""
    if draw is None:
        model, inputs = make(architecture, seed=seed)
        return model, inputs, tensors_of(model(**inputs))
    sizes = coinciding(draw)
    try:
        model, inputs = make(architecture, seed=seed, sizes=sizes)
        return model, inputs, tensors_of(model(**inputs))
    except SuiteError:
        raise  # a missing library, independent of sizes
    except (RuntimeError, ValueError, IndexError, AssertionError, TypeError) as failure:
        raise SuiteError(
            f"{architecture.name}: the model must accept the drawn sizes, got {sizes}; torch "
            f"reports {(str(failure).splitlines() or [''])[0][:120]}. Try another draw.",
            code="suite-sizes",
        ) from failure


@torch.no_grad()
def _rounding(
    architecture: Architecture,
    seed: int,
    draw: int | None,
    expected: list[torch.Tensor],
    dtype: torch.dtype = torch.float64,
) -> float:
    """Returns the distance of torch's results from those in `dtype`; 0 where it lacks the dtype."""
    model, inputs, _ = _eager(architecture, seed, draw)
    cast = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in inputs.items()
    }
    try:
        found = tensors_of(model.to(dtype)(**cast))
    except RuntimeError:  # the model creates float32 tensors, or an operator lacks the dtype
        return 0.0
    is_wide = dtype is torch.float64
    if is_wide and any(value.dtype is torch.float32 for value in found):
        return 0.0  # some part computes in float32
    rounded, exact = (expected, found) if is_wide else (found, expected)
    pairs = zip(rounded, exact, strict=True)
    return relative_error([value.to(reference.dtype) for value, reference in pairs], exact)


def _complaint(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> str:
    """Returns the complaint of verification in the first run about a correct model."""
    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", WrongResultWarning)
        torch.compile(model, backend="npu")(**inputs)
    told = [str(one.message) for one in caught if issubclass(one.category, WrongResultWarning)]
    return told[0] if told else ""


def tensors_of(output: Any) -> list[torch.Tensor]:
    """Returns the tensors of a model's output, in order."""
    leaves = pytree.tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def relative_error(results: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Returns the largest difference, relative to the largest magnitude of the reference tensor.

    Infinite if number, dtype, shape, an integer, or the position of a NaN or infinity differs.
    """
    if len(results) != len(expected):
        return float("inf")
    pairs = zip(results, expected, strict=True)
    return max((_error(result.cpu(), reference) for result, reference in pairs), default=0.0)


def _error(result: torch.Tensor, reference: torch.Tensor) -> float:
    if result.dtype != reference.dtype or result.shape != reference.shape:
        return float("inf")
    if not reference.is_floating_point():
        return 0.0 if torch.equal(result, reference) else float("inf")
    left, right = result.double(), reference.double()
    finite = right.isfinite()
    # equal_nan: elements that are not finite must be the same.
    if not torch.allclose(left[~finite], right[~finite], equal_nan=True):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    difference = float((left[finite] - right[finite]).abs().max())
    if not difference < float("inf"):
        return float("inf")
    return difference / max(float(right[finite].abs().max()), torch.finfo(torch.float32).tiny)


def _reasons(records: list[GraphRecord]) -> str:
    """Returns reasons for eager calls, each op and reason once, and for graph breaks."""
    eager = dict.fromkeys(
        f"{node.op}: {node.reason}" for record in records for node in record.eager
    )
    breaks = [" ".join(str(reason).split())[:160] for reason in counters["graph_break"]]
    found = [*eager, *(f"graph break: {reason}" for reason in breaks)]
    rest = f"; and {len(found) - _SHOWN_REASONS} more" if len(found) > _SHOWN_REASONS else ""
    return "; ".join(found[:_SHOWN_REASONS]) + rest


# ``python -m npu_compiler.suite.measurement DEVICE SEED`` runs the child: it reads names and draws,
# and writes a row for each.

_SHOWN = 600


def run_all(
    architectures: Sequence[Architecture],
    *,
    device: str,
    seed: int,
    timeout_s: float,
    jobs: int,
    on_row: Callable[[Measurement], object],
    draws: Sequence[int | None] = (None,),
) -> list[Measurement]:
    """Measures architectures in children; returns the rows in the order given.

    Every architecture is measured with each of `draws`. `on_row` is called with each row when it is
    ready, by one thread at a time. `jobs` is the number of parallel children.
    """
    every = [(architecture, draw) for architecture in architectures for draw in draws]
    rows: dict[tuple[str, int | None], Measurement] = {}
    lock = threading.Lock()

    def work(child: Child, case: tuple[Architecture, int | None]) -> None:
        architecture, draw = case
        row = measure_in(child, architecture, draw, device=device, timeout_s=timeout_s)
        with lock:
            rows[architecture.name, draw] = row
            on_row(row)

    def make() -> Child:
        return make_child(device=device, seed=seed, timeout_s=timeout_s)

    run_each(every, work, jobs=jobs, make_child=make)
    return [rows[architecture.name, draw] for architecture, draw in every]


def make_child(*, device: str, seed: int, timeout_s: float) -> Child:
    """Returns a child that measures architectures; see run_all."""
    # A cached program would hide the compile time.
    environment = {"NPU_COMPILE_CACHE_SIZE_MB": "0"}
    name = __spec__.name
    return Child(name, device, str(seed), timeout_s=timeout_s, environment=environment)


def measure_in(
    child: Child,
    architecture: Architecture,
    draw: int | None = None,
    *,
    device: str,
    timeout_s: float,
) -> Measurement:
    """Measures one architecture in a child; always returns a row."""
    child.give([architecture.name, draw])
    answer = child.answer()
    if answer is not None and "row" in answer:
        return Measurement.from_json(answer["row"])
    detail = answer["error"] if answer is not None else _end_of(child, timeout_s)
    return Measurement(
        architecture.name, architecture.family, device=device, detail=detail[:_SHOWN], draw=draw
    )


def _end_of(child: Child, timeout_s: float) -> str:
    if child.is_late:
        return f"no result after {timeout_s:g} s"
    if child.signal_name:
        return f"ended by {child.signal_name}"
    return child.said if child.said and child.status else f"exit code {child.status}"


def main(arguments: list[str]) -> None:
    """Runs the child: reads names and draws, writes rows."""
    device, seed = arguments

    def reply(case: tuple[str, int | None], say: Say) -> None:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        name, draw = case
        answer: dict[str, Any]
        try:
            row = measure(find(name), device=device, seed=int(seed), draw=draw)
            answer = {"row": row.to_json()}
        except Exception as error:  # noqa: BLE001  # every failure becomes a row
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        say(answer)

    serve(reply)


if __name__ == "__main__":
    main(sys.argv[1:])
