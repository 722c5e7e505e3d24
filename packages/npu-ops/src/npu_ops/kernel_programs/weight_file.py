"""The file of a program's weights, as the kernels read them: written piece by piece, then mapped.

It is a safetensors file whose tensors begin at multiples of 64 bytes, so that a mapped file can be
used where it is. Nothing is read at a start but the header.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from npu_ops.errors import DamagedFileError
from npu_ops.kernel_programs.weights import PackedLinear

__all__ = ["read_weights", "write_weights"]

_ALIGNMENT = 64
_VERSION = 1
# Another layout of packed weights gets another name; a layout is the same on all machines.
_LAYOUT = "blocks of 16 outputs, slabs of 64 inputs"
_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_PARTS = ("data", "scales", "zeros")


@dataclass
class _Writer:
    """Tensors that were written so far."""

    file: BinaryIO
    header: dict[str, Any]
    offset: int = 0

    def write(self, name: str, tensor: torch.Tensor) -> None:
        content: Any = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
        self.file.write(content)
        end = self.offset + len(content)
        self.header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [self.offset, end],
        }
        padding = -end % _ALIGNMENT
        if padding:
            # The format allows no holes: padding is a tensor too.
            self.file.write(bytes(padding))
            self.header[f"{name}.padding"] = {
                "dtype": "U8",
                "shape": [padding],
                "data_offsets": [end, end + padding],
            }
        self.offset = end + padding


def write_weights(path: Path, items: Iterable[tuple[str, PackedLinear | torch.Tensor]]) -> None:
    """Writes weights one by one, so that only one of them need be in memory.

    Args:
        path: the file; a second one beside it holds the tensors until the header is known.
        items: names and weights.

    Raises:
        OSError: there is no room for it.
    """
    packed: dict[str, Any] = {}
    draft = path.with_name(f"{path.name}.tensors")
    try:
        with draft.open("wb") as file:
            writer = _Writer(file, {})
            for name, item in items:
                if isinstance(item, torch.Tensor):
                    writer.write(name, item)
                    continue
                packed[name] = [item.kind, item.outputs, item.inputs, item.group]
                for part in _PARTS:
                    tensor = getattr(item, part)
                    if tensor is not None:
                        writer.write(f"{name}.{part}", tensor)
        metadata = {"version": str(_VERSION), "layout": _LAYOUT, "packed": json.dumps(packed)}
        header = json.dumps({"__metadata__": metadata, **writer.header}).encode()
        header += b" " * (-(len(header) + 8) % _ALIGNMENT)
        _prepend(len(header).to_bytes(8, "little") + header, draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _prepend(header: bytes, draft: Path, path: Path) -> None:
    with path.open("wb") as file, draft.open("rb") as tensors:
        file.write(header)
        while chunk := tensors.read(1 << 24):
            file.write(chunk)


def read_weights(path: Path) -> dict[str, PackedLinear | torch.Tensor]:
    """Maps a file of weights; their pages are read when they are used.

    Returns:
        The weights by name. Their memory must not be written to.

    Raises:
        OSError: the file cannot be read.
        DamagedFileError: [weights-file] if it is cut short, not such a file, or one of a version or
            layout that is not known here.
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
        if version != str(_VERSION) or layout != _LAYOUT:
            raise _damaged(path, f"it has version {version}, layout {layout!r}")
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    try:
        tensors = {
            name: _tensor(memory, 8 + length, entry)
            for name, entry in header.items()
            if not name.endswith(".padding")
        }
        result: dict[str, PackedLinear | torch.Tensor] = {}
        for name, (kind, outputs, inputs, group) in packed.items():
            result[name] = PackedLinear(
                kind,
                outputs,
                inputs,
                tensors.pop(f"{name}.data"),
                tensors.pop(f"{name}.scales", None),
                tensors.pop(f"{name}.zeros", None),
                group=group,
            )
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as failure:
        raise _damaged(path, "its tensors do not lie in it") from failure
    return {**result, **tensors}


def _tensor(memory: mmap.mmap, start: int, entry: dict[str, Any]) -> torch.Tensor:
    dtype = _DTYPES[entry["dtype"]]
    first, last = entry["data_offsets"]
    if not 0 <= first <= last or start + last > len(memory):
        raise ValueError("a tensor lies outside the file")
    if first == last:
        return torch.empty(entry["shape"], dtype=dtype)
    flat = torch.frombuffer(
        memory, dtype=dtype, count=(last - first) // dtype.itemsize, offset=start + first
    )
    return flat.view(entry["shape"])


def _damaged(path: Path, what: str) -> DamagedFileError:
    return DamagedFileError(
        f"{path}: must be a file of packed weights as this version writes them; got one of which "
        f"{what}. Remove it, and have it written again.",
        code="weights-file",
    )
