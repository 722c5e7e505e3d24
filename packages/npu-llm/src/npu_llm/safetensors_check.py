"""Reads the headers of a checkpoint's safetensors files and checks them against the files.

Reading the weights is transformers' work; see npu_llm.checkpoint. Layout: the safetensors README, a
length of 8 bytes, a JSON header of that length, the data.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_llm.errors import ModelError

__all__ = ["TensorSpec", "read_folder_headers"]

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# The format's own bound on the header.
_MAX_HEADER_BYTES = 100_000_000
# Bits of a number, by the format's names of dtypes; what it adds later is the reader's to check.
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32,
    "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as a header describes it.

    Attributes:
        name: its name in the checkpoint.
        dtype: the format's name of its dtype, such as "BF16".
        shape: its sizes.
        size_bytes: bytes in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def read_folder_headers(folder: Path) -> dict[str, TensorSpec]:
    """Reads the headers of all weights of a checkpoint.

    Args:
        folder: with model.safetensors, or an index and the files that it names.

    Returns:
        The tensors by name; none for a folder that has no safetensors files.

    Raises:
        ModelError: [weights-missing] when a file that the index names is not there,
            [weights-truncated] when one ends before its header says, [weights-corrupt] when a
            header or the index makes no sense.
    """
    index = folder / _INDEX
    if index.is_file():
        names = _indexed(index)
    elif (folder / _SINGLE).is_file():
        names = [_SINGLE]
    else:
        return {}
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise ModelError(
            f"{folder}: the model's weights must all be there; of the {len(names)} files that "
            f"{_INDEX} names {len(absent)} are missing, such as {absent[0]}. Get the whole "
            "checkpoint.",
            code="weights-missing",
        )
    found: dict[str, TensorSpec] = {}
    for name in names:
        found.update({tensor.name: tensor for tensor in _read_header(folder / name)})
    return found


def _indexed(index: Path) -> list[str]:
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        if not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("it names no files")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        raise _corrupt(index, f"the index cannot be read: {failure!r}") from failure
    return names


def _read_header(path: Path) -> list[TensorSpec]:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise _truncated(path, size, 8)
        (length,) = struct.unpack("<Q", start)
        if length > _MAX_HEADER_BYTES:
            raise _corrupt(path, f"its header would have {length:,} bytes")
        text = file.read(length)
    if len(text) < length:
        raise _truncated(path, size, 8 + length)
    try:
        header = json.loads(text)
        tensors = [_spec(name, at) for name, at in header.items() if name != "__metadata__"]
        end = max((at["data_offsets"][1] for name, at in header.items() if name != "__metadata__"),
                  default=0)  # fmt: skip
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as failure:
        raise _corrupt(path, f"its header cannot be read: {failure!r}") from failure
    if 8 + length + end > size:
        raise _truncated(path, size, 8 + length + end)
    return tensors


def _spec(name: str, at: dict[str, Any]) -> TensorSpec:
    first, end = at["data_offsets"]
    shape = tuple(int(size) for size in at["shape"])
    spec = TensorSpec(name, str(at["dtype"]), shape, int(end) - int(first))
    bits = _BITS.get(spec.dtype)
    is_sound = first >= 0 and spec.size_bytes >= 0 and all(size >= 0 for size in shape)
    if not is_sound or (bits is not None and spec.elements * bits != spec.size_bytes * 8):
        raise ValueError(
            f"{name} of shape {list(shape)} in {spec.dtype} cannot take {spec.size_bytes:,} bytes"
        )
    return spec


def _truncated(path: Path, size: int, needed: int) -> ModelError:
    return ModelError(
        f"{path}: the file is cut short: its header asks for {needed:,} bytes, it has {size:,}. "
        "Download it again.",
        code="weights-truncated",
    )


def _corrupt(path: Path, reason: str) -> ModelError:
    return ModelError(
        f"{path}: not a sound safetensors file: {reason}. Download it again.",
        code="weights-corrupt",
    )
