"""``torch.npu``: the device module, with the names of ``torch.cuda``."""

from typing import Any

from torch import AcceleratorError, OutOfMemoryError

from npu_runtime.npu import amp, ascend, fallback, graphs, memory, nvtx, random, streams, tensors
from npu_runtime.npu.absent import ABSENT
from npu_runtime.npu.amp import (
    autocast,
    get_amp_supported_dtype,
    get_autocast_dtype,
    is_autocast_enabled,
    is_bf16_supported,
    is_tf32_supported,
    set_autocast_dtype,
    set_autocast_enabled,
)
from npu_runtime.npu.ascend import *  # noqa: F403
from npu_runtime.npu.device import (
    DeviceProperties,
    can_device_access_peer,
    clock_rate,
    current_device,
    device,
    device_count,
    device_memory_used,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    ipc_collect,
    is_available,
    is_initialized,
    set_device,
    synchronize,
    utilization,
)
from npu_runtime.npu.device import (
    _is_in_bad_fork as _is_in_bad_fork,
)
from npu_runtime.npu.device import (
    _lazy_init as _lazy_init,
)
from npu_runtime.npu.fallback import *  # noqa: F403
from npu_runtime.npu.graphs import (
    NPUGraph,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
    make_graphed_callables,
)
from npu_runtime.npu.memory import *  # noqa: F403
from npu_runtime.npu.random import *  # noqa: F403
from npu_runtime.npu.streams import *  # noqa: F403
from npu_runtime.npu.tensors import *  # noqa: F403
from npu_runtime.plugins import INDUCTOR_NAMES, find_inductor_class

__all__ = [
    "AcceleratorError",
    "DeviceProperties",
    "NPUGraph",
    "OutOfMemoryError",
    "amp",
    "autocast",
    "can_device_access_peer",
    "clock_rate",
    "current_device",
    "default_generators",  # noqa: F405  # __getattr__ makes it
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "graph",
    "graph_pool_handle",
    "graphs",
    "has_half",
    "init",
    "ipc_collect",
    "is_autocast_enabled",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "make_graphed_callables",
    "memory",
    "mstx",
    "nvtx",
    "random",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "set_device",
    "streams",
    "synchronize",
    "utilization",
]
__all__ += ascend.__all__
__all__ += fallback.__all__
__all__ += memory.__all__
__all__ += random.__all__
__all__ += streams.__all__
__all__ += tensors.__all__

has_half = True
mstx = nvtx  # as torch_npu calls it


def __getattr__(name: str) -> Any:
    """Resolves lazy names, and explains absent ones."""
    if name == "default_generators":  # opens the device
        return random.default_generators()
    if name == "_initialized":  # for torch.utils.checkpoint
        return is_initialized()
    if name in INDUCTOR_NAMES and (found := find_inductor_class(name)) is not None:
        return found
    if reason := ABSENT.get(name):
        raise AttributeError(f"torch.npu has no {name}: {reason}.", name=name, obj=None)
    raise AttributeError(f"module 'torch.npu' has no attribute {name!r}")
