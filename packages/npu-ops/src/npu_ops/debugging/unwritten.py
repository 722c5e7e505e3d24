"""Unwritten memory: elements with undefined contents, and the values computed from them.

Factories without a value (`torch.empty`, ...) give such memory, and tensors that grow (`resize_`).
A write ends it, element by element; a call that reads it passes it on to the results that depend on
it, which is found by making the call again on the CPU with two other fills of those elements. What
a tool says of such values is its own business.
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


# In-place ops that write all of their first argument without reading it.
_OVERWRITING = frozenset(
    {
        *("_foreach_copy_", "_foreach_zero_", "bernoulli_", "cauchy_", "copy_", "exponential_"),
        *("fill_", "geometric_", "log_normal_", "normal_", "random_", "uniform_", "zero_"),
    }
)
# Of both signs and sizes, so that a clamp, a sign or a square of them differs too; a whole number
# may be an index.
_FILLS = ((-7.25, 0), (23.5, 1))


@dataclass
class _Region:
    """The memory of one storage.

    Attributes:
        storage: whose it is; a weak reference keeps its number from being used again.
        found: its bytes as they were, on the CPU: (n,) uint8. One that differs was written in a
            way that no op shows, such as through numpy.
        mask: where nothing wrote: (n,) bool.
    """

    storage: StorageWeakRef
    found: torch.Tensor
    mask: torch.Tensor

    @property
    def is_gone(self) -> bool:
        """Whether nothing uses the storage any more."""
        return bool(self.storage.expired())  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Reading:
    """A call before it runs.

    Attributes:
        call: the call.
        unwritten: for each tensor among its arguments the elements that nothing wrote; None where
            there are none, or where the call overwrites the tensor without reading it.
        overwritten: the ids of the tensors of the second kind.
        trial: copies to make it again from; None where it reads no such element.
        sizes: of the storages that it may let grow, by their numbers, in bytes.
    """

    call: Call
    unwritten: tuple[torch.Tensor | None, ...]
    overwritten: frozenset[int]
    trial: Trial | None
    sizes: Mapping[int, int]

    @property
    def is_open(self) -> bool:
        """Whether the call reads an element that nothing wrote."""
        return any(mask is not None for mask in self.unwritten)


class UnwrittenMemory:
    """Follows calls, and knows of each element whether something wrote it.

    Memory that was there before the first call counts as written.
    """

    def __init__(self) -> None:
        self._regions: dict[int, _Region] = {}

    def before(self, call: Call) -> Reading:
        """Looks at a call's arguments."""
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
        """Takes note of what a call wrote and gave.

        Returns:
            Of a call that read such memory: by the id of a result or of a written argument, what
            the CPU makes of it with finite numbers in the place of what nothing wrote.
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
        """The elements of a tensor that nothing wrote: bool, of its shape; None if there are none.

        An element of which some bytes were written is written.
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
        """Results and written arguments of the call with a fill; none if it cannot be made."""
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
        """Says which elements of a tensor nothing wrote; None for that all are written."""
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
        """Returns the state of a tensor's storage; the part by which it grew is unwritten."""
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
    """The tensors, by id, that the call writes in whole without reading them."""
    arguments = call.op._schema.arguments
    found: list[Any] = [call.kwargs.get(one.name) for one in arguments if one.is_out]
    if call.op._schema.name.removeprefix("aten::") in _OVERWRITING:
        found += call.args[:1]
    return frozenset(id(leaf) for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor))


def _is_about_place(call: Call) -> bool:
    """Whether the call reads where tensors are and how they are laid out, not their values."""
    return is_undefined(call.op) or call.op.is_view or torch.Tag.inplace_view in call.op.tags


def _is_repeatable(call: Call) -> bool:
    """Whether making the call again concerns this process alone: a collective waits for others."""
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
    """The part of a storage's mask that is a tensor's: (*shape, bytes of an element)."""
    wide = tensor.itemsize
    steps = (*(step * wide for step in tensor.stride()), 1)
    return mask.as_strided((*tensor.shape, wide), steps, tensor.storage_offset() * wide)


def _fill(tensor: torch.Tensor, mask: torch.Tensor, fill: tuple[float, int]) -> None:
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim] > 1:  # an expanded tensor has the element once
            tensor, mask = tensor.narrow(dim, 0, 1), mask.narrow(dim, 0, 1)
    is_number = tensor.is_floating_point() or tensor.is_complex()
    tensor.detach().masked_fill_(mask, fill[0] if is_number else fill[1])


def _dependents(tensor: torch.Tensor, made: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """The elements that differ from fill to fill: bool, of the tensor's shape."""
    a, b = made
    if a is None or b is None or not a.shape == b.shape == tensor.shape or not is_plain(a):
        return torch.ones(tensor.shape, dtype=torch.bool)
    if a.is_floating_point() and a.itemsize == 1:  # eight bits have no comparison of their own
        a, b = a.to(torch.float32), b.to(torch.float32)
    return ~((a == b) | (a.isnan() & b.isnan()))
