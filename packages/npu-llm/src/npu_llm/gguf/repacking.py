"""Repacks blocks of types without a kernel as the nearest supported type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gguf
import numpy as np
from gguf import quants

__all__ = ["REPACKED", "Repacked", "repack"]

_ELEMENTS = 256  # elements of a block, for all source and target types
_CHUNK = 1 << 13  # blocks repacked at a time
_Bytes = np.ndarray

# Type -> target type. Ternary blocks become Q2_K. Codebook values are integers times scales, which
# Q6_K represents exactly, except those of IQ2, whose maximum is 43 while Q6_K's is 31.
REPACKED = dict.fromkeys(("TQ1_0", "TQ2_0"), "Q2_K") | dict.fromkeys(
    ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), "Q6_K"
)


@dataclass(frozen=True)
class Repacked:
    """Repacked rows.

    Attributes:
        type: name of the type, such as "Q6_K".
        rows: (rows, bytes of a row) uint8.
        loss: error of their values, as a share of the values' norm.
    """

    type: str
    rows: _Bytes
    loss: float


def repack(kind: str, rows: _Bytes) -> Repacked:
    """Repacks rows to their type in REPACKED.

    Args:
        kind: the rows' type, a key of REPACKED.
        rows: (rows, bytes of a row) uint8.
    """
    wanted = REPACKED[kind]
    made = _as_q2_k if wanted == "Q2_K" else _as_q6_k
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    blocks = np.ascontiguousarray(rows).reshape(-1, size)
    found, off, whole = [], 0.0, 0.0
    for first in range(0, len(blocks), _CHUNK):
        part = blocks[first : first + _CHUNK]
        values = quants.dequantize(part, gguf.GGMLQuantizationType[kind])
        packed = made(kind, part, values)
        again = quants.dequantize(packed, gguf.GGMLQuantizationType[wanted])
        off += float(np.square(again - values, dtype=np.float64).sum())
        whole += float(np.square(values, dtype=np.float64).sum())
        found.append(packed)
    joined = np.concatenate(found) if found else np.empty((0, 0), np.uint8)
    loss = (off / whole) ** 0.5 if whole else 0.0
    return Repacked(wanted, joined.reshape(len(rows), -1), loss)


def _as_q2_k(kind: str, blocks: _Bytes, values: np.ndarray) -> _Bytes:
    """Packs values that are -1, 0 or 1 times a scale, as (blocks, 84) uint8."""
    scale = blocks[:, -2:].copy().view(np.float16)
    step = scale.astype(np.float32)
    levels = np.divide(values, step, out=np.zeros_like(values), where=step != 0)
    quarters = (np.rint(levels) + 1).astype(np.uint8).reshape(-1, 2, 4, 32)
    bits = quarters << np.array([0, 2, 4, 6], np.uint8)[:, None]
    codes = np.bitwise_or.reduce(bits, axis=2).reshape(len(blocks), 64)
    ones = np.full((len(blocks), 16), 0x11, np.uint8)  # each scale and each minimum
    return np.concatenate([ones, codes, blocks[:, -2:], blocks[:, -2:]], 1)


def _as_q6_k(kind: str, blocks: _Bytes, values: np.ndarray) -> _Bytes:
    """Packs integers times odd scales, as (blocks, 210) uint8."""
    read, unit = _CODEBOOKS[kind]
    whole, fours = read(blocks)
    scale = (whole.astype(np.float32) * unit).astype(np.float16)[:, None]
    odd = (2 * np.repeat(fours, 16 // fours.shape[1], 1) + 1).astype(np.int8)
    steps = scale.astype(np.float32) * odd
    levels = values.reshape(-1, 16, 16)
    divided = np.divide(
        levels, steps[..., None], out=np.zeros_like(levels), where=steps[..., None] != 0
    )
    codes = (np.rint(divided).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = codes & 15, codes >> 4
    lows = low[:, :, :2] | (low[:, :, 2:] << 4)
    highs = np.bitwise_or.reduce(high << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2)
    parts = (lows, highs, odd.view(np.uint8), scale.view(np.uint8))
    return np.concatenate([one.reshape(len(blocks), -1) for one in parts], 1)


# Of blocks: their scale in float16, and the 3- or 4-bit numbers n of the scales of 8 or 16 parts,
# each an odd number 2 n + 1.
_Scales = tuple[np.ndarray, np.ndarray]


def _whole(blocks: _Bytes) -> np.ndarray:
    return blocks[:, :2].copy().view(np.float16)[:, 0]


def _words(blocks: _Bytes, first: int, last: int, kind: type) -> np.ndarray:
    return blocks[:, first:last].copy().view(kind)


def _nibbles(blocks: _Bytes, count: int) -> np.ndarray:
    """Returns the two halves of each of the last bytes."""
    found = blocks[:, -count:]
    return np.stack([found & 15, found >> 4], -1).reshape(len(blocks), -1)


def _iq1_s(blocks: _Bytes) -> _Scales:
    return _whole(blocks), (_words(blocks, 34, 50, np.uint16) >> 12) & 7


def _iq1_m(blocks: _Bytes) -> _Scales:
    words = _words(blocks, 48, 56, np.uint16)
    quarters = (words >> 12) << np.array([0, 4, 8, 12], np.uint16)
    whole = np.bitwise_or.reduce(quarters, axis=1).view(np.float16)
    fours = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16)) & 7
    return whole, fours.reshape(len(blocks), 16)


def _iq2_xxs(blocks: _Bytes) -> _Scales:
    return _whole(blocks), _words(blocks, 2, 66, np.uint32)[:, 1::2] >> 28


def _iq2(blocks: _Bytes) -> _Scales:
    return _whole(blocks), _nibbles(blocks, 8)


def _iq3_xxs(blocks: _Bytes) -> _Scales:
    return _whole(blocks), _words(blocks, 66, 98, np.uint32) >> 28


def _iq3_s(blocks: _Bytes) -> _Scales:
    return _whole(blocks), _nibbles(blocks, 4)


# The reading of scales, and the value of one integer step as a share of the block's scale.
_OF_IQ2 = 43 / 31 / 8
_CODEBOOKS: dict[str, tuple[Callable[[_Bytes], _Scales], float]] = {
    "IQ1_S": (_iq1_s, 1 / 8),
    "IQ1_M": (_iq1_m, 1 / 8),
    "IQ2_XXS": (_iq2_xxs, _OF_IQ2),
    "IQ2_XS": (_iq2, _OF_IQ2),
    "IQ2_S": (_iq2, _OF_IQ2),
    "IQ3_XXS": (_iq3_xxs, 1 / 2),
    "IQ3_S": (_iq3_s, 1.0),
}
