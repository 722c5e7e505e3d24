"""Hears where a program's steps end: optimizers, torch's profilers, npu-llm's prefill, decode."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npu_runtime.observe import Event

__all__ = ["is_step", "listen_to_torch"]

_CATEGORIES = ("prefill", "decode")


def is_step(event: "Event") -> bool:
    """Whether this event of the runtime is the end of a step of npu-llm."""
    return event.kind == "span" and event.category in _CATEGORIES


def listen_to_torch(mark: Callable[[str], None]) -> Callable[[], None]:
    """Calls `mark` after each step of any optimizer and of `torch.profiler.profile`.

    Args:
        mark: is given the kind of the step.

    Returns:
        What ends it.
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
