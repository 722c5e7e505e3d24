"""What two outcomes of a call share besides values: forms, aliases, writes, random streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.utils._pytree import tree_leaves

from npu_ops.debugging.calls.call import describe_tensor
from npu_ops.debugging.calls.snapshot import bytes_of, is_plain
from npu_ops.debugging.calls.trial import Outcome, Trial

__all__ = ["changed_arguments", "structural_problem"]


def structural_problem(trial: Trial, got: Outcome, host: Outcome) -> str:
    """Says what differs in dtypes, shapes, strides, aliases or the random stream, or nothing.

    Args:
        trial: the call, with what its arguments were.
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
    """The tensors among the arguments, by number, that the op writes or that came out unequal."""
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
    """Which results and arguments share memory after the call, if not the same as on the CPU."""
    mine, its = _sharing(got), _sharing(host)
    for name in its:
        if mine[name] != its[name]:
            return f"{name} {mine[name]}; on the CPU it {its[name]}"
    return ""


def _sharing(outcome: Outcome) -> dict[str, str]:
    """For each result and argument, whose memory it lies in."""
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
            found[name] = f"lies in {owner}" if tensor.numel() else "is empty"
    return found


def _stray_write(trial: Trial, got: Outcome, host: Outcome) -> str:
    """Whether memory changed that the call writes no element of."""
    for number, (mine, its, before) in _memory(trial, got, host):
        # Some schemas keep quiet about what they write; then the CPU has written it too.
        is_quiet = not its.equal(before) and not trial.call.written
        if mine.equal(its) or is_quiet:
            continue
        stray = (mine != before) & ~_written_bytes(trial, got, number, before.numel())
        if stray.any():
            place = _storage_numbers(trial, got).index(number)
            return f"argument {place}: memory changed that the op does not write"
    return ""


def _written_bytes(trial: Trial, got: Outcome, number: int, count: int) -> torch.Tensor:
    """Which bytes of a storage the call may write: (count,) bool."""
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
    """For each storage below the arguments: its bytes on the device and on the CPU now, and before.

    One that a side resized is left out; its tensors' shapes tell.
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
    """For each tensor among the arguments the number of its storage; -1 for one without."""
    numbers = iter(trial.before.images)
    return [next(numbers).storage if is_plain(leaf) else -1 for leaf in outcome.tensors]
