"""Limits how long torch's idle threads spin on cores that a program needs."""

from __future__ import annotations

import functools
import threading

import torch

__all__ = ["limit_spinning"]


@functools.cache
def limit_spinning() -> None:
    """Makes torch's OpenMP threads sleep after microseconds of spinning, not milliseconds.

    libgomp throttles the spinning once a process has more OpenMP threads than cores. So this starts
    a second team, which then sleeps. A step of a net for MNIST took 1.33 of eager's time without it
    and 1.14 with it (two cores, 2026-11-28); OMP_WAIT_POLICY=passive has the same effect, but is
    read before Python can set it.
    """
    if torch.get_num_threads() < 2 or not torch.backends.openmp.is_available():  # type: ignore[no-untyped-call]
        return
    is_made = threading.Event()

    def make_team() -> None:
        torch.zeros(1 << 18).add_(1)  # large enough for all threads
        is_made.set()
        threading.Event().wait()  # a team ends with its first thread

    threading.Thread(target=make_team, name="npu-openmp-team", daemon=True).start()
    is_made.wait()
