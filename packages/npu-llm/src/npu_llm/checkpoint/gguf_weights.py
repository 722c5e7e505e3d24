"""Makes transformers read a GGUF file's tokenizer once and quickly.

transformers reads the file several times, each time with gguf's reader, which makes an array for
each token of the vocabulary.
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
from gguf import GGUFReader, GGUFValueType
from transformers import modeling_gguf_pytorch_utils

__all__ = [
    "read_gguf_once",
]

_lock = threading.RLock()
# A type that transformers does not interpret: elements of arrays are Python's own values already.
_AS_IT_IS = -1
_OWN_VALUES = [GGUFValueType.ARRAY, _AS_IT_IS]
_original_parse_value = modeling_gguf_pytorch_utils._gguf_parse_value


@contextmanager
def read_gguf_once() -> Iterator[None]:
    """Makes transformers' uses of gguf quick while it loads a tokenizer.

    In this block gguf's reader and table of names return the same object for the same arguments.
    """
    quick: list[tuple[Any, str, Any]] = [
        (gguf, "GGUFReader", functools.cache(_Reader)),
        (gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
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
