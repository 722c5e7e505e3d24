"""Trials: repeats a call on the CPU, from a snapshot of the memory that it reads and writes."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from npu_ops.debugging.tool import Call

__all__ = [
    "GeneratorImage",
    "OpaqueImage",
    "Outcome",
    "Snapshot",
    "StorageImage",
    "TensorImage",
    "Trial",
    "below_autograd",
    "bytes_of",
    "device_state",
    "is_plain",
    "set_device_state",
]


_ALIGNMENT = 16  # bytes; a multiple of every dtype's size
_WIDE = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}


@dataclass(frozen=True)
class TensorImage:
    """A strided tensor in a snapshot.

    Attributes:
        storage: number of its storage in the snapshot.
        dtype: dtype of the elements.
        size: shape of the tensor.
        stride: strides, in elements.
        offset: offset of the first element in the storage's image, in elements.
        is_conj: whether the tensor is the conjugate of its memory (torch's lazy bit).
        is_neg: whether the tensor is the negative of its memory (torch's lazy bit).
        device: device of the original.
        requires_grad: the original's requires_grad, which some kernels depend on.
    """

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_conj: bool
    is_neg: bool
    device: str
    requires_grad: bool


@dataclass(frozen=True)
class OpaqueImage:
    """A tensor without strided memory (sparse, quantized, nested), copied as a whole.

    Attributes:
        value: the copy, on the CPU; a meta tensor is not copied.
        requires_grad: the original's requires_grad.
    """

    value: torch.Tensor
    requires_grad: bool


@dataclass(frozen=True)
class GeneratorImage:
    """A random generator: its state and device."""

    state: torch.Tensor
    device: str


@dataclass(frozen=True)
class StorageImage:
    """The part of a storage that tensors of the snapshot reach.

    Attributes:
        data: the bytes, on the CPU: (n,) uint8.
        start: offset of the part in the original, in bytes.
        original: the copied storage; None for a snapshot from disk.
    """

    data: torch.Tensor
    start: int
    original: torch.UntypedStorage | None


@dataclass(frozen=True)
class Snapshot:
    """A pytree whose tensors and generators are replaced by their images.

    Attributes:
        tree: the pytree.
        storages: the storages of its TensorImages.
    """

    tree: Any
    storages: tuple[StorageImage, ...]

    @classmethod
    def take(cls, tree: Any, *, is_whole: bool = False) -> Snapshot:
        """Copies a pytree of arguments or results.

        Args:
            tree: the pytree.
            is_whole: whether to copy whole storages, beyond the tensors' elements.
        """
        plain = [leaf for leaf in tree_leaves(tree) if is_plain(leaf)]
        numbers: dict[int, int] = {}
        groups: list[list[torch.Tensor]] = []
        for tensor in plain:
            place = numbers.setdefault(tensor.untyped_storage()._cdata, len(groups))
            if place == len(groups):
                groups.append([])
            groups[place].append(tensor)
        storages = tuple(_image(group, is_whole=is_whole) for group in groups)

        def replace(leaf: Any) -> Any:
            if is_plain(leaf):
                number = numbers[leaf.untyped_storage()._cdata]
                return _tensor_image(leaf, number, storages[number].start)
            if isinstance(leaf, torch.Tensor):
                return _opaque(leaf)
            if isinstance(leaf, torch.Generator):
                return GeneratorImage(leaf.get_state(), str(leaf.device))
            return leaf

        return cls(tree_map(replace, tree), storages)

    @functools.cached_property
    def images(self) -> list[TensorImage]:
        """The strided tensors, in order."""
        return [leaf for leaf in tree_leaves(self.tree) if isinstance(leaf, TensorImage)]

    @property
    def size_bytes(self) -> int:
        """Size of all storages in bytes."""
        return sum(storage.data.numel() for storage in self.storages)

    @property
    def can_widen(self) -> bool:
        """Whether the call can be run in higher precision.

        True if it has floats below float64, and no tensors of other dtypes share their memory.
        """
        is_any_narrow = any(dtype in _WIDE for found in self.dtypes for dtype in found)
        return is_any_narrow and all(
            len(found) == 1 or not found & _WIDE.keys() for found in self.dtypes
        )

    def restore(self, device: str = "cpu", *, is_wide: bool = False) -> Any:
        """Recreates the pytree.

        Args:
            device: device of everything that was not on the CPU.
            is_wide: whether to convert floats of at most 32 bits to float64, and complex to
                complex128.
        """
        there = [self._restore_storage(number, device, is_wide) for number in self._homes(device)]

        def replace(leaf: Any) -> Any:
            if isinstance(leaf, TensorImage):
                return _tensor(leaf, there[leaf.storage], is_wide=is_wide)
            if isinstance(leaf, OpaqueImage):
                wide = _WIDE.get(leaf.value.dtype) if is_wide else None
                made = leaf.value.clone().to("meta" if leaf.value.is_meta else device, wide)
                return made.requires_grad_(leaf.requires_grad)
            if isinstance(leaf, GeneratorImage):
                generator = torch.Generator("cpu" if leaf.device == "cpu" else device)
                generator.set_state(leaf.state)
                return generator
            if isinstance(leaf, torch.device) and leaf.type not in ("cpu", "meta"):
                return torch.device(device)
            if is_wide and isinstance(leaf, torch.dtype):
                return _WIDE.get(leaf, leaf)
            return leaf

        return tree_map(replace, self.tree)

    def _homes(self, device: str) -> Iterator[tuple[int, str]]:
        homes = dict.fromkeys(range(len(self.storages)), "cpu")
        for image in self.images:
            if image.device != "cpu":
                homes[image.storage] = device
        return iter(homes.items())

    @functools.cached_property
    def dtypes(self) -> tuple[frozenset[torch.dtype], ...]:
        """Returns, for each storage, the dtypes of the tensors that use it."""
        found: list[set[torch.dtype]] = [set() for _ in self.storages]
        for image in self.images:
            found[image.storage].add(image.dtype)
        return tuple(map(frozenset, found))

    def _restore_storage(
        self, home: tuple[int, str], device: str, is_wide: bool
    ) -> torch.UntypedStorage:
        number, place = home
        data = self.storages[number].data
        dtypes = self.dtypes[number]
        narrow = next(iter(dtypes)) if len(dtypes) == 1 else None
        if is_wide and narrow in _WIDE:
            whole = data.numel() // narrow.itemsize
            data = data[: whole * narrow.itemsize].view(narrow).to(_WIDE[narrow])
        return data.to(place, copy=True).untyped_storage()


def is_plain(leaf: Any) -> bool:
    """Whether a leaf is a tensor that can be copied byte by byte."""
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.layout is torch.strided
        and not (leaf.is_quantized or leaf.is_nested or leaf.is_meta)
    )


def bytes_of(storage: torch.UntypedStorage, start: int, count: int) -> torch.Tensor:
    """Returns a view of part of a storage: (count,) uint8, on its device."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, start, (count,), (1,))


def _opaque(tensor: torch.Tensor) -> OpaqueImage:
    value = tensor.detach()
    return OpaqueImage(value if tensor.is_meta else value.cpu().clone(), tensor.requires_grad)


def _image(group: list[torch.Tensor], *, is_whole: bool) -> StorageImage:
    storage = group[0].untyped_storage()
    reached = [_extent(tensor) for tensor in group if tensor.numel()]
    if is_whole:
        reached = [(0, storage.nbytes())]
    start = min((first for first, _ in reached), default=0) // _ALIGNMENT * _ALIGNMENT
    end = min(max((last for _, last in reached), default=0), storage.nbytes())
    count = max(0, end - start)
    data = bytes_of(storage, start, count)
    return StorageImage(data.cpu() if data.device.type != "cpu" else data.clone(), start, storage)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the offset of a tensor's first byte in its storage, and of the end."""
    first = tensor.storage_offset()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = first + sum((size - 1) * stride for size, stride in steps)
    return int(first * tensor.itemsize), int((last + 1) * tensor.itemsize)


def _tensor_image(tensor: torch.Tensor, storage: int, start: int) -> TensorImage:
    offset = max(0, tensor.storage_offset() - start // tensor.itemsize)
    return TensorImage(
        storage,
        tensor.dtype,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(offset),
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.device.type,
        tensor.requires_grad,
    )


def _tensor(image: TensorImage, storage: torch.UntypedStorage, *, is_wide: bool) -> torch.Tensor:
    dtype = _WIDE.get(image.dtype, image.dtype) if is_wide else image.dtype
    made = torch.empty(0, dtype=dtype, device=storage.device)
    made = made.set_(storage, image.offset, image.size, image.stride)
    made = made.conj() if image.is_conj else made
    made = torch._neg_view(made) if image.is_neg else made
    return made.requires_grad_(image.requires_grad)


Prepare = Callable[[Sequence[torch.Tensor]], None]

# The CPU's random generator is global: one call at a time uses it.
_stream = threading.RLock()
# Ops that access their whole storage, beyond their tensors.
_WHOLE = ("aten::as_strided", "aten::set_", "aten::resize")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call.

    Attributes:
        args: positional arguments after the call.
        kwargs: keyword arguments after the call.
        results: the returned values.
        homes: storage of each strided argument before the call.
        state: random state after the call; None for a device without a generator.
        error: the raised error; None if the call succeeded.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any
    homes: tuple[torch.UntypedStorage, ...]
    state: torch.Tensor | None
    error: Exception | None = None

    @functools.cached_property
    def tensors(self) -> list[torch.Tensor]:
        """The tensor arguments, in order."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if _is_tensor(leaf)]


class Trial:
    """A call with copies of its arguments and of its device's random state, taken before it runs.

    Attributes:
        call: the call.
        before: the arguments, as `(args, kwargs)`.
        state: random state of its device.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        is_whole = call.op._schema.name.startswith(_WHOLE)
        self.before = Snapshot.take((call.args, call.kwargs), is_whole=is_whole)
        self.state = device_state(call.device)

    def on_host(self, *, is_wide: bool = False, prepare: Prepare | None = None) -> Outcome:
        """Runs the call on the CPU from the same random state; preserves the process's state.

        Args:
            is_wide: whether to run in float64 instead of the arguments' dtypes.
            prepare: function that modifies the copies of the tensor arguments before the call.
        """
        args, kwargs = self.before.restore("cpu", is_wide=is_wide)
        homes = _homes(args, kwargs)
        with _stream, below_autograd(self.call), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the device's own call warns already
            kept = torch.get_rng_state()
            try:
                if self.state is not None:
                    torch.set_rng_state(self.state)
                if prepare is not None:
                    prepare([leaf for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)])
                results = self.call.op(*args, **kwargs)
                return Outcome(args, kwargs, results, homes, torch.get_rng_state())
            except Exception as error:  # noqa: BLE001  # a finding, reported by the caller
                return Outcome(args, kwargs, None, homes, None, error)
            finally:
                torch.set_rng_state(kept)

    def on_device(self) -> Outcome:
        """Runs the call on its arguments' device; an exception is stored in the outcome."""
        args, kwargs = self.call.args, self.call.kwargs
        homes = _homes(args, kwargs)
        try:
            results = self.call.op(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # the tool raises it again
            return Outcome(args, kwargs, None, homes, None, error)
        return Outcome(args, kwargs, results, homes, device_state(self.call.device))


@contextmanager
def below_autograd(call: Call) -> Iterator[None]:
    """Runs below autograd, which records nothing; kernels still see whether grad is enabled."""
    with torch._C._AutoDispatchBelowAutograd(), torch.set_grad_enabled(call.is_grad_enabled):
        yield


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _homes(args: Any, kwargs: Any) -> tuple[torch.UntypedStorage, ...]:
    return tuple(leaf.untyped_storage() for leaf in tree_leaves((args, kwargs)) if is_plain(leaf))


def device_state(device: torch.device) -> torch.Tensor | None:
    """Returns the random state of a device, which on npu has the CPU's format."""
    if device.type == "cpu":
        return torch.get_rng_state()
    module = torch.get_device_module(device)
    return module.get_rng_state(device) if hasattr(module, "get_rng_state") else None


def set_device_state(device: torch.device, state: torch.Tensor) -> None:
    """Sets the random state of a device."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)
