"""Uninitialized memory: elements with undefined contents, and the values computed from them.

It comes from factories without a value (`torch.empty`, ...) and from tensors that grow (`resize_`).
A write initializes each element it covers. To find the results that depend on uninitialized
elements, a call is repeated on the CPU with two different fills of these. Each tool decides how to
report such values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from npu_ops.debugging.comparator import is_undefined
from npu_ops.debugging.tool import Call
from npu_ops.debugging.trial import Trial, bytes_of, is_plain

__all__ = ["Reading", "UnwrittenMemory"]


# In-place ops that overwrite their first argument without reading it.
_OVERWRITING = frozenset(
    {
        *("_foreach_copy_", "_foreach_zero_", "bernoulli_", "cauchy_", "copy_", "exponential_"),
        *("fill_", "geometric_", "log_normal_", "normal_", "random_", "uniform_", "zero_"),
    }
)
# Values of both signs and different magnitudes, so that clamp, sign and square differ too; an
# integer may be an index.
_FILLS = ((-7.25, 0), (23.5, 1))


@dataclass
class _Region:
    """The initialization state of one storage.

    Attributes:
        storage: weak reference to the storage, which keeps its address from being reused.
        found: its last known bytes, on the CPU: (n,) uint8. A different byte was written without an
            op, for example through numpy.
        mask: uninitialized bytes: (n,) bool.
    """

    storage: StorageWeakRef
    found: torch.Tensor
    mask: torch.Tensor

    @property
    def is_gone(self) -> bool:
        """Whether the storage was freed."""
        return bool(self.storage.expired())  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Reading:
    """A call before it runs.

    Attributes:
        call: the call.
        unwritten: mask of uninitialized elements per tensor argument; None if there are none, or if
            the call overwrites the tensor without reading it.
        overwritten: ids of the tensors that the call only overwrites.
        trial: copies for repeating the call; None if it reads no uninitialized element.
        sizes: size in bytes of storages that the call may grow, by number.
    """

    call: Call
    unwritten: tuple[torch.Tensor | None, ...]
    overwritten: frozenset[int]
    trial: Trial | None
    sizes: Mapping[int, int]

    @property
    def is_open(self) -> bool:
        """Whether the call reads an uninitialized element."""
        return any(mask is not None for mask in self.unwritten)


class UnwrittenMemory:
    """Tracks, across calls, which elements were written.

    Memory allocated before the first call counts as written.
    """

    def __init__(self) -> None:
        self._regions: dict[int, _Region] = {}

    def before(self, call: Call) -> Reading:
        """Examines a call's arguments."""
        overwritten = _overwritten(call)
        storages = [tensor.untyped_storage() for tensor in call.written if is_plain(tensor)]
        sizes = {storage._cdata: storage.nbytes() for storage in storages}
        unwritten: tuple[torch.Tensor | None, ...] = ()
        trial: Trial | None = None
        if self._regions and not _is_about_place(call):
            unwritten = tuple(
                None if id(tensor) in overwritten else self.mask(tensor) for tensor in call.tensors
            )
            if any(mask is not None for mask in unwritten) and _is_repeatable(call):
                trial = Trial(call)
        return Reading(call, unwritten, overwritten, trial, sizes)

    def after(self, reading: Reading, results: Any) -> dict[int, torch.Tensor]:
        """Records the writes and results of a call.

        Returns:
            If the call read uninitialized elements: the CPU's values with finite numbers in their
            place, by id of the result or written argument.
        """
        call = reading.call
        given = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        if torch.Tag.inplace_view in call.op.tags:
            self._note_growth(reading)
        elif is_undefined(call.op):
            for tensor in given:
                self._set(tensor, torch.ones(tensor.shape, dtype=torch.bool))
        elif reading.is_open:
            return self._note_dependents(reading, given)
        elif not call.op.is_view:
            for tensor in call.written:
                self._set(tensor, None)
        return {}

    def mask(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the uninitialized elements of a tensor as bool of its shape; None if all are set.

        A partly written element counts as written.
        """
        if not self._regions or not is_plain(tensor) or tensor.numel() == 0:
            return None
        region = self._region(tensor)
        if region is None:
            return None
        region.mask &= _bytes(tensor) == region.found
        if not region.mask.any():
            del self._regions[tensor.untyped_storage()._cdata]
            return None
        found = _elements(region.mask, tensor).all(-1)
        return found if found.any() else None

    def _note_growth(self, reading: Reading) -> None:
        for tensor in filter(is_plain, reading.call.written):
            storage = tensor.untyped_storage()
            size = reading.sizes.get(storage._cdata, storage.nbytes())
            if size < storage.nbytes() and self._region(tensor) is None:
                mask = torch.zeros(storage.nbytes(), dtype=torch.bool)
                mask[size:] = True
                self._add(tensor, mask)

    def _note_dependents(
        self, reading: Reading, given: list[torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        places = [n for n, tensor in enumerate(reading.call.tensors) if _is_in(tensor, reading)]
        ours = given + [reading.call.tensors[place] for place in places]
        sides = [self._again(reading, places, fill) for fill in _FILLS]
        twins: dict[int, torch.Tensor] = {}
        for number, tensor in enumerate(ours):
            made = [side[number] if len(side) == len(ours) else None for side in sides]
            depends = _dependents(tensor, made)
            self._set(tensor, depends)
            if made[0] is not None and made[0].shape == tensor.shape:
                twins[id(tensor)] = made[0]
        return twins

    def _again(
        self, reading: Reading, places: Sequence[int], fill: tuple[float, int]
    ) -> list[torch.Tensor]:
        """Returns results and written arguments of the call with a fill; empty on failure."""
        if reading.trial is None:
            return []
        masks = reading.unwritten

        def prepare(tensors: Sequence[torch.Tensor]) -> None:
            for tensor, mask in zip(tensors, masks, strict=True):
                if mask is not None:
                    _fill(tensor, mask, fill)

        outcome = reading.trial.on_host(prepare=prepare)
        if outcome.error is not None:
            return []
        given = [leaf for leaf in tree_leaves(outcome.results) if isinstance(leaf, torch.Tensor)]
        return given + [outcome.tensors[place] for place in places]

    def _set(self, tensor: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Sets the uninitialized elements of a tensor; None if all are written."""
        if not is_plain(tensor) or tensor.numel() == 0:
            return
        region = self._region(tensor)
        if region is None and (mask is None or not mask.any()):
            return
        if region is None:
            region = self._add(
                tensor, torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.bool)
            )
        else:
            region.mask &= _bytes(tensor) == region.found
            region.found = _bytes(tensor)
        _elements(region.mask, tensor)[...] = False if mask is None else mask[..., None]
        if not region.mask.any():
            del self._regions[tensor.untyped_storage()._cdata]

    def _add(self, tensor: torch.Tensor, mask: torch.Tensor) -> _Region:
        gone = [key for key, region in self._regions.items() if region.is_gone]
        for key in gone:
            del self._regions[key]
        storage = tensor.untyped_storage()
        region = _Region(_weak(storage), _bytes(tensor), mask)
        self._regions[storage._cdata] = region
        return region

    def _region(self, tensor: torch.Tensor) -> _Region | None:
        """Returns the state of a tensor's storage; the part by which it grew is uninitialized."""
        storage = tensor.untyped_storage()
        region = self._regions.get(storage._cdata)
        if region is not None and region.mask.numel() != storage.nbytes():
            known = min(region.mask.numel(), storage.nbytes())
            now = _bytes(tensor)
            mask = torch.ones(storage.nbytes(), dtype=torch.bool)
            mask[:known] = region.mask[:known]
            now[:known] = region.found[:known]
            region.mask, region.found = mask, now
        return region


