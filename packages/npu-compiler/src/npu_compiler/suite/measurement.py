"""Measurement of architectures, each in a supervised child process."""

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


# Largest relative error against eager fp32 with which a model counts as right. Sums in another
# order give up to 1e-5 in these models; a wrong op gives 1e-2 and more.
BOUND = 1e-4

# A model that multiplies roundings passes BOUND in float32 itself. It is right where it is about as
# far from eager as eager is from float64; past the limit, being near to eager says nothing.
_OF_ROUNDING = 3.0
_MOST_ROUNDING = 1e-2
# In a target's precision `rounding` is how far eager in that precision is from eager itself.
_MOST_OF_HALF = 1e-1

# Of a target's precision, one after the other; a wrong op shows in float16, too.
_ROUNDINGS = 8

_SHOWN_REASONS = 3


@dataclass(frozen=True)
class Measurement:
    """What became of one architecture."""

    # name, family: of the architecture
    name: str
    family: str
    device: str = ""  # of the model, "npu" or "cpu"
    graph_breaks: int = 0  # how often Python left the graph
    graphs: int = 0  # captured graphs
    programs: int = 0  # over all graphs
    nodes: int = 0  # calls over all graphs
    lowered: int = 0  # calls in programs
    # See relative_error; infinite where a result is missing or of another dtype or shape.
    error: float = float("inf")
    # The first call, with capture, lowering and the device's compilation.
    compile_time_s: float = 0.0
    # Why calls run eagerly, or how the run ended otherwise; empty when there is nothing.
    detail: str = ""
    finished: bool = False  # whether there are results to compare
    draw: int | None = None  # of sizes that coincide; None for the usual ones
    # What comparing programs with torch at their first run complained of although the results are
    # right; empty when it did not.
    false_alarm: str = ""
    # Eager's own error against eager in float64, where `error` is above BOUND; 0 where it is not,
    # or where the model does not run in float64.
    rounding: float = 0.0
    bound: float = BOUND  # of `error`, in the precision that programs compute in

    @property
    def is_right(self) -> bool:
        """Whether results equal eager's but for rounding, and nothing says otherwise."""
        is_close = self.error <= max(self.bound, _OF_ROUNDING * self.rounding)
        is_telling = self.rounding <= (_MOST_ROUNDING if self.bound == BOUND else _MOST_OF_HALF)
        return self.finished and is_close and is_telling and not self.false_alarm

    @property
    def is_left_out(self) -> bool:
        """Whether torch itself does not take the sizes that were drawn."""
        return not self.finished and "[suite-sizes]" in self.detail

    @property
    def is_whole(self) -> bool:
        """Whether it is one program with every call in it, of one graph without breaks."""
        return self.is_right and (
            (self.programs, self.graphs, self.graph_breaks) == (1, 1, 0)
            and self.lowered == self.nodes
        )

    def to_json(self) -> str:
        """One line, from which `from_json` makes the same measurement."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Measurement:
        """The measurement that `to_json` wrote down."""
        return cls(**json.loads(line))


def measure(
    architecture: Architecture, *, device: str = "npu", seed: int = 0, draw: int | None = None
) -> Measurement:
    """Builds, runs eagerly on the CPU, compiles for a device, runs twice, and compares both runs.

    The compiler is judged without the comparison that it makes itself at a first run; a third run
    says whether that complains without a reason.

    Args:
        architecture: what to build.
        device: of the compiled model.
        seed: of weights and inputs.
        draw: of sizes that coincide; None for the usual ones.

    Raises:
        SuiteError: [suite-transformers] transformers is missing, or lacks the architecture;
            [suite-timm] timm is missing; [suite-sizes] the model does not take the sizes that were
            drawn.
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
            measured = _rounding if bound == BOUND else _rounding_of_half
            rounding = measured(architecture, seed, draw, expected)
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
    """Returns the bound of an error where programs are made for a target."""
    if not CompilerConfig(target=target).is_for_vendor:
        return BOUND
    vendor = vendor_of(find_target(str(target), graphs=True))
    return _ROUNDINGS * torch.finfo(getattr(torch, vendor.precision)).eps


