"""Makes transformers read a GGUF file once and quickly, and keeps the integers of 4-bit blocks.

transformers reads the file for config, weights and tokenizer, each time with gguf's reader, which
makes an array for each token of the vocabulary, and dequantizes 16 rows at a time: 8 of the 11 s
that loading SmolLM2-135M took (transformers 5.23, gguf 0.19, 2026-11-23).

GGUF's Q4_0 holds 32 weights of a row as d * (q - 8), with d in float16 and q from 0 to 15. Readers
return the values only, with rows in another order, joined or transposed. But a block's largest
value is a multiple of d, so integers and scale are found from the values alone. They are used only
if they give each value exactly.
"""

from __future__ import annotations

import functools
import importlib
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType
from gguf.quants import quant_shape_from_byte_shape
from transformers import modeling_gguf_pytorch_utils

from npu_compiler.quantize import QuantizedWeight
from npu_llm.progress import Advance

__all__ = [
    "exact_blocks",
    "gguf_progress",
    "read_gguf_once",
]

_lock = threading.RLock()
# A type that transformers does not interpret: elements of arrays are Python's own values already.
_AS_IT_IS = -1
_OWN_VALUES = [GGUFValueType.ARRAY, _AS_IT_IS]
_original_parse_value = modeling_gguf_pytorch_utils._gguf_parse_value
_BLOCKS = 1 << 16


@contextmanager
def read_gguf_once() -> Iterator[None]:
    """Makes transformers' uses of gguf quick while it loads config, weights and tokenizer.

    In this block gguf's reader and table of names return the same object for the same arguments.
    """
    quick: list[tuple[Any, str, Any]] = [
        (gguf, "GGUFReader", functools.cache(_Reader)),
        (gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
        (gguf, "dequantize", _dequantize),
        (modeling_gguf_pytorch_utils, "_gguf_parse_value", _parse_value),
    ]
    try:  # transformers' own reader of the metadata, since 5.23
        own = importlib.import_module("transformers.integrations.gguf.reader")
        quick.append((own, "_mapped", functools.cache(_mapped)))
    except ImportError:
        pass
    with _lock:
        originals = [(place, name, getattr(place, name, None)) for place, name, _ in quick]
        try:
            for place, name, function in quick:
                if hasattr(place, name):
                    setattr(place, name, function)
            yield
        finally:
            for place, name, original in originals:
                if original is not None:
                    setattr(place, name, original)


def _mapped(path: str) -> np.ndarray:
    """Returns a file's bytes; a view that is no memmap, of which each slice costs 10 us."""
    return np.memmap(path, mode="r", dtype=np.uint8).view(np.ndarray)


def _parse_value(value: Any, types: Any) -> Any:
    """Returns what transformers makes of an element: itself, if it is Python's own already."""
    return value if types == _OWN_VALUES else _original_parse_value(value, types)


class _Reader(GGUFReader):  # type: ignore[misc]  # gguf has no types
    """gguf's reader, with arrays of the metadata as lists of Python's own values."""

    @property
    def data(self) -> Any:
        """The file's bytes."""
        return self._bytes

    @data.setter
    def data(self, mapped: Any) -> None:
        self._bytes = mapped.view(np.ndarray)  # each slice of a memmap costs 10 us

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
            return self._slow_field_parts(orig_offs, raw_type)
        kind, count = struct.unpack_from("<IQ", self.data, orig_offs)
        start = orig_offs + 12
        if kind == GGUFValueType.STRING:
            at, values = start, []
            raw = memoryview(self.data)
            for _ in range(count):
                (length,) = struct.unpack_from("<Q", raw, at)
                values.append(str(raw[at + 8 : at + 8 + length], "utf-8"))
                at += 8 + length
            size = at - start
        elif kind in self.gguf_scalar_to_np:
            found = self._get(start, self.gguf_scalar_to_np[GGUFValueType(kind)], count)
            values, size = found.tolist(), found.nbytes
        else:
            return self._slow_field_parts(orig_offs, raw_type)
        return 12 + size, values, list(range(count)), _OWN_VALUES

    def _slow_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[Any], list[int], list[Any]]:
        parts: tuple[int, list[Any], list[int], list[Any]]
        parts = super()._get_field_parts(orig_offs, raw_type)
        return parts


