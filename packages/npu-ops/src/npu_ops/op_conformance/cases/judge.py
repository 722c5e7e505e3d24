"""Evaluates a case on a device, and compares two evaluations by the rule of the case's op.

Most ops have the rule `close`: each element within the tolerance, integers and bool equal. The
others are for results with several right values: indices of ties, unordered lists, random numbers,
factors with free signs. Each is as strict as its mathematics allows.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from npu_ops.op_conformance.cases.case import Case
from npu_ops.op_conformance.comparison import copy_to, is_rounding, on_cpu, seed_devices
from npu_ops.tolerances import DEFAULT, Tolerance

__all__ = ["RULES", "Evaluation", "evaluate", "judge", "tolerance_named"]


_SEED = 7
# Each call runs as a program or is refused, and results are returned unchanged.
_COMPILED: dict[str, Any] = {"strict": True, "training": False, "verify": "off"}
_REFUSALS = ("cannot-lower", "no-converter")
Adapt = Callable[[Case, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Evaluation:
    """The outcome of a call.

    Attributes:
        results: leaves of the result, or the gradients of the inputs; tensors are on the CPU.
        arguments: the tensors among the arguments after the call.
        error: class of the raised error; empty for none.
        problem: a mismatch other than of values, such as a result on another device.
        refusal: for a compiled call, the reason that it has no program.
    """

    results: list[Any] = field(default_factory=list)
    arguments: list[torch.Tensor] = field(default_factory=list)
    error: str = ""
    problem: str = ""
    refusal: str = ""


def evaluate(
    case: Case,
    check: str,
    device: str,
    *,
    adapt: Adapt | None = None,
    is_host: bool = False,
    is_compiled: bool = False,
) -> Evaluation:
    """Runs a case for one check.

    Args:
        case: the case.
        check: one of `CHECKS`.
        device: device of the tensors.
        adapt: function that adapts the arguments before they are copied to the device.
        is_host: whether this is the reference side.
        is_compiled: whether to compile the whole call with torch.compile.
    """
    operator = case.operator
    given = case.make_arguments(requires_grad=check == "backward")
    if adapt is not None:
        given = adapt(case, given)
    placed = copy_to(given, device)
    positional, keywords = operator.bind(placed)
    call = operator.host_function(check) if is_host else operator.function(check)
    if is_compiled:
        torch._dynamo.reset()
        call = torch.compile(call, backend="npu", dynamic=False, options=_COMPILED)
    seed_devices(_SEED, device)
    try:
        result = call(*positional, **keywords)
        if check == "backward":
            return Evaluation(on_cpu(_gradients(placed, result)))
    except Exception as error:  # noqa: BLE001  # the class is compared
        if is_compiled and getattr(error, "code", "") in _REFUSALS:
            return Evaluation(refusal=" ".join(str(error).split())[:_TEXT])
        return Evaluation(error=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    after = [leaf for leaf in tree_leaves(placed) if isinstance(leaf, torch.Tensor)]
    problem = _astray(after, result, device)
    if check == "in-place" and not problem and result is not positional[0]:
        problem = "the result is not the tensor that was written"
    return Evaluation(on_cpu(tree_leaves(result)), on_cpu(after), problem=problem)


def _gradients(arguments: Any, result: Any) -> list[torch.Tensor | None]:
    """Returns the gradients of all inputs for seeded gradients of all outputs.

    With ones, a result with a constant sum, such as a softmax, would have a zero gradient.
    """
    inputs = [leaf for leaf in tree_leaves(arguments) if getattr(leaf, "requires_grad", False)]
    outputs = [leaf for leaf in tree_leaves(result) if getattr(leaf, "requires_grad", False)]
    generator = torch.Generator().manual_seed(_SEED)
    seeds = [
        (torch.randint(-8, 9, output.shape, generator=generator).double() / 8).to(
            output.device, output.dtype
        )
        for output in outputs
    ]
    return list(torch.autograd.grad(outputs, inputs, seeds, allow_unused=True))


def _astray(arguments: list[torch.Tensor], result: Any, device: str) -> str:
    wanted = torch.device(device).type
    places = {
        leaf.device.type for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)
    } - {wanted}
    return f"a result is on {', '.join(sorted(places))}" if places and arguments else ""


Values = list[Any]
_SIGMAS = 6.0
_TEXT = 300


def judge(
    case: Case,
    check: str,
    got: Evaluation,
    expected: Evaluation,
    *,
    is_compiled: bool = False,
) -> str | None:
    """Returns None if the device agrees with the CPU, else the difference.

    Args:
        case: the case.
        check: for which check.
        got: the device's evaluation.
        expected: the CPU's evaluation; the device's results must have its dtypes.
        is_compiled: whether a program computed the results, with the tolerance of programs.
    """
    if expected.error or got.error:
        same = got.error.split(":")[0] == expected.error.split(":")[0]
        return None if same else f"expected {expected.error or 'a result'}, got {_of(got)}"
    if got.problem:
        return got.problem
    operator = case.operator
    allowed = tolerance_named(case.tolerance or operator.tolerance)
    if is_compiled:  # the share of the case's dtype, also for results in a wider dtype
        dtype = getattr(torch, case.dtype)
        share = allowed.of(dtype) or DEFAULT.of(dtype)
        allowed = Tolerance(share, share, share, allowed.reason)
    rule = RULES[operator.compare] if check != "backward" else _close
    wrong = rule(case, got.results, expected.results, allowed)
    if wrong is not None or operator.compare in _RANDOM:
        return wrong
    wrong = _close(case, got.arguments, expected.arguments, allowed)
    return None if wrong is None else f"an argument after the call: {wrong}"


@functools.cache
def tolerance_named(name: str) -> Tolerance:
    """Returns a tolerance of tolerances.toml."""
    text = Path(__file__).with_name("tolerances.toml").read_text(encoding="utf-8")
    return Tolerance(**tomllib.loads(text)[name])


def _close(case: Case, got: Values, expected: Values, allowed: Tolerance) -> str | None:
    try:
        torch.testing.assert_close(got, expected, equal_nan=True)
    except (AssertionError, TypeError) as error:
        if not allowed.is_exact and is_rounding(got, expected, allowed):
            return None
        return " ".join(str(error).split())[:_TEXT]
    return None


def _unordered(case: Case, got: Values, expected: Values, allowed: Tolerance) -> str | None:
    """Compares rows in any order; for `unique` with counts, each row with its count."""

    def ordered(values: Values) -> Values:
        rows = torch.stack([leaf.double() for leaf in values], -1).reshape(-1, len(values))
        return [torch.unique(rows, dim=0, return_counts=True)]

    shapes = _shapes(got, expected)
    return shapes or _close(case, ordered(got), ordered(expected), allowed)


def _ties(case: Case, got: Values, expected: Values, allowed: Tolerance) -> str | None:
    """Compares values; indices may be any that lead to these values."""
    wrong = _shapes(got, expected) or _close(case, got[:-1], expected[:-1], allowed)
    if wrong is not None:
        return wrong
    arguments = case.make_arguments()
    given = arguments["input"]
    dim = arguments.get("dim", -1 if case.op in _LAST_AXIS else None)
    ours, theirs = (_picked(given, dim, values[-1]) for values in (got, expected))
    if ours is None:
        return "an index is out of range"
    wrong = _close(case, [ours], [theirs], allowed)
    if wrong is not None:
        return f"elements at the indices: {wrong}"
    if case.op in _WITHOUT_REPEAT and got[-1].dim() and got[-1].numel():
        order = got[-1].sort(dim).values
        if bool((order.diff(dim=dim) == 0).any()):
            return "an index occurs twice"
    return None


_LAST_AXIS = ("argsort", "kthvalue", "sort", "topk")
_WITHOUT_REPEAT = ("argsort", "sort", "topk")


def _picked(given: torch.Tensor, dim: int | None, indices: torch.Tensor) -> torch.Tensor | None:
    if dim is None:
        given, indices, dim = given.flatten(), indices.flatten(), 0
    elif given.dim() and indices.dim() < given.dim():
        indices = indices.unsqueeze(dim)
    if indices.numel() == 0:
        return indices
    size = given.shape[dim] if given.dim() else 1
    if int(indices.min()) < 0 or int(indices.max()) >= size:
        return None
    return given.gather(dim, indices.long())


def _statistics(case: Case, got: Values, expected: Values, allowed: Tolerance) -> str | None:
    """Requires the CPU's numbers, or the first two moments within 6 standard errors."""
    wrong = _shapes(got, expected)
    if wrong is not None:
        return wrong
    for ours, theirs in zip(got, expected, strict=True):
        if torch.equal(ours, theirs):
            continue
        a, b = ours.double().flatten(), theirs.double().flatten()
        if not bool(a.isfinite().all()):
            return "a random number is not finite"
        for power in (1, 2):
            x, y = a**power, b**power
            error = float((x.var() / x.numel() + y.var() / y.numel()).sqrt())
            apart = abs(float(x.mean() - y.mean()))
            if apart > _SIGMAS * error:
                return f"moment {power} is {float(x.mean()):.6g}, expected {float(y.mean()):.6g}"
    return None


