"""Packed weights, and their memory-mapped files. Does not need torch.

Arrays are torch tensors if torch is loaded, otherwise numpy arrays.
"""

from __future__ import annotations

import contextlib
import json
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from npu_ops.errors import DamagedFileError, OperatorInputError
from npu_ops.kernel_programs.native import is_torch_loaded

if TYPE_CHECKING:
    import torch

__all__ = [
    "BLOCK_KINDS",
    "BLOCK_OUTPUTS",
    "FIELDS",
    "LAYOUT",
    "VERSION",
    "BlockKind",
    "PackedKind",
    "PackedLinear",
    "mix",
    "read_weights",
]


BlockKind = Literal[
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_nl",
    "iq4_xs",
    "mxfp4",
]
BLOCK_KINDS: tuple[BlockKind, ...] = get_args(BlockKind)
PackedKind = Literal["float32", "bfloat16", "float16", "int8", "int4", BlockKind, "mixed"]
BLOCK_OUTPUTS = 16
VERSION = 1
# Each layout of packed weights has a different name; layouts are the same on all machines.
LAYOUT = "blocks of 16 outputs, slabs of 64 inputs"
FIELDS = ("data", "scales", "zeros")
_DTYPES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "U8": "uint8",
    "I32": "int32",
    "I64": "int64",
}


@dataclass(frozen=True)
class PackedLinear:
    """A weight (outputs, inputs) in the kernels' layout.

    Attributes:
        kind: format of its elements.
        outputs: number of outputs.
        inputs: number of inputs.
        data: uint8, the elements; empty for "mixed".
        scales: int8: (outputs,) float32; int4: (blocks, groups, 16) float16; None for floats.
        zeros: uint8 of the scales' shape; None if all are 128 or 8.
        group: number of inputs that share a scale, for int4; else 0.
        parts: for kind "mixed": weights with different block formats, each for some of the outputs.
        alternating: whether blocks of 16 outputs of two parts alternate, like the rows of
            `interleave`; otherwise the parts are concatenated.
    """

    kind: PackedKind
    outputs: int
    inputs: int
    data: torch.Tensor
    scales: torch.Tensor | None = None
    zeros: torch.Tensor | None = None
    group: int = 0
    parts: tuple[PackedLinear, ...] = ()
    alternating: bool = False

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        tensors = (self.data, self.scales, self.zeros)
        own = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        return own + sum(part.nbytes for part in self.parts)


def mix(parts: Sequence[PackedLinear], *, alternating: bool = False) -> PackedLinear:
    """Returns a weight with outputs of several block formats.

    Args:
        parts: weights of BLOCK_KINDS with the same inputs. All but the last must have a multiple of
            16 outputs.
        alternating: whether 16 outputs of the first part and 16 of the second alternate. Both must
            have the same number of outputs, a multiple of 16.

    Raises:
        OperatorInputError: [weight-shape] for other parts.
    """
    sizes = [part.outputs for part in parts]
    if (
        len({part.inputs for part in parts}) != 1
        or any(part.kind not in BLOCK_KINDS for part in parts)
        or any(size % BLOCK_OUTPUTS for size in (sizes if alternating else sizes[:-1]))
        or (alternating and (len(sizes) != 2 or sizes[0] != sizes[1]))
    ):
        raise OperatorInputError(
            "mix: `parts` must be weights in blocks with the same inputs and a multiple of 16 "
            f"outputs, got {[(part.kind, part.outputs, part.inputs) for part in parts]}. Pack them "
            "in a common kind.",
            code="weight-shape",
        )
    if len(parts) == 1:
        return parts[0]
    empty = _array(b"", "uint8", 0, 0)
    return PackedLinear(
        "mixed", sum(sizes), parts[0].inputs, empty, parts=tuple(parts), alternating=alternating
    )


def read_weights(path: Path) -> dict[str, PackedLinear | torch.Tensor]:
    """Memory-maps a file of weights; pages are read on first use.

    Returns:
        The weights by name. Their memory is read-only.

    Raises:
        OSError: the file cannot be read.
        DamagedFileError: [weights-file] if it is truncated, not a weights file, or of an unknown
            version or layout.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise _damaged(path, "it is cut short")
        try:
            header = json.loads(file.read(length))
            metadata = header.pop("__metadata__")
            version, layout = metadata["version"], metadata["layout"]
            packed = json.loads(metadata["packed"])
        except (ValueError, KeyError, TypeError, AttributeError) as failure:
            raise _damaged(path, "its header cannot be read") from failure
        if version != str(VERSION) or layout != LAYOUT:
            raise _damaged(path, f"it has version {version}, layout {layout!r}")
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # what is read from a disk comes in huge pages then
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    try:
        tensors = {
            name: _tensor(memory, 8 + length, entry)
            for name, entry in header.items()
            if not name.endswith(".padding")
        }
        result: dict[str, PackedLinear | torch.Tensor] = {}
        for name, described in packed.items():
            result[name] = _read_packed(name, described, tensors)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as failure:
        raise _damaged(path, "its tensors are not in it") from failure
    return {**result, **tensors}


def _read_packed(name: str, described: list[Any], tensors: dict[str, torch.Tensor]) -> PackedLinear:
    """Returns a weight, and removes its tensors from the mapping."""
    kind, outputs, inputs, group, *rest = described
    if kind == "mixed":
        alternating, of_parts = rest
        parts = [
            _read_packed(f"{name}.{number}", part, tensors) for number, part in enumerate(of_parts)
        ]
        return mix(parts, alternating=bool(alternating))
    data = tensors.pop(f"{name}.data")
    scales, zeros = (tensors.pop(f"{name}.{field}", None) for field in FIELDS[1:])
    return PackedLinear(kind, outputs, inputs, data, scales, zeros, group=group)


def _tensor(memory: mmap.mmap, start: int, entry: dict[str, Any]) -> Any:
    dtype = _DTYPES[entry["dtype"]]
    first, last = entry["data_offsets"]
    if not 0 <= first <= last or start + last > len(memory):
        raise ValueError("a tensor is outside the file")
    return _array(memory, dtype, start + first, last - first).reshape(entry["shape"])


def _array(memory: Any, dtype: str, start: int, size: int) -> Any:
    """Returns bytes as a flat tensor, or as a numpy array without torch."""
    if not is_torch_loaded():
        itemsize = np.dtype(dtype).itemsize
        return np.frombuffer(memory, dtype, size // itemsize, start if size else 0)
    import torch

    kind: torch.dtype = getattr(torch, dtype)
    if not size:
        return torch.empty(0, dtype=kind)
    return torch.frombuffer(memory, dtype=kind, count=size // kind.itemsize, offset=start)


def _damaged(path: Path, what: str) -> DamagedFileError:
    return DamagedFileError(
        f"`{path}` must be a file of packed weights as this version writes them, got one of which "
        f"{what}. Remove it, and have it written again.",
        code="weights-file",
    )
