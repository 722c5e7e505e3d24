"""Switches ``cuda`` to mean ``npu``, and back.

Every replacement is listed here. Devices keep their names: one prints as ``npu:0``, and a program
that compares ``tensor.device.type == "cuda"`` finds it different.
"""

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

import torch
import torch.autograd.profiler
import torch.profiler.profiler
import torch.utils.data
from torch.utils import _device

from npu_command.import_hooks import while_importing
from npu_runtime import npu
from npu_runtime.cuda_compat.device_arguments import (
    backend_names,
    device_arguments,
    device_name,
    for_device,
    stand_in_for,
    translated_map,
    type_name,
    with_arguments,
    with_npu_activities,
)
from npu_runtime.npu.device import DeviceLike, DeviceProperties

__all__ = ["Patches", "activate", "deactivate", "is_active", "transferred"]

_MISSING = object()


@dataclass
class Patches:
    """A list of replacements that can be undone, the latest first."""

    _before: list[tuple[Any, str, object]] = field(default_factory=list)

    def set(self, owner: Any, name: str, value: object) -> None:
        """Replaces, or adds, an attribute of a module or a class."""
        # For inherited or absent attributes, deleting restores the original state.
        self._before.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Undoes all replacements."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


# Programs check for 8.0 to detect bfloat16, and for 8.9 or 9.0 to detect FP8, which npu lacks.
_CAPABILITY = (8, 0)
_SUBMODULES = ("amp", "graphs", "memory", "nvtx", "random", "streams")


@dataclass(frozen=True)
class CudaDeviceProperties(DeviceProperties):
    """Properties of an npu device with the fields of CUDA's.

    Attributes:
        major: first number of the compute capability.
        minor: second number of the compute capability.
        multi_processor_count: always 1.
    """

    major: int = _CAPABILITY[0]
    minor: int = _CAPABILITY[1]
    multi_processor_count: int = 1


def _patch_cuda(patches: Patches) -> None:
    """Replaces the names of torch.cuda and its submodules by npu's."""
    renamed: dict[str, Any] = {
        "get_device_capability": _get_device_capability,
        "get_device_properties": _get_device_properties,
        "_lazy_init": npu._lazy_init,
        "_is_in_bad_fork": npu._is_in_bad_fork,
        "_lazy_call": lambda function, **kwargs: function(),
    }
    _patch_module(patches, torch.cuda, npu, renamed | {"CUDAGraph": npu.NPUGraph})
    # Not public in torch.cuda either, but used by every memory tutorial.
    recorders = ("_dump_snapshot", "_record_memory_history", "_snapshot")
    below: dict[str, dict[str, Any]] = {
        "graphs": {"CUDAGraph": npu.NPUGraph},
        "memory": {name: _reading_devices(getattr(npu.memory, name)) for name in recorders},
    }
    for name in _SUBMODULES:
        theirs = importlib.import_module(f"torch.cuda.{name}")
        _patch_module(patches, theirs, getattr(npu, name), below.get(name, {}))


def _patch_module(
    patches: Patches, theirs: ModuleType, ours: ModuleType, renamed: dict[str, Any]
) -> None:
    for name in getattr(ours, "__all__", ()):
        # Reading lazy names would open the device now.
        if name in vars(ours) and hasattr(theirs, name) and name not in (*_SUBMODULES, *renamed):
            patches.set(theirs, name, _reading_devices(getattr(ours, name)))
    for name, value in renamed.items():
        patches.set(theirs, name, value)


def _reading_devices(value: Any) -> Any:
    """Makes functions accept "cuda:0" as a device; leaves classes and constants unchanged."""
    is_function = callable(value) and not isinstance(value, type)
    return device_arguments(value) if is_function else value


def _get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    npu.get_device_properties(device_name(device))  # raises for an absent device
    return _CAPABILITY


def _get_device_properties(device: DeviceLike = None) -> CudaDeviceProperties:
    return CudaDeviceProperties(**asdict(npu.get_device_properties(device_name(device))))


