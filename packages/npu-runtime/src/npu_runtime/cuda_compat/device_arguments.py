"""Translates ``"cuda"`` to ``"npu"`` in arguments: devices, maps, type names, activities."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity

__all__ = [
    "backend_names",
    "device_arguments",
    "device_name",
    "for_device",
    "stand_in_for",
    "translated_map",
    "type_name",
    "with_arguments",
    "with_npu_activities",
]

Translate = Callable[[Any], Any]

# The real class: activation replaces torch.device.
_Device = torch.device


def device_name(value: Any) -> Any:
    """Translates a cuda device, by name or as an object, to npu; returns other values as is."""
    if isinstance(value, str):
        if value == "cuda" or value.startswith("cuda:"):
            return "npu" + value[4:]
    elif isinstance(value, _Device) and value.type == "cuda":
        return _Device("npu", value.index)
    return value


def type_name(value: Any) -> Any:
    """Translates type names for ``Tensor.type``: ``"torch.cuda.FloatTensor"``."""
    if isinstance(value, str):
        return value.replace("torch.cuda.", "torch.npu.")
    return value


def translated_map(value: Any) -> Any:
    """Translates ``torch.load``'s map_location, including the keys of a map.

    The default loads cuda tensors to npu.
    """
    if value is None:
        return {"cuda": "npu"} | {f"cuda:{index}": f"npu:{index}" for index in range(16)}
    if isinstance(value, dict):
        both = {device_name(key): device_name(place) for key, place in value.items()}
        return both | {key: device_name(place) for key, place in value.items()}
    return device_name(value)


def backend_names(value: Any) -> Any:
    """Replaces NCCL by Gloo for ``torch.distributed``: ``"nccl"``, ``"cpu:gloo,cuda:nccl"``."""
    if isinstance(value, str):
        return value.lower().replace("nccl", "gloo").replace("cuda:", "npu:")
    return value


def with_arguments(function: Callable[..., Any], translate: Translate) -> Callable[..., Any]:
    """Wraps a function to translate every argument."""

    @functools.wraps(function)
    def translated(*args: Any, **kwargs: Any) -> Any:
        return function(
            *[translate(value) for value in args],
            **{key: translate(value) for key, value in kwargs.items()},
        )

    return translated


def device_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function to translate devices."""
    return with_arguments(function, device_name)


def stand_in_for(real: type) -> type:
    """Returns a class that creates ``real`` with translated devices, and otherwise acts as it.

    ``torch.device`` and ``torch.Generator`` are native classes, and their constructors cannot be
    replaced; programs call them, use them with ``isinstance``, and as keys.
    """

    class StandIn(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return device_arguments(real)(*args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, real)

        def __getattr__(cls, name: str) -> Any:
            return getattr(real, name)

        def __eq__(cls, other: object) -> bool:
            return other is cls or other is real

        def __hash__(cls) -> int:
            return hash(real)

    names = {"__module__": "torch", "__qualname__": real.__name__, "__doc__": real.__doc__}
    return StandIn(real.__name__, (), names)


def _npu_activity(activity: Any) -> Any:
    """Translates an activity, or a dict of activities by kind."""
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
