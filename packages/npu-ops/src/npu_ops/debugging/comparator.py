"""Comparator: checks a call's results on a device against the CPU in float64.

A result outside the tolerance still passes if the CPU's error in the same dtype is as large: the
dtype is the limit. Tolerances default to torch's. For a call that ran as a program, the tolerances
of npu_ops.tolerances apply as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.testing._comparison import default_tolerances
from torch.utils._pytree import tree_leaves

from npu_ops.debugging.tool import describe_tensor
from npu_ops.debugging.trial import Outcome, Trial, bytes_of, is_plain
from npu_ops.error_metrics import Comparison
from npu_ops.names import first_match
from npu_ops.tolerances import NAMED, UNDEFINED, tolerance_of
from npu_ops.verification import verify_correctness
from npu_runtime.public_calls import public_call

__all__ = [
    "Tolerances",
    "Verdict",
    "changed_arguments",
    "compare",
    "cosine_similarity",
    "is_partly_undefined",
    "is_undefined",
    "judge",
    "structural_problem",
]


@dataclass(frozen=True)
class Tolerances:
    """Relative and absolute tolerances; the first match applies, ops before dtypes.

    Attributes:
        by_op: pattern of op names -> (rtol, atol).
        by_dtype: dtype of a result -> (rtol, atol).
    """

    by_op: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    by_dtype: Mapping[torch.dtype, tuple[float, float]] = field(default_factory=dict)

    def of(
        self, name: str, dtype: torch.dtype, *, largest: float, programs: int
    ) -> tuple[float, float]:
        """Returns the relative and absolute tolerance of one result.

        Args:
            name: the op, such as `aten.mm.default`.
            dtype: of the result.
            largest: the largest finite expected value.
            programs: number of programs that ran the call.
        """
        pattern = first_match(name, self.by_op)
        if pattern is not None:
            return self.by_op[pattern]
        if dtype in self.by_dtype:
            return self.by_dtype[dtype]
        rtol, atol = default_tolerances(dtype)
        if programs:
            share = tolerance_of(_subject(name)).of(dtype)
            atol = max(atol, share * max(1.0, largest))
        return rtol, atol


def _subject(name: str) -> str:
    """Returns an op's name in torch's database if it has a separate tolerance.

    `aten._scaled_dot_product_attention_math.default` implements
    `nn_functional_scaled_dot_product_attention`.
    """
    op = name.split(".")[1].strip("_")
    return next(
        (subject for subject in NAMED if op.startswith(subject.removeprefix("nn_functional_"))), op
    )


@public_call
def structural_problem(trial: Trial, got: Outcome, host: Outcome) -> str:
    """Describes a difference in dtypes, shapes, strides, aliases or random state; empty if none.

    Args:
        trial: the call with its original arguments.
        got: the device's outcome.
        host: the CPU's, in the same dtypes.
    """
    ours, theirs = tree_leaves(got.results), tree_leaves(host.results)
    if len(ours) != len(theirs):
        return f"expected {len(theirs)} results, got {len(ours)}"
    problems = [
        _form(f"result {place}", mine, its)
        for place, (mine, its) in enumerate(zip(ours, theirs, strict=True))
        if isinstance(mine, torch.Tensor) and isinstance(its, torch.Tensor)
    ]
    problems += [
        _form(f"argument {place}", mine, its)
        for place, (mine, its) in enumerate(zip(got.tensors, host.tensors, strict=True))
    ]
    if not any(problems):
        problems += [_aliases(got, host), _stray_write(trial, got, host)]
    if got.state is not None and host.state is not None and not torch.equal(got.state, host.state):
        problems.append("the device's random stream is not where the CPU's is after the call")
    return "; ".join(filter(None, problems))


def changed_arguments(trial: Trial, got: Outcome, host: Outcome) -> list[int]:
    """Returns the argument tensors, by number, that the op writes or that changed."""
    written = {id(tensor) for tensor in trial.call.written}
    apart = {number for number, (mine, its, _) in _memory(trial, got, host) if not mine.equal(its)}
    homes = _storage_numbers(trial, got)
    return [
        place
        for place, tensor in enumerate(got.tensors)
        if id(tensor) in written or homes[place] in apart
    ]


def _form(name: str, got: torch.Tensor, expected: torch.Tensor) -> str:
    if got.dtype is not expected.dtype or got.shape != expected.shape:
        return f"{name}: expected {_plain(expected)}, got {_plain(got)}"
    if not (is_plain(got) and is_plain(expected)) or got.numel() == 0:
        return ""
    steps = zip(got.shape, got.stride(), expected.stride(), strict=True)
    if any(size > 1 and mine != its for size, mine, its in steps):
        return (
            f"{name}: expected strides {list(expected.stride())}, got {list(got.stride())} "
            f"for shape {list(got.shape)}"
        )
    return ""


def _plain(tensor: torch.Tensor) -> str:
    return describe_tensor(tensor).split(" ")[0]


def _aliases(got: Outcome, host: Outcome) -> str:
    """Lists results and arguments that share memory otherwise than on the CPU."""
    mine, its = _sharing(got), _sharing(host)
    for name in its:
        if mine[name] != its[name]:
            return f"{name} {mine[name]}; on the CPU it {its[name]}"
    return ""


def _sharing(outcome: Outcome) -> dict[str, str]:
    """Returns, for each result and argument, the owner of its memory."""
    owners: dict[int, str] = {}
    for place, storage in enumerate(outcome.homes):
        owners.setdefault(storage._cdata, f"the memory that argument {place} had")
    found = {}
    arguments = [leaf for leaf in outcome.tensors if is_plain(leaf)]
    results = [leaf for leaf in tree_leaves(outcome.results) if is_plain(leaf)]
    for kind, tensors in (("argument", arguments), ("result", results)):
        for place, tensor in enumerate(tensors):
            name = f"{kind} {place}"
            owner = owners.setdefault(tensor.untyped_storage()._cdata, f"memory of {name} alone")
            found[name] = f"is in {owner}" if tensor.numel() else "is empty"
    return found


def _stray_write(trial: Trial, got: Outcome, host: Outcome) -> str:
    """Whether memory changed outside the elements that the call writes."""
    for number, (mine, its, before) in _memory(trial, got, host):
        # Some schemas omit writes; then the CPU wrote the same memory.
        is_quiet = not its.equal(before) and not trial.call.written
        if mine.equal(its) or is_quiet:
            continue
        stray = (mine != before) & ~_written_bytes(trial, got, number, before.numel())
        if stray.any():
            place = _storage_numbers(trial, got).index(number)
            return f"argument {place}: memory changed that the op does not write"
    return ""


def _written_bytes(trial: Trial, got: Outcome, number: int, count: int) -> torch.Tensor:
    """Returns a mask of the bytes that the call may write: (count,) bool."""
    mask = torch.zeros(count, dtype=torch.bool)
    written = {id(tensor) for tensor in trial.call.written}
    plain = [tensor for tensor in got.tensors if is_plain(tensor)]
    for image, tensor in zip(trial.before.images, plain, strict=True):
        if image.storage == number and id(tensor) in written:
            wide = image.dtype.itemsize
            steps = (*(step * wide for step in image.stride), 1)
            mask.as_strided((*image.size, wide), steps, image.offset * wide).fill_(True)
    return mask


def _memory(
    trial: Trial, got: Outcome, host: Outcome
) -> Iterable[tuple[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
    """Returns each argument storage's bytes now, on the device and the CPU, and before.

    Leaves out resized storages: the tensors' shapes show these.
    """
    places = [image.storage for image in trial.before.images]
    for number, image in enumerate(trial.before.storages):
        count = image.data.numel()
        twin = host.homes[places.index(number)]
        mine = got.homes[places.index(number)]
        if 0 < count <= min(twin.nbytes(), mine.nbytes() - image.start):
            there = bytes_of(mine, image.start, count).cpu()
            yield number, (there, bytes_of(twin, 0, count), image.data)


def _storage_numbers(trial: Trial, outcome: Outcome) -> Sequence[int]:
    """Returns the storage number of each argument tensor; -1 if it has none."""
    numbers = iter(trial.before.images)
    return [next(numbers).storage if is_plain(leaf) else -1 for leaf in outcome.tensors]


# Their values are undefined; torch's databases list the other ops of this kind.
_UNDEFINED = UNDEFINED | {"resize", "resize_", "resize_as_"}
# (op, number of a result) -> why parts of it are undefined.
_PARTLY_UNDEFINED = {
    ("_ctc_loss", 1): "log_alpha is not written past the length of each target",
}
_LONGEST = 200  # maximum characters of a quoted error


@dataclass(frozen=True)
class Verdict:
    """The verdict on one call.

    Attributes:
        status: `close`, `as the CPU` (outside the tolerance, as is the CPU), `differs`,
            or `not compared`.
        problem: the difference, or the reason for not comparing; empty if the call passed.
        precision: of the reference: `float64`, or `own` if the call does not support it.
        max_absolute_error: the largest `|device - reference|` of all results and written arguments.
        max_relative_error: the largest `|device - reference| / |reference|`.
        cosine: the smallest cosine similarity of a result with its reference; None if there is
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
        """Whether the call passed."""
        return self.status != "differs"


