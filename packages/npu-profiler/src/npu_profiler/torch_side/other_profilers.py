"""Makes our recording step aside while the program uses torch's profiler itself.

Two recordings at a time end in a segmentation fault (torch 2.13). The caller decides what stepping
aside means: npu_profiler.torch_side.torch_windows ends a window and opens another.
"""

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["step_aside"]


def step_aside(
    is_ours: Callable[[object], bool], pause: Callable[[], None], resume: Callable[[], None]
) -> Callable[[], None]:
    """Makes every other profiler pause ours while it runs; returns what undoes that."""
    from torch.autograd import profiler

    target: Any = profiler.profile
    prepare, leave = target._prepare_trace, target.__exit__
    others: set[int] = set()

    @functools.wraps(prepare)
    def prepare_trace(self: Any) -> None:
        if self.enabled and not is_ours(self):
            pause()
            others.add(id(self))
        prepare(self)

    @functools.wraps(leave)
    def exit_trace(self: Any, *exc_info: Any) -> Any:
        try:
            return leave(self, *exc_info)
        finally:
            if id(self) in others:
                others.discard(id(self))
                if not others:
                    resume()

    def restore() -> None:
        target._prepare_trace = prepare
        target.__exit__ = leave

    target._prepare_trace = prepare_trace
    target.__exit__ = exit_trace
    return restore