def _eager(
    architecture: Architecture, seed: int, draw: int | None
) -> tuple[torch.nn.Module, dict[str, torch.Tensor], list[torch.Tensor]]:
    """The model, its inputs, and torch's results."""
    if draw is None:
        model, inputs = make(architecture, seed=seed)
        return model, inputs, tensors_of(model(**inputs))
    sizes = coinciding(draw)
    try:
        model, inputs = make(architecture, seed=seed, sizes=sizes)
        return model, inputs, tensors_of(model(**inputs))
    except SuiteError:
        raise  # a library is missing, whatever the sizes
    except (RuntimeError, ValueError, IndexError, AssertionError, TypeError) as failure:
        raise SuiteError(
            f"{architecture.name}: a draw of sizes must be one that the model takes, got {sizes}, "
            f"and torch says {(str(failure).splitlines() or [''])[0][:120]}. Try another draw.",
            code="suite-sizes",
        ) from failure


@torch.no_grad()
def _rounding(
    architecture: Architecture, seed: int, draw: int | None, expected: list[torch.Tensor]
) -> float:
    """How far torch's results are from those that it computes in float64."""
    model, inputs, _ = _eager(architecture, seed, draw)
    wide = {
        name: value.double() if value.is_floating_point() else value
        for name, value in inputs.items()
    }
    try:
        exact = tensors_of(model.double()(**wide))
    except RuntimeError:  # it makes tensors of float32 itself
        return 0.0
    if any(value.dtype is torch.float32 for value in exact):
        return 0.0  # it computes in float32 somewhere
    pairs = zip(expected, exact, strict=True)
    return relative_error([value.to(reference.dtype) for value, reference in pairs], exact)


@torch.no_grad()
def _rounding_of_half(
    architecture: Architecture, seed: int, draw: int | None, expected: list[torch.Tensor]
) -> float:
    """How far torch's results in float16 are from those in float32; 0 if it has none."""
    model, inputs, _ = _eager(architecture, seed, draw)
    narrow = {
        name: value.half() if value.is_floating_point() else value for name, value in inputs.items()
    }
    try:
        rounded = tensors_of(model.half()(**narrow))
    except RuntimeError:  # an operator lacks float16 on the CPU
        return 0.0
    pairs = zip(rounded, expected, strict=True)
    return relative_error([value.to(reference.dtype) for value, reference in pairs], expected)


def _complaint(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> str:
    """What comparing programs with torch at the first run says of a model that is right."""
    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", WrongResultWarning)
        torch.compile(model, backend="npu")(**inputs)
    told = [str(one.message) for one in caught if issubclass(one.category, WrongResultWarning)]
    return told[0] if told else ""


def tensors_of(output: Any) -> list[torch.Tensor]:
    """The tensors of a model's output, in order."""
    leaves = pytree.tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def relative_error(results: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference of an element, over the largest magnitude of its reference tensor.

    Infinite where number, dtype, shape, an integer, or the place of a NaN or an infinity differs.
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
    """Why calls run eagerly, each op and reason once; and why Python left the graph."""
    eager = dict.fromkeys(
        f"{node.op}: {node.reason}" for record in records for node in record.eager
    )
    breaks = [" ".join(str(reason).split())[:160] for reason in counters["graph_break"]]
    found = [*eager, *(f"graph break: {reason}" for reason in breaks)]
    rest = f"; and {len(found) - _SHOWN_REASONS} more" if len(found) > _SHOWN_REASONS else ""
    return "; ".join(found[:_SHOWN_REASONS]) + rest


# ``python -m npu_compiler.suite.measurement DEVICE SEED`` is the child: it takes names and draws,
# and answers each with a row.

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

    Every architecture is measured with each of `draws` (of sizes). `on_row` is called with each row
    when it is there, by one thread at a time; `jobs` are children at a time.
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
    # A program from a former run would hide what compiling takes.
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
    """Measures one architecture in a child; however that ends, there is a row."""
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
    """The child: takes names and draws, answers with rows."""
    device, seed = arguments

    def reply(case: tuple[str, int | None], say: Say) -> None:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        name, draw = case
        answer: dict[str, Any]
        try:
            row = measure(find(name), device=device, seed=int(seed), draw=draw)
            answer = {"row": row.to_json()}
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a row
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        say(answer)

    serve(reply)


if __name__ == "__main__":
    main(sys.argv[1:])