# Functions of torch that take a device.
_FACTORIES = [
    "arange",
    "as_tensor",
    "asarray",
    "bartlett_window",
    "blackman_window",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_quantized",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "hamming_window",
    "hann_window",
    "kaiser_window",
    "linspace",
    "logspace",
    "normal",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "range",
    "scalar_tensor",
    "sparse_bsc_tensor",
    "sparse_bsr_tensor",
    "sparse_compressed_tensor",
    "sparse_coo_tensor",
    "sparse_csc_tensor",
    "sparse_csr_tensor",
    "tensor",
    "tril_indices",
    "triu_indices",
    "vander",
    "zeros",
    "zeros_like",
]
_FUNCTIONS = ["get_autocast_dtype", "get_device_module", "set_autocast_dtype", "set_default_device"]
_METHODS = [
    "__dlpack__",
    "new_empty",
    "new_empty_strided",
    "new_full",
    "new_ones",
    "new_tensor",
    "new_zeros",
    "pin_memory",
    "to",
]
# torch.<module>.<function>
_BELOW = (
    ("fft", "fftfreq"),
    ("fft", "rfftfreq"),
    ("nested", "nested_tensor"),
    ("nested", "as_nested_tensor"),
    ("random", "fork_rng"),
    ("amp", "is_autocast_available"),
)

_patches = Patches()
_is_active = False
_awaits_dynamo: list[str] = []  # the module whose import triggers the action


def activate() -> None:
    """Makes ``cuda`` mean ``npu`` in this process; a second call changes nothing.

    Opens no device. Afterwards ``torch.cuda`` has npu's functions, ``.cuda()`` and
    ``device="cuda"`` move to npu, files saved on cuda load to npu, autocast and the gradient scaler
    of "cuda" are npu's, and process groups for NCCL use Gloo.
    """
    global _is_active
    if _is_active:
        return
    _is_active = True
    # `with torch.device(...)` uses a set of the real factories that torch builds once.
    _device._device_constructors()
    # So does dynamo, which traces through our functions into the real ones.
    if "torch._dynamo" in sys.modules:
        _fill_tables_of_dynamo()
    elif not _awaits_dynamo:
        _awaits_dynamo.append("torch._dynamo")
        while_importing("torch._dynamo", _suspended)
    _patch()


@contextlib.contextmanager
def _suspended() -> Iterator[None]:
    """Suspends the patches during dynamo's import, which stores torch's functions."""
    was_active = _is_active
    deactivate()
    try:
        yield
    finally:
        if was_active:
            activate()


def _fill_tables_of_dynamo() -> None:
    rules = importlib.import_module("torch._dynamo.trace_rules")
    rules.get_torch_obj_rule_map()
    rules.get_tensor_method()


def _patch() -> None:
    _patch_cuda(_patches)
    _patch_functions()
    _patch_tensors()
    _patch_modules()
    _patch_amp()
    _patch_loading()
    _patch_distributed()
    _patch_profiler()
    # Last, because the code above uses the real class.
    _patches.set(torch, "device", stand_in_for(torch.device))
    _patches.set(torch, "Generator", stand_in_for(torch.Generator))


def deactivate() -> None:
    """Makes ``cuda`` mean CUDA again. Names that the program stored meanwhile remain npu's."""
    global _is_active
    _patches.undo()
    _is_active = False


def is_active() -> bool:
    """Whether ``cuda`` means ``npu`` now."""
    return _is_active


@contextlib.contextmanager
def transferred() -> Iterator[None]:
    """Makes ``cuda`` mean ``npu`` in the body; has no effect when nested."""
    was_active = _is_active
    activate()
    try:
        yield
    finally:
        if not was_active:
            deactivate()


def _wrap(owner: Any, name: str, wrap: Any = device_arguments) -> None:
    _patches.set(owner, name, wrap(getattr(owner, name)))


def _patch_functions() -> None:
    for name in _FACTORIES + _FUNCTIONS:
        _wrap(torch, name)
    for module, name in _BELOW:
        _wrap(getattr(torch, module), name)