def _dropout(case: Case, got: Values, expected: Values, allowed: Tolerance) -> str | None:
    """Kept values must be the input divided by the keep probability, with the CPU's keep rate."""
    arguments = case.make_arguments()
    given = arguments["input"]
    share = arguments["p"] if arguments.get("training", True) else 0.0
    (ours,), (theirs,) = got, expected
    kept = ours != 0
    scaled = (given / (1 - share) if share < 1 else torch.zeros_like(given)).to(ours.dtype)
    wrong = _shapes(got, expected) or _close(case, [ours[kept]], [scaled[kept]], allowed)
    if wrong is not None:
        return wrong
    return _statistics(case, [kept], [theirs != 0], allowed)


def _permutation(case: Case, got: Values, expected: Values, allowed: Tolerance) -> str | None:
    """Requires each number once, in any order."""
    wrong = _shapes(got, expected)
    return wrong or _close(case, [got[0].sort().values], [expected[0].sort().values], allowed)


def _qr(case: Case, got: Values, expected: Values, allowed: Tolerance) -> str | None:
    """Requires the input as the product, orthonormal columns, and zeros below the diagonal."""
    wrong = _shapes(got, expected)
    if wrong is not None:
        return wrong
    q, r = got
    given = case.make_arguments()["input"].to(q.dtype)
    if r.numel() and float(r.tril(-1).abs().max()) > 0:
        return "R has values below its diagonal"
    if case.arguments.get("mode") == "r":
        return _close(case, [r.mT @ r], [given.mT @ given], allowed)
    identity = torch.eye(q.shape[-1], dtype=q.dtype).expand(*q.shape[:-2], -1, -1)
    return _close(case, [q @ r, q.mT @ q], [given, identity.contiguous()], allowed)