def _dequantize(data: np.ndarray, qtype: GGMLQuantizationType) -> np.ndarray:
    """Returns a tensor's values in float32: gguf.dequantize for many rows at a time."""
    kind = getattr(gguf.quants, qtype.name, None)
    if kind is None or not hasattr(kind, "dequantize_blocks"):
        plain: np.ndarray = gguf.quants.dequantize(data, qtype)
        return plain
    kind.init_grid()
    blocks = np.ascontiguousarray(data).view(np.uint8).reshape(-1, kind.type_size)
    values = np.empty((len(blocks), kind.block_size), np.float32)
    for first in range(0, len(blocks), _BLOCKS):
        part = slice(first, first + _BLOCKS)
        values[part] = kind.dequantize_blocks(blocks[part])
    return values.reshape(quant_shape_from_byte_shape(data.shape, qtype))


@contextmanager
def gguf_progress(advance: Advance) -> Iterator[None]:
    """Reports the progress that transformers would draw while it dequantizes."""
    drawn = getattr(modeling_gguf_pytorch_utils, "tqdm", None)
    if drawn is None:
        yield
        return

    def counted(items: Any, **_: Any) -> Iterator[Any]:
        total, size = len(items), sum(int(item.n_bytes) for item in items)
        read = 0
        for number, item in enumerate(items, 1):
            advance(
                read / size,
                f"tensor {number:,} of {total:,}, {read / 1e6:,.0f} of {size / 1e6:,.0f} MB, "
                f"{item.name}",
            )
            yield item
            read += int(item.n_bytes)

    modeling_gguf_pytorch_utils.tqdm = counted
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = drawn


_BLOCK_SIZE = 32
# Rows that are looked at first, once one block fits.
_FIRST_ROWS = 4
_CHUNK_ELEMENTS = 1 << 21
_LOWEST, _HIGHEST = -8, 7


def exact_blocks(weight: torch.Tensor) -> QuantizedWeight | None:
    """Returns a matrix as symmetric integers of 4 bits in blocks of 32, if these are its values.

    Args:
        weight: (rows, columns), a float dtype.

    Returns:
        Integers and scales, which float16 holds too, whose products are exactly the given values;
        None if there are none such.
    """
    if weight.dim() != 2 or weight.shape[1] % _BLOCK_SIZE or not weight.numel():
        return None
    rows, columns = weight.shape
    if not _may_be_exact(weight[0, :_BLOCK_SIZE].float()):
        return None
    values = torch.empty((rows, columns // _BLOCK_SIZE, _BLOCK_SIZE), dtype=torch.int8)
    scale = torch.empty((rows, columns // _BLOCK_SIZE, 1))
    first, step = 0, _FIRST_ROWS
    while first < rows:
        part = slice(first, first + step)
        found = _exact(weight[part].float().reshape(-1, columns // _BLOCK_SIZE, _BLOCK_SIZE))
        if found is None:
            return None
        values[part], scale[part] = found
        first, step = first + step, max(1, _CHUNK_ELEMENTS // columns)
    return QuantizedWeight(values, scale, None, 4)


def _may_be_exact(block: torch.Tensor) -> bool:
    """Whether a block (32,) float32 fits: most weights are of another kind, and fail at once."""
    extreme = block[block.abs().argmax()]
    scales = (extreme / torch.arange(_LOWEST, 0)).half().float()[:, None]
    whole = (block / scales).round_().nan_to_num_(0.0)
    fits = (whole * scales == block) & (whole >= _LOWEST) & (whole <= _HIGHEST)
    return bool(fits.all(1).any())


def _exact(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Returns integers and scales of blocks (rows, groups, 32) float32."""
    low, high = blocks.aminmax(dim=-1, keepdim=True)
    extreme = torch.where(-low < high, high, low)
    # An encoder gives a block's extreme value -8, so that the first guess is nearly always right.
    values, scale, fits = _by_level(blocks, extreme, -_LOWEST)
    for level in range(-_LOWEST - 1, 0, -1):
        if bool(fits.all()):
            break
        left = ~fits
        values[left], scale[left], fits[left] = _by_level(blocks[left], extreme[left], level)
    return (values, scale) if bool(fits.all()) else None


def _by_level(
    blocks: torch.Tensor, extreme: torch.Tensor, level: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Takes extreme values for -level times the scales; returns integers, scales, what fits."""
    scale = (extreme / -level).half().float()
    whole = (blocks / scale).round_().nan_to_num_(0.0)  # of a block of zeros
    fits = (whole * scale == blocks) & (whole >= _LOWEST) & (whole <= _HIGHEST)
    return whole.clamp_(_LOWEST, _HIGHEST).to(torch.int8), scale, fits.all(-1)
