"""Keeps heads that share keys apart while a step of one token is traced.

transformers turns the heads of one token that share keys into rows, as if they were tokens. The CPU
plugin fuses attention with the cache by the rule that each query brings a key of its own (OpenVINO
2026.4.1), so attention is asked to share the keys itself instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from transformers.integrations import sdpa_attention

__all__ = ["grouped_heads"]

_CHOICE = "use_gqa_in_sdpa"


@contextmanager
def grouped_heads() -> Iterator[None]:
    """Makes transformers' attention share keys between heads, inside the block."""
    if not hasattr(sdpa_attention, _CHOICE):
        yield
        return
    with mock.patch.object(sdpa_attention, _CHOICE, return_value=True):
        yield