def _overwritten(call: Call) -> frozenset[int]:
    """Returns the ids of tensors that the call overwrites completely without reading."""
    arguments = call.op._schema.arguments
    found: list[Any] = [call.kwargs.get(one.name) for one in arguments if one.is_out]
    if call.op._schema.name.removeprefix("aten::") in _OVERWRITING:
        found += call.args[:1]
    return frozenset(id(leaf) for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor))


def _is_about_place(call: Call) -> bool:
    """Whether the call depends only on the location and layout of tensors, not on their values."""
    return is_undefined(call.op) or call.op.is_view or torch.Tag.inplace_view in call.op.tags


def _is_repeatable(call: Call) -> bool:
    """Whether repeating the call affects only this process: a collective would wait for others."""
    return "c10d" not in call.op.namespace and not any(
        isinstance(leaf, torch.ScriptObject) for leaf in tree_leaves((call.args, call.kwargs))
    )


def _is_in(tensor: torch.Tensor, reading: Reading) -> bool:
    return any(tensor is written for written in reading.call.written)


def _weak(storage: torch.UntypedStorage) -> StorageWeakRef:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    there = bytes_of(storage, 0, storage.nbytes())
    return there.clone() if there.device.type == "cpu" else there.cpu()


def _elements(mask: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's part of its storage's mask: (*shape, bytes of an element)."""
    wide = tensor.itemsize
    steps = (*(step * wide for step in tensor.stride()), 1)
    return mask.as_strided((*tensor.shape, wide), steps, tensor.storage_offset() * wide)


def _fill(tensor: torch.Tensor, mask: torch.Tensor, fill: tuple[float, int]) -> None:
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim] > 1:  # an expanded tensor has each element once
            tensor, mask = tensor.narrow(dim, 0, 1), mask.narrow(dim, 0, 1)
    is_number = tensor.is_floating_point() or tensor.is_complex()
    tensor.detach().masked_fill_(mask, fill[0] if is_number else fill[1])


def _dependents(tensor: torch.Tensor, made: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Returns the elements that differ between fills: bool, of the tensor's shape."""
    a, b = made
    if a is None or b is None or not a.shape == b.shape == tensor.shape or not is_plain(a):
        return torch.ones(tensor.shape, dtype=torch.bool)
    if a.is_floating_point() and a.itemsize == 1:  # 8-bit floats have no comparison
        a, b = a.to(torch.float32), b.to(torch.float32)
    return ~((a == b) | (a.isnan() & b.isnan()))
