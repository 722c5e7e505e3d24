"""The GGUF container: metadata and tensors of all parts of a model, mapped and validated.

The header is parsed here, because gguf's GGUFReader creates an array for each token of the
vocabulary (19 s instead of 0.5 s for 128,000 tokens and merges, gguf 0.19), and for a truncated
file reports that a dtype does not divide an axis. Counts, lengths and offsets are checked against
the file's size before they are used. Layout:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npu_llm.errors import ModelError, invalid_file, truncated_file

__all__ = ["PLAIN_TYPES", "GgufFile", "GgufTensor", "find_parts", "open_gguf"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MOST_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
# Type -> name, elements and bytes of a block, for the types in every release of gguf. Others are
# looked up in gguf: importing it takes as long as the rest of `npu-llm info`.
_BLOCKS = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
    26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
}  # fmt: skip
_PLAIN = {
    "F32": np.float32, "F16": np.float16, "F64": np.float64,
    "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
}  # fmt: skip
# Numeric types without block scales.
PLAIN_TYPES = frozenset({*_PLAIN, "BF16"})
# Number of blocks dequantized at a time: their values fit into a core's cache.
_CHUNK = 1 << 11
_PART = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MOST_NAMED = 3


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a file, read on demand.

    Attributes:
        name: ggml's name, such as "blk.0.attn_q.weight".
        type: name of its block type, such as "Q4_K" or "F32".
        shape: its shape, outermost size first.
        size_bytes: its size in the file.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    size_bytes: int
    _mapped: np.ndarray = field(repr=False, compare=False)

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def blocks(self) -> np.ndarray:
        """Returns the file's mapped bytes: (rows, bytes of a row) uint8."""
        rows = self.elements // self.shape[-1] if self.elements else 0
        return self._mapped.reshape(rows, -1) if rows else np.empty((0, 0), np.uint8)

    def values(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Returns the values in float32.

        Args:
            rows: (count,) indices of rows, with all dimensions except the last flattened; None for
                all.

        Returns:
            In the tensor's shape, or (count, columns); mapped if the file stores float32.

        Raises:
            ModelError: [gguf-type] for an unsupported block type.
        """
        blocks = self.blocks()
        chosen = blocks if rows is None else blocks[rows]
        values = _unpack(chosen, self.type, self.name)
        return values.reshape(self.shape if rows is None else (len(chosen), self.shape[-1]))


@dataclass(frozen=True)
class GgufFile:
    """An open model with all its parts.

    Attributes:
        paths: the file, or all parts of a split one in their order.
        architecture: ggml's name for the architecture, such as "llama".
        metadata: key-value pairs of the first part; arrays are lists that are read on demand.
        tensors: tensors of all parts by name.
        size_bytes: minimum size of the files for these tensors.
    """

    paths: tuple[Path, ...]
    architecture: str
    metadata: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, GgufTensor] = field(repr=False)
    size_bytes: int

    @property
    def path(self) -> Path:
        """The first part, for messages."""
        return self.paths[0]


def open_gguf(path: Path) -> GgufFile:
    """Opens a GGUF file; for a split one, all parts from any of them.

    Args:
        path: an existing file.

    Raises:
        ModelError: [gguf-truncated] if a file is shorter than its header declares, [gguf-corrupt]
            if a header is invalid, [gguf-split] if parts are missing or do not belong together.
    """
    paths = find_parts(path)
    parts = [_read_part(path)] if len(paths) == 1 else [_read_part(one) for one in paths]
    first = parts[0]
    count = _count_of(first)
    if count != len(paths):
        raise _bad_split(
            path, f"it is one of {count} parts, and its name must end in -00001-of-{count:05}.gguf"
        )
    tensors: dict[str, GgufTensor] = {}
    for number, part in enumerate(parts):
        if _count_of(part) != count or part.metadata.get("split.no", 0) != number:
            raise _bad_split(part.path, f"it must be part {number + 1} of {count} by its metadata")
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise _bad_split(part.path, f"another part has {name} too")
            tensors[name] = tensor
    promised = first.metadata.get("split.tensors.count", len(tensors))
    if promised != len(tensors):
        raise _bad_split(path, f"the parts must have {promised} tensors, got {len(tensors)}")
    architecture = first.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise _corrupt(first.path, "it has no general.architecture")
    size = sum(part.size_bytes for part in parts)
    return GgufFile(paths, architecture, first.metadata, tensors, size)


def find_parts(path: Path) -> tuple[Path, ...]:
    """Returns all parts of a split file for the name of any of them; other files alone.

    Raises:
        ModelError: [gguf-split] if parts are missing.
    """
    named = _PART.fullmatch(path.name)
    if named is None:
        return (path,)
    count = int(named["count"])
    if not 1 <= int(named["number"]) <= count:
        return (path,)
    here = {file.name for file in path.parent.iterdir()}
    names = [f"{named['prefix']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    if missing := [name for name in names if name not in here]:
        listed = ", ".join(missing[:_MOST_NAMED]) + (" ..." if len(missing) > _MOST_NAMED else "")
        raise _bad_split(path, f"{len(missing)} of its {count} parts are missing: {listed}")
    return tuple(path.parent / name for name in names)


class _Metadata(Mapping[str, Any]):
    """Key-value pairs; arrays are parsed from the file's bytes on demand."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._pairs: dict[str, Any] = {}

    def put(self, key: str, value: Any) -> None:
        self._pairs[key] = value

    def __getitem__(self, key: str) -> Any:
        value = self._pairs[key]
        if isinstance(value, _Array):
            value = self._pairs[key] = value.read(self._data)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)


