"""Replay: repeats captured calls on a device, checks their results, and times them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload
from torch.testing._comparison import default_tolerances
from torch.utils._pytree import tree_leaves

from npu_ops.debugging.autocompare import VERDICT_COLUMNS, verdict_cells
from npu_ops.debugging.capture_folders import find_captures
from npu_ops.debugging.capture_format import Capture, load_capture
from npu_ops.debugging.comparator import (
    Tolerances,
    Verdict,
    compare,
    is_partly_undefined,
    is_undefined,
    judge,
)
from npu_ops.debugging.observe import synchronize
from npu_ops.debugging.report import Report, Value
from npu_ops.debugging.tool import Call
from npu_ops.debugging.trial import (
    GeneratorImage,
    Outcome,
    Trial,
    below_autograd,
    device_state,
    set_device_state,
)
from npu_ops.errors import OperatorInputError
from npu_ops.names import first_match
from npu_runtime.errors import KindError
from npu_runtime.public_calls import public_call

__all__ = ["Replay", "replay_call", "replay_directory", "replay_report"]

_NOTHING = Verdict("not compared", "", "own")
_ELSEWHERE = Verdict("not compared", "its tensors were on the CPU, and stay there", "own")
_NOT_COMPARABLE = "not comparable"
# The allowed difference between a recorded result and this machine's, as a multiple of the error
# here: both round, in different orders of summation.
_OTHERS_ERROR = 4.0


@dataclass(frozen=True)
class Replay:
    """The outcome of one replayed call.

    Attributes:
        folder: folder of the capture.
        capture: the captured call.
        recorded: comparison with the recorded results: `same`, `close`, `differs`, `not comparable`
            (uninitialized memory, other random numbers, or a call that stays on the CPU), or empty
            without a check.
        verdict: comparison with the CPU in float64.
        each_ms: milliseconds of each timed run.
    """

    folder: Path
    capture: Capture
    recorded: str
    verdict: Verdict
    each_ms: tuple[float, ...]

    @property
    def is_right(self) -> bool:
        """Whether the results agree with the record and with the CPU."""
        return self.recorded != "differs" and self.verdict.is_right


@public_call
def replay_directory(
    directory: str | Path,
    device: str = "npu",
    *,
    names: Sequence[str] = (),
    is_checked: bool = True,
    run_times: int = 1,
    is_only_forward: bool = False,
    is_synchronized: bool = True,
) -> Iterator[Replay]:
    """Replays the captured calls of a directory, in order.

    Args:
        directory: directory of OpCapture or OpAutoCompare, or one folder in it.
        device: device of the replay.
        names: exact names or patterns of the ops; empty means all.
        is_checked: whether to compare.
        run_times: number of timed runs of each call, after one untimed run.
        is_only_forward: whether to leave out calls of the backward pass.
        is_synchronized: whether to time until the device has finished; otherwise until the host has
            enqueued the call.

    Raises:
        OperatorInputError: [capture-unreadable], [unknown-op], [tool-option].
        DamagedFileError: [file-damaged].
    """
    if run_times < 0:
        raise OperatorInputError(
            f"`run_times` must be an integer from 0, got {run_times}. Pass the number of timed "
            "runs.",
            code="tool-option",
        )
    for folder in find_captures(directory):
        capture = load_capture(folder)
        if is_only_forward and capture.facts["phase"] != "forward":
            continue
        if names and first_match(capture.op, names) is None:
            continue
        yield replay_call(
            folder,
            capture,
            device,
            is_checked=is_checked,
            run_times=run_times,
            is_synchronized=is_synchronized,
        )


def replay_call(
    folder: Path,
    capture: Capture,
    device: str,
    *,
    is_checked: bool,
    run_times: int,
    is_synchronized: bool,
) -> Replay:
    """Replays one captured call; see replay_directory."""
    call = _call(_find_op(capture.op), capture, device)
    place = call.device
    is_elsewhere = place.type != torch.device(device).type
    with _kept_stream(place), torch.no_grad():
        if capture.state is not None:
            set_device_state(place, capture.state)
        trial = Trial(call)
        with below_autograd(call):
            got = trial.on_device()
        if got.error is not None:
            why = " ".join(f"raises {type(got.error).__name__}: {got.error}".split())
            return Replay(folder, capture, "differs", Verdict("differs", why, "own"), ())
        recorded, verdict = "", _NOTHING
        if is_checked:
            verdict = _ELSEWHERE if is_elsewhere else judge(trial, got, Tolerances())
            recorded = _against_record(call, capture, got, verdict)
        times = [_time(call.op, capture, device, is_synchronized) for _ in range(run_times)]
        synchronize(place)
    return Replay(folder, capture, recorded, verdict, tuple(times))


@public_call
def replay_report(replays: Sequence[Replay], device: str) -> Report:
    """Returns one row per call, with differing calls marked."""
    replays = list(replays)  # elements of an iterator were not checked before
    if not all(isinstance(one, Replay) for one in replays):
        raise KindError(
            "npu_ops.debugging.replay_report: `replays` must be results of replay_directory, got "
            f"{ascii(replays)[:80]}. Pass those.",
            code="argument-kind",
        )
    rows: list[tuple[Value, ...]] = [
        (
            one.folder.name,
            one.capture.facts["phase"],
            one.capture.facts["signature"],
            one.recorded,
            *verdict_cells(one.verdict),
            len(one.each_ms),
            sum(one.each_ms) / len(one.each_ms) if one.each_ms else None,
            min(one.each_ms, default=None),
        )
        for one in replays
    ]
    bad = frozenset(n for n, one in enumerate(replays) if not one.is_right)
    same = sum(one.recorded == "same" for one in replays)
    summary = f"{len(rows):,} calls made again on {device}"
    if any(one.recorded for one in replays):
        summary += f", {same:,} with the recorded values, {len(bad):,} differ"
    apart = sum(one.recorded == _NOT_COMPARABLE for one in replays)
    if apart:
        summary += f", {apart:,} not comparable with the record"
    bare = sum(not one.capture.has_checksum for one in replays)
    if bare:
        summary += (
            f"; {bare:,} are of a version without checksums, where a damaged file looks like a "
            "difference"
        )
    return Report(
        f"Captured calls on {device}",
        ("folder", "phase", "signature", "recorded", *VERDICT_COLUMNS, "runs", "mean ms", "min ms"),
        tuple(rows),
        summary + ".",
        bad,
        not bad,
    )


def _find_op(name: str) -> OpOverload[..., Any]:
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.rpartition(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
    if not isinstance(found, OpOverload):
        raise OperatorInputError(
            f"`{name}` must be an operator of torch, got an unknown name. Import the module that "
            "defines it with -i.",
            code="unknown-op",
        )
    return found


def _call(op: OpOverload[..., Any], capture: Capture, device: str) -> Call:
    args, kwargs = capture.before.restore(device)
    facts = capture.facts
    return Call(
        op=op,
        args=tuple(args),
        kwargs=kwargs,
        number=facts["number"],
        phase=facts["phase"],
        node=facts["node"],
        sequence=facts["sequence"],
        line=facts["line"],
        is_grad_enabled=facts["is_grad_enabled"],
    )


def _time(op: OpOverload[..., Any], capture: Capture, device: str, is_synchronized: bool) -> float:
    args, kwargs = capture.before.restore(device)
    place = torch.device(device)
    synchronize(place)
    start = time.perf_counter_ns()
    op(*args, **kwargs)
    if is_synchronized:
        synchronize(place)
    return (time.perf_counter_ns() - start) * 1e-6


def _against_record(call: Call, capture: Capture, got: Outcome, verdict: Verdict) -> str:
    """Compares results and arguments after the call with the record; see Replay."""
    found = _values_against_record(call, capture, got, verdict)
    is_open = verdict is _ELSEWHERE or (_is_random(call, capture) and verdict.is_right)
    # A note marks a record that was itself wrong.
    return _NOT_COMPARABLE if found == "differs" and is_open and not capture.note else found


def _is_random(call: Call, capture: Capture) -> bool:
    """Whether the call draws random numbers, which also depend on versions and processors."""
    leaves = tree_leaves(capture.before.tree)
    return (
        torch.Tag.nondeterministic_seeded in call.op.tags
        or capture.state is not None
        or any(isinstance(leaf, GeneratorImage) for leaf in leaves)
    )


def _values_against_record(call: Call, capture: Capture, got: Outcome, verdict: Verdict) -> str:
    given = tree_leaves(got.results)
    ours = given + tree_leaves((got.args, got.kwargs))
    theirs = tree_leaves(capture.after.restore("cpu"))
    if len(ours) != len(theirs):
        return "differs"
    slack = _OTHERS_ERROR * max(verdict.host_error, verdict.max_absolute_error)
    is_same = True
    for place, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(its, torch.Tensor):
            continue
        if mine.dtype is not its.dtype or mine.shape != its.shape:
            return "differs"
        if is_undefined(call.op) or (place < len(given) and is_partly_undefined(call.op, place)):
            continue
        if mine.layout is torch.strided and mine.cpu().equal(its):
            continue
        if not compare(mine, its, 0.0, 0.0).passed:
            is_same = False
            rtol, atol = default_tolerances(its.dtype)
            atol += slack if verdict.is_right and its.is_floating_point() else 0.0
            if not compare(mine, its, rtol, atol).passed:
                return "differs"
    if is_undefined(call.op):
        return _NOT_COMPARABLE
    return "same" if is_same else "close"


@contextmanager
def _kept_stream(device: torch.device) -> Iterator[None]:
    """Preserves the random state of a device."""
    state = device_state(device)
    try:
        yield
    finally:
        if state is not None:
            set_device_state(device, state)
