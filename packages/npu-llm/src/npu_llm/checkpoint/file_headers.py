"""Headers of safetensors files, read and validated before the weights are loaded.

The checks are safetensors' own. It reports truncated downloads and damaged files alike, without
figures, so the expected length is computed here after safetensors has rejected a file.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from npu_llm.errors import ModelError, invalid_file, truncated_file

__all__ = [
    "TensorSpec",
    "read_folder_headers",
]

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# The format's own limit on the header.
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class TensorSpec:
    """A tensor, as described by a header.

    Attributes:
        name: its name in the checkpoint.
        dtype: name of its dtype in the format, such as "BF16".
        shape: its shape.
        file: name of its file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str = ""

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        # The first number in a dtype's name is its bits: "BF16", "F8_E4M3".
        bits = re.search(r"\d+", self.dtype)
        return self.elements * (int(bits[0]) if bits else 8) // 8


def read_folder_headers(folder: Path) -> dict[str, TensorSpec]:
    """Reads the headers of all weights of a checkpoint.

    Args:
        folder: a folder with model.safetensors, or an index and the files that it names.

    Returns:
        The tensors by name; empty for a folder without safetensors files.

    Raises:
        ModelError: [weights-missing] if a file in the index is missing, [weights-truncated] if a
            file is shorter than its header declares, [weights-corrupt] if a header or the index is
            invalid.
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
            f"`{folder}` must contain all {len(names)} files that {_INDEX} names; "
            f"{len(absent)} are missing, such as {absent[0]}. Get the whole checkpoint.",
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
    try:
        with safe_open(path, "numpy") as file:
            parts = [(name, file.get_slice(name)) for name in file.keys()]  # noqa: SIM118
            return [
                TensorSpec(name, part.get_dtype(), tuple(part.get_shape()), path.name)
                for name, part in parts
            ]
    except SafetensorError as failure:
        size, needed = path.stat().st_size, _needed_bytes(path)
        if needed > size:
            raise _truncated(path, size, needed) from failure
        raise _corrupt(path, str(failure)) from failure


def _needed_bytes(path: Path) -> int:
    """Returns a file's length according to its header, as far as a damaged one can be read."""
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            return 8
        (length,) = struct.unpack("<Q", start)
        if length > _MAX_HEADER_BYTES:
            return 0
        text = file.read(length)
    if len(text) < length:
        return int(8 + length)
    try:
        header = json.loads(text)
        ends = [at["data_offsets"][1] for name, at in header.items() if name != "__metadata__"]
        return int(8 + length + max(ends, default=0))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        return 0


def _truncated(path: Path, size: int, needed: int) -> ModelError:
    return truncated_file(path, size, needed, code="weights-truncated")


def _corrupt(path: Path, reason: str) -> ModelError:
    return invalid_file(path, "safetensors", reason, code="weights-corrupt")
