"""``torch.distributed`` on npu: registers the backend and resolves backend names.

The collectives are native (csrc/distributed): Gloo, on the bytes of npu tensors.
"""

import functools
import importlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from npu_runtime.config import variables
from npu_runtime.errors import InputError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions

__all__ = ["BACKEND", "backends_by_device", "register", "share_devices"]

BACKEND = "npu_gloo"
"""The backend's name, as in ``init_process_group("cpu:gloo,npu:npu_gloo")``."""


def register() -> None:
    """Makes the backend npu's default; does nothing if torch has no Gloo."""
    if not dist.is_available() or not dist.is_gloo_available():
        return
    # Tools that list Gloo's devices then list npu as well.
    dist.Backend.backend_capability[dist.Backend.GLOO].append("npu")
    # Named alone, the backend accepts cpu tensors as well; the default backend of cpu is unchanged.
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["npu", "cpu"])
    # If torch knows any plugin, a group created as "cpu:gloo" gets no default backend and warns at
    # its end: a program without npu must not be affected.
    _extend_backend_config(dist.Backend._plugins.pop(BACKEND.upper()))


def backends_by_device(backend: str, chosen: dict[str, str]) -> dict[str, str]:
    """Returns torch's backends by device, with Gloo on npu if that is our backend.

    With the default ("undefined"), a group accepts cpu tensors as well. A plain "gloo" opens no
    connections for CUDA on a machine without CUDA.
    """
    if "npu" not in chosen:
        return chosen
    devices = dict(chosen)
    if devices["npu"] == dist.Backend.GLOO:
        devices["npu"] = BACKEND
    if backend == dist.Backend.UNDEFINED:
        devices = {"cpu": dist.Backend.GLOO} | devices
    if ":" not in backend and not torch.cuda.is_available():
        devices.pop("cuda", None)
    return devices


def share_devices() -> None:
    """Lets device meshes with more processes than devices share devices.

    Torch uses LOCAL_RANK as the device index, unless the device is in use. Call this after
    torch.distributed.device_mesh was imported.
    """
    mesh: Any = importlib.import_module("torch.distributed.device_mesh").DeviceMesh
    set_up = mesh._setup_world_group_and_device

    @functools.wraps(set_up)
    def set_up_with_npu(self: Any, *arguments: Any) -> Any:
        rank, npu = variables("LOCAL_RANK").get("LOCAL_RANK"), torch.get_device_module("npu")
        if self._device_type == "npu" and rank and not npu.is_initialized() and npu.device_count():
            npu.set_device(int(rank) % npu.device_count())
            npu.init()
        made = set_up(self, *arguments)
        group = dist.distributed_c10d._get_default_group() if dist.is_initialized() else None
        bound = getattr(group, "bound_device_id", None)
        if bound is not None and bound.type == "npu":
            # Torch would split the group's connections for each dimension, as with NCCL.
            group.bound_device_id = None  # type: ignore[union-attr]
        return made

    mesh._setup_world_group_and_device = set_up_with_npu


def _extend_backend_config(plugin: Any) -> None:
    # With a plain name, torch gives one backend to all devices, and its Gloo refuses memory that is
    # neither the CPU's nor CUDA's. Torch lacks a hook to change that.
    config = dist.distributed_c10d.BackendConfig
    read = config.__init__

    @functools.wraps(read)
    def read_with_npu(self: Any, backend: Any) -> None:
        read(self, backend)
        self.device_backend_map = backends_by_device(str(backend).lower(), self.device_backend_map)
        if BACKEND in self.device_backend_map.values():
            dist.Backend._plugins[BACKEND.upper()] = plugin

    config.__init__ = read_with_npu  # type: ignore[method-assign]


def _create(group: "_DistributedBackendOptions", options: Any) -> Any:
    """Creates the backend of a process group: our backend on top of Gloo."""
    from torch.distributed.distributed_c10d import GroupName

    from npu_runtime._distributed import forward_to

    gloo_options = dist.ProcessGroupGloo.Options
    if options is not None and not isinstance(options, gloo_options):
        raise InputError(
            f"init_process_group: pg_options of {BACKEND} must be ProcessGroupGloo.Options, "
            f"got {type(options).__name__}. Omit `pg_options`.",
            code="collective-options",
        )
    # Torch's stubs have Gloo's constructor only with a timeout.
    settings: Any = group.timeout if options is None else options
    gloo = dist.ProcessGroupGloo(group.store, group.group_rank, group.group_size, settings)
    gloo.options.global_ranks_in_group = group.global_ranks_in_group
    gloo.options.group_name = GroupName(group.group_id)
    gloo._set_sequence_number_for_group()
    return forward_to(gloo)
