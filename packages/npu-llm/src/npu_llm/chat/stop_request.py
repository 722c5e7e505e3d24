"""Stops an answer between two of its steps, at an event or at Ctrl-C."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

import torch
from transformers import StoppingCriteria

__all__ = ["InterruptGuard", "StopWhenSet"]


class StopWhenSet(StoppingCriteria):  # type: ignore[misc]
    """Stops generation after the step in which an event was set.

    Attributes:
        has_stopped: whether it did.
    """

    def __init__(self, *events: threading.Event) -> None:
        self._events = events
        self.has_stopped = False

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """True for each row, (batch,) bool, when an event is set."""
        self.has_stopped = self.has_stopped or any(event.is_set() for event in self._events)
        return torch.full((input_ids.shape[0],), self.has_stopped)


class InterruptGuard:
    """Within it, the first Ctrl-C sets an event instead of raising KeyboardInterrupt.

    When Ctrl-C interrupts a step, nobody knows what the cache holds, and nearly all time is spent
    inside steps. A second Ctrl-C raises at once. The guard does nothing outside the main thread, or
    where the program handles the signal itself.

    Attributes:
        was_interrupted: whether Ctrl-C came.
    """

    def __init__(self, event: threading.Event) -> None:
        self._event = event
        self._is_installed = False
        self.was_interrupted = False

    def __enter__(self) -> InterruptGuard:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._is_installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.was_interrupted:
            signal.default_int_handler(number, frame)
        self.was_interrupted = True
        self._event.set()
