"""Whether what a device made of a call is right.

The measure is the call in float64 on the CPU. A device that is off by more than the tolerance is
still right if the CPU gives the same in the same dtype: then the dtype cannot do better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from npu_ops.debugging.calls.trial import Outcome, Trial
from npu_ops.debugging.judging.structure import changed_arguments, structural_problem
from npu_ops.debugging.judging.tolerance import Tolerances
from npu_ops.difference import Comparison
from npu_ops.incomparable_ops import UNDEFINED
from npu_ops.verification import verify_correctness
from npu_runtime.public_calls import public_call

__all__ = [
    "Verdict",
    "compare",
    "cosine_similarity",
    "is_partly_undefined",
    "is_undefined",
    "judge",
]

# Their values are whatever the memory held; torch's databases have the others.
_UNDEFINED = UNDEFINED | {"resize", "resize_", "resize_as_"}
# (op, number of a result) -> why parts of it are whatever the memory held.
_PARTLY_UNDEFINED = {
    ("_ctc_loss", 1): "log_alpha is not written past the length of each target",
}
_LONGEST = 200  # characters of an error that is quoted


@dataclass(frozen=True)
class Verdict:
    """What was found about one call.

    Attributes:
        status: `close`, `as the CPU` (beyond the tolerance of float64, as the CPU is), `differs`,
            or `not compared`.
        problem: what differs, or why nothing was compared; empty if all is right.
        precision: of the reference: `float64`, or `own` where the call cannot be made so.
        max_absolute_error: the largest `|device - reference|` of all results and written arguments.
        max_relative_error: the largest `|device - reference| / |reference|`.
        cosine: the smallest cosine similarity of a result with its reference; None where there is
            none.
        host_error: the largest `|CPU - reference|` of the CPU in the arguments' own dtypes.
    """

    status: str
    problem: str
    precision: str
    max_absolute_error: float = 0.0
    max_relative_error: float = 0.0
    cosine: float | None = None
    host_error: float = 0.0

    @property
    def is_right(self) -> bool:
        """Whether nothing differs."""
        return self.status != "differs"


@public_call
def judge(trial: Trial, got: Outcome, tolerances: Tolerances, *, programs: int = 0) -> Verdict:
    """Compares a device's outcome with the CPU's.

    Args:
        trial: the call, with what its arguments were.
        got: the device's outcome; an error in it is expected of the CPU too.
        tolerances: what ops may be off by.
        programs: how many programs served the call.
    """
    host = trial.on_host()
    if host.error is not None or got.error is not None:
        return _judge_errors(trial, got, host)
    structure = structural_problem(trial, got, host)
    if is_undefined(trial.call.op):
        return Verdict("differs" if structure else "close", structure, "own")
    wide = _wide(trial, host)
    rows = _rows(trial, (got, host, wide or host), tolerances, programs)
    problem = "; ".join(filter(None, [structure, *(row.problem for row in rows)]))
    is_host = any(row.is_host for row in rows)
    return Verdict(
        status="differs" if problem else "as the CPU" if is_host else "close",
        problem=problem,
        precision="own" if wide is None else "float64",
        max_absolute_error=max((row.seen.max_absolute_error for row in rows), default=0.0),
        max_relative_error=max((row.seen.max_relative_error for row in rows), default=0.0),
        cosine=min((row.cosine for row in rows if row.cosine is not None), default=None),
        host_error=max((row.host_error for row in rows), default=0.0),
    )


@public_call
def is_undefined(op: OpOverload[..., Any]) -> bool:
    """Whether an op's values are whatever the memory held."""
    return op._schema.name.removeprefix("aten::") in _UNDEFINED


@public_call
def is_partly_undefined(op: OpOverload[..., Any], place: int) -> bool:
    """Whether parts of one of an op's results, by its number, are whatever the memory held."""
    return (op._schema.name.removeprefix("aten::"), place) in _PARTLY_UNDEFINED


