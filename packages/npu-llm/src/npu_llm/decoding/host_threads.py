"""How many threads torch's own ops take between two steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]


@contextmanager
def one_thread() -> Iterator[None]:
    """Has torch's ops on the host run on the calling thread alone.

    OpenMP's threads spin for some milliseconds after an op that they shared, such as one on 50,000
    logits, and meanwhile take the processors that the next step needs: a token of Whisper base took
    7.4 ms with them and 4.9 without (two Zen 5 cores, 2026-11-25). torch keeps the number for each
    thread, so that other threads' ops stay as they are.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
