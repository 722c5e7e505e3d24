"""What of ``torch.profiler``'s arguments names ``cuda``, and its meaning on ``npu``."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch.profiler import ProfilerActivity

__all__ = ["for_device", "with_npu_activities"]


def _npu_activity(activity: Any) -> Any:
    """An activity, or a dict of activities with the names of their kinds."""
    if isinstance(activity, dict):
        return {_npu_activity(key): kinds for key, kinds in activity.items()}
    return ProfilerActivity.PrivateUse1 if activity == ProfilerActivity.CUDA else activity


def with_npu_activities(init: Callable[..., None]) -> Callable[..., None]:
    """Wraps ``torch.profiler.profile``'s base so that CUDA activities are npu's."""

    @functools.wraps(init)
    def translated(self: Any, *, activities: Iterable[Any] | None = None, **options: Any) -> None:
        if activities is not None:
            activities = [_npu_activity(activity) for activity in activities]
        init(self, activities=activities, **options)

    return translated


def for_device(init: Callable[..., None]) -> Callable[..., None]:
    """Wraps ``torch.autograd.profiler.profile`` so that profiling cuda means npu."""

    @functools.wraps(init)
    def translated(
        self: Any,
        enabled: bool = True,
        *,
        use_cuda: bool = False,
        use_device: str | None = None,
        **options: Any,
    ) -> None:
        if use_cuda or use_device == "cuda":
            use_device = "npu"
        init(self, enabled, use_device=use_device, **options)

    return translated