@public_call
def compare(got: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> Comparison:
    """One tensor's comparison; of a nested one that of the member that is worst."""
    parts = verify_correctness(got, expected, rtol, atol, check_dtype=False).comparisons
    return max(parts, key=lambda part: (not part.passed, part.max_absolute_error))


@public_call
def cosine_similarity(got: torch.Tensor, expected: torch.Tensor) -> float | None:
    """The cosine of the angle between two tensors' values, which may be on different devices.

    None for integers, for tensors without a direction, and where a value is not finite.
    """
    if not expected.is_floating_point() or got.shape != expected.shape:
        return None
    if got.layout is not torch.strided or expected.layout is not torch.strided:
        return None
    a, b = (tensor.detach().cpu().to(torch.float64).flatten() for tensor in (got, expected))
    size = float(a.norm() * b.norm())
    if size == 0 or not torch.isfinite(torch.tensor(size)):
        return None
    return min(1.0, float(a @ b) / size)


@dataclass(frozen=True)
class _Row:
    """One tensor's comparison."""

    seen: Comparison
    problem: str
    is_host: bool
    cosine: float | None
    host_error: float


def _judge_errors(trial: Trial, got: Outcome, host: Outcome) -> Verdict:
    if host.error is not None and got.error is not None:
        return Verdict("close", "", "own")
    error = host.error or got.error
    why = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
    if host.error is not None:
        return Verdict("not compared", f"the CPU refuses the call: {why}", "own")
    homes = {tensor.device.type for tensor in trial.call.tensors}
    if len(homes) > 1 and "same device" in why:
        return Verdict("not compared", f"its tensors are on two devices: {why}", "own")
    return Verdict("differs", f"raises {why}; the CPU does not", "own")


def _wide(trial: Trial, host: Outcome) -> Outcome | None:
    """The call in float64; None where it draws numbers, reads bits, or cannot be made so."""
    op = trial.call.op
    is_random = torch.Tag.nondeterministic_seeded in op.tags or (
        trial.state is not None
        and host.state is not None
        and not torch.equal(host.state, trial.state)
    )
    if is_random or op.is_view or not trial.before.can_widen:
        return None
    wide = trial.on_host(is_wide=True)
    return None if wide.error is not None else wide


def _rows(
    trial: Trial,
    outcomes: tuple[Outcome, Outcome, Outcome],
    tolerances: Tolerances,
    programs: int,
) -> list[_Row]:
    """Compares results and written arguments of the device, the CPU, and the reference."""
    sides = [tree_leaves(outcome.results) for outcome in outcomes]
    if len({len(side) for side in sides}) > 1:
        return []  # told as a matter of structure
    named = [
        (f"result {place}", parts)
        for place, parts in enumerate(zip(*sides, strict=True))
        if not is_partly_undefined(trial.call.op, place)
    ]
    arguments = [outcome.tensors for outcome in outcomes]
    named += [
        (f"argument {place}", tuple(side[place] for side in arguments))
        for place in changed_arguments(trial, *outcomes[:2])
    ]
    return [
        _row(trial.call.name, name, parts, tolerances, programs)
        for name, parts in named
        if all(isinstance(part, torch.Tensor | bool | int | float | complex) for part in parts)
    ]


def _row(op: str, name: str, parts: tuple[Any, ...], tolerances: Tolerances, programs: int) -> _Row:
    got, host, reference = (torch.as_tensor(part) for part in parts)
    largest = _largest(reference) if programs else 0.0
    rtol, atol = tolerances.of(op, host.dtype, largest=largest, programs=programs)
    seen = compare(got, reference, rtol, atol)
    is_host, problem = False, ""
    if not seen.passed:
        is_host = reference is not host and compare(got, host, rtol, atol).passed
        problem = "" if is_host else _describe(name, seen)
    host_error = 0.0
    if reference is not host:
        is_same = got.layout is torch.strided and got.cpu().equal(host)
        host_seen = seen if is_same else compare(host, reference, rtol, atol)
        host_error = host_seen.max_absolute_error
    return _Row(seen, problem, is_host, cosine_similarity(got, reference), host_error)


def _describe(name: str, seen: Comparison) -> str:
    if seen.problem is not None:
        return f"{name}: {seen.problem}"
    text = f"{name}: {seen.outlier_count} of {seen.element_count} elements are off"
    for outlier in seen.worst[:1]:
        text += f"; {list(outlier.index)} is {outlier.actual} instead of {outlier.expected}"
    return text


def _largest(tensor: torch.Tensor) -> float:
    is_plain_float = tensor.is_floating_point() and tensor.layout is torch.strided
    if not is_plain_float or tensor.is_nested or tensor.numel() == 0:
        return 0.0
    known = tensor.detach().to(torch.float64).abs().nan_to_num(0, 0, 0)
    return float(known.max())