def _patch_tensors() -> None:
    for name in _METHODS:
        _wrap(torch.Tensor, name)
    _wrap(torch.Tensor, "type", lambda method: with_arguments(method, type_name))
    _patches.set(torch.Tensor, "cuda", device_arguments(_npu_of(torch.Tensor)))
    _patches.set(torch.Tensor, "is_cuda", property(_is_on_accelerator))
    _patches.set(torch.UntypedStorage, "cuda", device_arguments(_npu_of(torch.UntypedStorage)))
    _wrap(torch.UntypedStorage, "to")


def _npu_of(owner: Any) -> Any:
    """Returns the method ``npu``, which torch creates when the device is registered."""
    return owner.npu


def _is_on_accelerator(tensor: torch.Tensor) -> bool:
    return tensor.device.type in ("npu", "cuda")


def _patch_modules() -> None:
    _wrap(torch.nn.Module, "to")
    _wrap(torch.nn.Module, "to_empty")
    _patches.set(torch.nn.Module, "cuda", device_arguments(_npu_of(torch.nn.Module)))


def _patch_amp() -> None:
    for kind in (torch.amp.autocast_mode.autocast, torch.amp.grad_scaler.GradScaler):
        _wrap(kind, "__init__")
    # These two default to cuda.
    for name in ("is_autocast_enabled", "set_autocast_enabled"):
        _wrap(torch, name, _for_npu_by_default)
    _patches.set(torch, "get_autocast_gpu_dtype", npu.get_autocast_dtype)
    _patches.set(torch, "set_autocast_gpu_dtype", npu.set_autocast_dtype)
    scaler = torch.amp.grad_scaler.GradScaler
    _patches.set(scaler, "__init__", _scaler_for_npu(scaler.__init__))


def _for_npu_by_default(function: Any) -> Any:
    @functools.wraps(function)
    def with_device(*args: Any) -> Any:
        names_device = bool(args) and isinstance(args[0], str)
        return device_arguments(function)(*args) if names_device else function("npu", *args)

    return with_device


def _scaler_for_npu(init: Any) -> Any:
    @functools.wraps(init)
    def with_device(self: Any, device: str = "npu", *args: Any, **kwargs: Any) -> None:
        init(self, device, *args, **kwargs)

    return with_device


def _patch_loading() -> None:
    load, placed = torch.load, translated_map

    @functools.wraps(load)
    def load_to_npu(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(f, placed(map_location), *args, **kwargs)

    _patches.set(torch, "load", load_to_npu)
    loader_init = torch.utils.data.DataLoader.__init__

    @functools.wraps(loader_init)
    def init(self: Any, *args: Any, pin_memory_device: str = "", **kwargs: Any) -> None:
        # Deprecated argument: torch pins for the current accelerator, which is npu.
        if pin_memory_device.partition(":")[0] in ("cuda", "npu"):
            pin_memory_device = ""
        loader_init(self, *args, pin_memory_device=pin_memory_device, **kwargs)

    _patches.set(torch.utils.data.DataLoader, "__init__", init)


def _patch_distributed() -> None:
    if not torch.distributed.is_available():
        return
    for name in ("init_process_group", "new_group"):
        wrapped = _with_backend(getattr(torch.distributed, name))
        for owner in (torch.distributed, torch.distributed.distributed_c10d):
            _patches.set(owner, name, wrapped)


def _patch_profiler() -> None:
    _wrap(torch.profiler.profiler._KinetoProfile, "__init__", with_npu_activities)
    _wrap(torch.autograd.profiler.profile, "__init__", for_device)


def _with_backend(function: Any) -> Any:
    @functools.wraps(function)
    def with_gloo(*args: Any, **kwargs: Any) -> Any:
        if "backend" in kwargs:
            kwargs["backend"] = backend_names(kwargs["backend"])
        elif args:
            args = (backend_names(args[0]), *args[1:])
        return device_arguments(function)(*args, **kwargs)

    return with_gloo
