"""Headers of GGUF and safetensors files, read and checked against the files before they are loaded.

GGUF is read by hand, because gguf's GGUFReader makes an array for each token of the vocabulary (19
s instead of 0.5 s for 128,000 tokens and merges, gguf 0.19), and reports for a truncated file that
a dtype does not divide an axis. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
For safetensors the checks are its own. It reports the same for a truncated download as for damage,
without figures, so the expected length is read here once safetensors has refused a file.
"""

from __future__ import annotations

import json
import math
import mmap
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from npu_llm.errors import ModelError

__all__ = [
    "GgufHeader",
    "TensorSpec",
    "read_folder_headers",
    "read_gguf_header",
]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
# Type -> elements and bytes of a block, for the types that every release of gguf knows. Of the
# others gguf is asked, whose import takes as long as all else that `npu-llm info` does.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 40), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66),
}  # fmt: skip


@dataclass(frozen=True)
class GgufHeader:
    """What the header says.

    Attributes:
        architecture: ggml's name for the architecture, such as "llama".
        tensor_count: how many tensors there are.
        size_bytes: how long the file must be to hold them.
        metadata: the scalars and strings among the key-value pairs, without arrays.
        shapes: the tensors' sizes by name, innermost first, as in the file.
    """

    architecture: str
    tensor_count: int
    size_bytes: int
    metadata: dict[str, Any] = field(repr=False)
    shapes: dict[str, tuple[int, ...]] = field(repr=False)


def read_gguf_header(path: Path) -> GgufHeader:
    """Reads and checks a GGUF file's header.

    Args:
        path: an existing file.

    Raises:
        ModelError: [gguf-truncated] if the file ends before the data that its header promises,
            [gguf-corrupt] if the header makes no sense.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if size == 0:
            raise _truncated(path, size, 24)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(path, data, size).header()


class _Walk:
    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self._path = path
        self._data = data
        self._size = size
        self._at = 0
        self._shapes: dict[str, tuple[int, ...]] = {}

    def header(self) -> GgufHeader:
        if self._bytes(4) != _MAGIC:
            raise self._corrupt(f"it must start with {_MAGIC!r}, got {self._data[:4]!r}")
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise self._corrupt(f"its version must be 2 or 3, got {version}")
        tensor_count, pair_count = self._scalar("Q"), self._scalar("Q")
        # A tensor takes at least 32 bytes of header and a pair 13: larger counts are noise.
        if tensor_count * 32 + pair_count * 13 > self._size:
            raise self._corrupt(f"{tensor_count} tensors and {pair_count} pairs do not fit in it")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._string()
            value = self._value(self._scalar("I"))
            if value is not None:
                metadata[key] = value
        ends = [self._tensor_end() for _ in range(tensor_count)]
        alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT)) or 1
        start = -(-self._at // alignment) * alignment
        needed = start + max(ends, default=0)
        if needed > self._size:
            raise _truncated(self._path, self._size, needed)
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise self._corrupt("it names no general.architecture")
        return GgufHeader(architecture, tensor_count, needed, metadata, self._shapes)

    def _tensor_end(self) -> int:
        """Returns where a tensor ends, relative to the start of the data."""
        name = self._string()
        rank = self._scalar("I")
        if rank > 8:
            raise self._corrupt(f"tensor {name!r} has {rank} dimensions")
        shape = tuple(self._scalar("Q") for _ in range(rank))
        elements = math.prod(shape)
        self._shapes[name] = shape
        kind, offset = self._scalar("I"), self._scalar("Q")
        found = _BLOCKS.get(kind) or _block_by_gguf(kind)
        if found is None:
            raise self._corrupt(f"tensor {name!r} has the unknown type {kind}")
        block, block_bytes = found
        if elements % block:
            raise self._corrupt(f"tensor {name!r} has {elements} elements in blocks of {block}")
        return int(offset + elements // block * block_bytes)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            self._skip_array()
            return None
        if kind not in _SCALARS:
            raise self._corrupt(f"a value has the unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _skip_array(self) -> None:
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind in _SCALARS:
            self._skip(struct.calcsize("<" + _SCALARS[kind]) * count)
            return
        if count > self._size:
            raise _truncated(self._path, self._size, count)
        if kind == _STRING:
            self._skip_strings(count)
            return
        for _ in range(count):
            self._value(kind)

    def _skip_strings(self, count: int) -> None:
        # A vocabulary has 100,000 of them, so no call is made for each.
        data, at, size = self._data, self._at, self._size
        read_length = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > size:
                raise _truncated(self._path, size, at + 8)
            at += 8 + read_length(data, at)[0]
        self._at = at
        self._skip(0)

    def _string(self) -> str:
        return self._bytes(self._scalar("Q")).decode("utf-8", errors="replace")

    def _scalar(self, code: str) -> Any:
        width = struct.calcsize("<" + code)
        return struct.unpack("<" + code, self._bytes(width))[0]

    def _bytes(self, count: int) -> bytes:
        start = self._at
        self._skip(count)
        return self._data[start : self._at]

    def _skip(self, count: int) -> None:
        if self._at + count > self._size:
            raise _truncated(self._path, self._size, self._at + count)
        self._at += count

    def _corrupt(self, reason: str) -> ModelError:
        return ModelError(
            f"{self._path}: must be a valid GGUF file; {reason}. Download it again.",
            code="gguf-corrupt",
        )


def _block_by_gguf(kind: int) -> tuple[int, int] | None:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        return None
    return block, block_bytes


def _truncated(path: Path, size: int, needed: int) -> ModelError:
    return ModelError(
        f"{path}: must be a whole file; its header asks for {needed:,} bytes, it has {size:,}. "
        "Download it again.",
        code="gguf-truncated",
    )


_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# The format's own limit on the header.
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class TensorSpec:
    """A tensor, as described by a header.

    Attributes:
        name: its name in the checkpoint.
        dtype: the format's name for its dtype, such as "BF16".
        shape: its sizes.
        file: the name of the file that holds it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str = ""

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
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
        The tensors by name; none for a folder without safetensors files.

    Raises:
        ModelError: [weights-missing] if a file that the index names is missing,
            [weights-truncated] if one ends before its header says, [weights-corrupt] if a header or
            the index makes no sense.
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
            f"{folder}: must contain all {len(names)} files that {_INDEX} names; "
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
            raise _truncated_weights(path, size, needed) from failure
        raise _corrupt(path, str(failure)) from failure


def _needed_bytes(path: Path) -> int:
    """Returns how long a file should be by its header, as far as a damaged one can be read."""
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


def _truncated_weights(path: Path, size: int, needed: int) -> ModelError:
    return ModelError(
        f"{path}: must be a whole file; its header asks for {needed:,} bytes, it has {size:,}. "
        "Download it again.",
        code="weights-truncated",
    )


def _corrupt(path: Path, reason: str) -> ModelError:
    return ModelError(
        f"{path}: must be a valid safetensors file; {reason}. Download it again.",
        code="weights-corrupt",
    )
