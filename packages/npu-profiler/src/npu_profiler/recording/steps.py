"""Selects the steps of a program to record.

A step ends with one of these marks, of the kind that appears first: a call of
`npu_profiler.step()` or of `torch.profiler`'s `step`, an optimizer's step, a prefill or decode of
npu-llm.
"""

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npu_runtime.observe import Event

__all__ = ["StepGate", "is_step", "listen_to_torch"]

_CATEGORIES = ("prefill", "decode")


def is_step(event: "Event") -> bool:
    """Whether this runtime event ends a step of npu-llm."""
    return event.kind == "span" and event.category in _CATEGORIES


def listen_to_torch(mark: Callable[[str], None]) -> Callable[[], None]:
    """Calls `mark` with the kind of each step of any optimizer and of `torch.profiler.profile`.

    Returns a function that stops it.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import profile

    target: Any = profile
    original = target.step

    @functools.wraps(original)
    def step(self: Any) -> None:
        original(self)
        mark("profile.step")

    target.step = step
    hook = register_optimizer_step_post_hook(lambda *_: mark("optimizer"))

    def end() -> None:
        hook.remove()
        target.step = original

    return end


class StepGate:
    """A gate that opens after the warm-up, and closes permanently after some steps.

    Args:
        warmup: steps before it opens; with 0 it is open at once.
        steps: steps until it closes again; 0 for all.
        on_open: called when it opens.
        on_close: called when it closes.
    """

    def __init__(
        self,
        *,
        warmup: int,
        steps: int,
        on_open: Callable[[], None],
        on_close: Callable[[], None],
    ) -> None:
        self._warmup = warmup
        self._last = warmup + steps if steps else None
        self._on_open = on_open
        self._on_close = on_close
        self._kind: str | None = None
        self._count = 0
        self._lock = threading.RLock()
        self.is_open = warmup == 0
        self.is_done = False

    @property
    def steps(self) -> int:
        """The number of marked steps, including the warm-up."""
        return self._count

    def mark(self, kind: str) -> None:
        """Marks the end of a step.

        Only marks of the first kind count, because one step may produce several.
        """
        with self._lock:
            if self._kind is None:
                self._kind = kind
            if self._kind != kind or self.is_done:
                return
            self._count += 1
            if self._count == self._warmup:
                self.is_open = True
                self._on_open()
            if self._count == self._last:
                self.is_open = False
                self.is_done = True
                self._on_close()