def _eigen(case: Case, got: Values, expected: Values, allowed: Tolerance) -> str | None:
    """Compares eigenvalues; vectors, which have free signs, must reproduce the input."""
    wrong = _shapes(got, expected) or _close(case, got[:1], expected[:1], allowed)
    if wrong is not None:
        return wrong
    values, vectors = got
    given = case.make_arguments()["input"].to(vectors.dtype)
    product = vectors @ (values.unsqueeze(-1) * vectors.mT)
    return _close(case, [product], [given], allowed)


def _singular(case: Case, got: Values, expected: Values, allowed: Tolerance) -> str | None:
    """Compares singular values; vectors, which have free signs, must reproduce the input."""
    wrong = _shapes(got, expected) or _close(case, got[1:2], expected[1:2], allowed)
    if wrong is not None:
        return wrong
    left, values, right = got
    given = case.make_arguments()["input"].to(left.dtype)
    return _close(case, [left @ (values.unsqueeze(-1) * right)], [given], allowed)


def _shapes(got: Values, expected: Values) -> str | None:
    ours, theirs = (
        [(str(leaf.dtype), tuple(leaf.shape)) for leaf in tree_leaves(values)]
        for values in (got, expected)
    )
    return None if ours == theirs else f"expected {theirs}, got {ours}"[:_TEXT]


def _of(evaluation: Evaluation) -> str:
    return evaluation.error or "a result"


_RANDOM = ("dropout", "permutation", "statistics")

# Rule -> function, with the rule in its docstring.
RULES: Mapping[str, Callable[[Case, Values, Values, Tolerance], str | None]] = {
    "close": _close,
    "dropout": _dropout,
    "eigen": _eigen,
    "permutation": _permutation,
    "qr": _qr,
    "singular": _singular,
    "statistics": _statistics,
    "ties": _ties,
    "unordered": _unordered,
}