@dataclass(frozen=True)
class _Array:
    kind: int
    count: int
    start: int

    def read(self, data: memoryview) -> list[Any]:
        if self.kind != _STRING:
            dtype = np.dtype("<" + _SCALARS[self.kind])
            found: list[Any] = np.frombuffer(data, dtype, self.count, self.start).tolist()
            return found
        at, values = self.start, []
        read_length = struct.Struct("<Q").unpack_from
        for _ in range(self.count):
            (length,) = read_length(data, at)
            values.append(str(data[at + 8 : at + 8 + length], "utf-8", "replace"))
            at += 8 + length
        return values


@dataclass(frozen=True)
class _Part:
    path: Path
    metadata: _Metadata
    tensors: dict[str, GgufTensor]
    size_bytes: int


def _read_part(path: Path) -> _Part:
    size = path.stat().st_size
    if size == 0:
        raise _truncated(path, size, 24)
    with path.open("rb") as file:
        # A private copy-on-write mapping, because torch requires writable memory.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return _Walk(path, mapped, size).part()


def _count_of(part: _Part) -> int:
    count = part.metadata.get("split.count", 1)
    return count if isinstance(count, int) and count > 0 else 1


class _Walk:
    def __init__(self, path: Path, mapped: mmap.mmap, size: int) -> None:
        self._path = path
        self._data = memoryview(mapped)
        self._size = size
        self._at = 0

    def part(self) -> _Part:
        if (magic := self._bytes(4)) != _MAGIC:
            raise _corrupt(self._path, f"it must start with {_MAGIC!r}, got {magic!r}")
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise _corrupt(self._path, f"its version must be 2 or 3, got {version}")
        tensor_count, pair_count = self._scalar("Q"), self._scalar("Q")
        # A tensor takes at least 32 bytes of header and a pair 13: larger counts are invalid.
        if tensor_count * 32 + pair_count * 13 > self._size:
            raise _corrupt(
                self._path, f"{tensor_count} tensors and {pair_count} pairs do not fit in it"
            )
        metadata = _Metadata(self._data)
        for _ in range(pair_count):
            key = self._string()
            metadata.put(key, self._value(self._scalar("I")))
        described = [self._tensor() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise _corrupt(self._path, f"general.alignment must be a power of two, got {alignment}")
        start = -(-self._at // alignment) * alignment
        tensors, needed, total = {}, start, 0
        for name, kind, shape, offset, size in described:
            total += size
            needed = max(needed, start + offset + size)
            if needed > self._size:
                raise _truncated(self._path, self._size, needed)
            if offset % alignment or name in tensors or total > self._size - start:
                raise _corrupt(
                    self._path, f"tensor {name!r} shares bytes with another, or its name"
                )
            mapped = np.frombuffer(self._data, np.uint8, size, start + offset)
            tensors[name] = GgufTensor(name, kind, shape, size, mapped)
        return _Part(self._path, metadata, tensors, needed)

    def _tensor(self) -> tuple[str, str, tuple[int, ...], int, int]:
        """Returns name, type, shape, offset and bytes."""
        name = self._string()
        rank = self._scalar("I")
        if not 1 <= rank <= _MOST_DIMENSIONS:
            raise _corrupt(self._path, f"tensor {name!r} has {rank} dimensions")
        shape = tuple(self._scalar("Q") for _ in range(rank))[::-1]
        kind, offset = self._scalar("I"), self._scalar("Q")
        found = _BLOCKS.get(kind) or _block_by_gguf(kind)
        if found is None:
            raise _corrupt(self._path, f"tensor {name!r} has the unknown type {kind}")
        named, block, block_bytes = found
        if shape[-1] % block:
            raise _corrupt(
                self._path, f"tensor {name!r} has rows of {shape[-1]} elements in blocks of {block}"
            )
        return name, named, shape, offset, math.prod(shape) // block * block_bytes

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise _corrupt(self._path, f"a value has the unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> _Array:
        kind, count = self._scalar("I"), self._scalar("Q")
        start = self._at
        if kind in _SCALARS:
            self._skip(struct.calcsize("<" + _SCALARS[kind]) * count)
        elif kind == _STRING:
            if count > self._size:
                raise _truncated(self._path, self._size, count)
            self._skip_strings(count)
        else:
            raise _corrupt(self._path, f"an array has elements of the type {kind}")
        return _Array(kind, count, start)

    def _skip_strings(self, count: int) -> None:
        # A vocabulary has 100,000 of them, so this avoids a call for each.
        data, at, size = self._data, self._at, self._size
        read_length = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > size:
                raise _truncated(self._path, size, at + 8)
            at += 8 + read_length(data, at)[0]
        self._at = at
        self._skip(0)

    def _string(self) -> str:
        return str(self._bytes(self._scalar("Q")), "utf-8", "replace")

    def _scalar(self, code: str) -> Any:
        width = struct.calcsize("<" + code)
        return struct.unpack("<" + code, self._bytes(width))[0]

    def _bytes(self, count: int) -> bytes:
        start = self._at
        self._skip(count)
        return bytes(self._data[start : self._at])

    def _skip(self, count: int) -> None:
        if self._at + count > self._size:
            raise _truncated(self._path, self._size, self._at + count)
        self._at += count


def _block_by_gguf(kind: int) -> tuple[str, int, int] | None:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        named = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[named]
    except (ValueError, KeyError):
        return None
    return named.name, block, block_bytes


def _unpack(blocks: np.ndarray, kind: str, name: str) -> np.ndarray:
    """Dequantizes rows of blocks (rows, bytes) uint8 to (rows, columns) float32."""
    if kind in _PLAIN:
        # A tensor that is misaligned for its type is copied.
        dtype = np.dtype(_PLAIN[kind])
        if blocks.ctypes.data % dtype.itemsize:
            blocks = blocks.copy()
        return blocks.view(dtype).astype(np.float32, copy=False)
    if kind == "BF16":
        wide = np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32)
    from gguf import quants

    known = getattr(quants, kind, None)
    if known is None or not hasattr(known, "dequantize_blocks"):
        raise ModelError(
            f"`{name}` must be of a type that the installed gguf dequantizes, got {kind}. Install "
            "a newer gguf, or quantize the model to another type.",
            code="gguf-type",
        )
    known.init_grid()
    flat = np.ascontiguousarray(blocks).reshape(-1, known.type_size)
    values = np.empty((len(flat), known.block_size), np.float32)
    for first in range(0, len(flat), _CHUNK):
        part = slice(first, first + _CHUNK)
        values[part] = known.dequantize_blocks(flat[part])
    return values.reshape(len(blocks), -1)


def _truncated(path: Path, size: int, needed: int) -> ModelError:
    return truncated_file(path, size, needed, code="gguf-truncated")


def _corrupt(path: Path, reason: str) -> ModelError:
    return invalid_file(path, "GGUF", reason, code="gguf-corrupt")


def _bad_split(path: Path, reason: str) -> ModelError:
    return ModelError(
        f"`{path}` must come with all parts of the model; {reason}. Put all parts into one "
        "folder, with their original names.",
        code="gguf-split",
    )