@public_call
def judge(trial: Trial, got: Outcome, tolerances: Tolerances, *, programs: int = 0) -> Verdict:
    """Compares a device's outcome with the CPU's.

    Args:
        trial: the call with its original arguments.
        got: the device's outcome; if it is an error, the CPU must raise it too.
        tolerances: allowed differences.
        programs: number of programs that ran the call.
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
    """Whether an op's values are undefined."""
    return op._schema.name.removeprefix("aten::") in _UNDEFINED


@public_call
def is_partly_undefined(op: OpOverload[..., Any], place: int) -> bool:
    """Whether parts of an op's numbered result are undefined."""
    return (op._schema.name.removeprefix("aten::"), place) in _PARTLY_UNDEFINED


@public_call
def compare(got: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> Comparison:
    """Compares one tensor; for a nested tensor, returns its worst member's comparison."""
    parts = verify_correctness(got, expected, rtol, atol, check_dtype=False).comparisons
    return max(parts, key=lambda part: (not part.passed, part.max_absolute_error))


@public_call
def cosine_similarity(got: torch.Tensor, expected: torch.Tensor) -> float | None:
    """Returns the cosine similarity of two tensors, which may be on different devices.

    None for integers, zero tensors, and non-finite values.
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
    """Runs the call in float64; None if it draws numbers, reads bits, or lacks float64."""
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
        return []  # reported as a structural difference
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
