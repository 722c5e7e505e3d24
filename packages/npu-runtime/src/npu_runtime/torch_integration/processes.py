"""Sends npu tensors to other processes through queues, pipes and DataLoader workers.

Bytes travel in CPU shared memory and arrive as a copy on npu; csrc/device/process.cpp decides which
processes may use the device.
"""

from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any, NoReturn

import torch
import torch.utils.hooks
from torch.multiprocessing import reductions
from torch.utils.data import get_worker_info

from npu_runtime import _C
from npu_runtime.errors import DeviceError, InputError

__all__ = ["register_reducers"]

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]
# Storage offset, size, stride and requires_grad.
Geometry = tuple[int, tuple[int, ...], tuple[int, ...], bool]


def register_reducers() -> None:
    """Registers npu reducers with multiprocessing; other devices keep torch's reducers."""
    reduction.register(torch.Tensor, _reduce_tensor)
    reduction.register(torch.nn.Parameter, _reduce_tensor)
    reduction.register(torch.UntypedStorage, _reduce_storage)


def _reduce_tensor(tensor: torch.Tensor) -> Reduced:
    if tensor.device.type != "npu":
        reduced: Reduced = reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        return reduced
    if problem := _problem(tensor):
        return _refuse(problem)
    torch.utils.hooks.warn_if_has_hooks(tensor)
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        host = tensor.detach().cpu()
        _keep_until_launched(host)
        return _rebuild_from_host, (
            type(tensor),
            reductions.reduce_tensor(host),  # type: ignore[no-untyped-call]
            str(tensor.device),
            tensor.requires_grad,
        )
    geometry = (
        tensor.storage_offset(),
        tuple(tensor.size()),
        tensor.stride(),
        tensor.requires_grad,
    )
    # The storage has its own reducer, and the pickler calls it once per message: tensors that share
    # memory still share it on arrival.
    return _rebuild_tensor, (
        type(tensor),
        tensor.untyped_storage(),
        tensor.dtype,
        geometry,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def _reduce_storage(storage: torch.UntypedStorage) -> Reduced:
    if storage.device.type != "npu":
        reduced: Reduced = reductions.reduce_storage(storage)  # type: ignore[no-untyped-call]
        return reduced
    if _C.is_in_bad_fork():
        return _refuse(_forked())
    host = torch.UntypedStorage._new_shared(storage.nbytes())  # type: ignore[no-untyped-call]
    host.copy_(storage)
    _keep_until_launched(host)
    return _rebuild_storage, (
        reductions.reduce_storage(host),  # type: ignore[no-untyped-call]
        str(storage.device),
    )


def _keep_until_launched(host: torch.Tensor | torch.UntypedStorage) -> None:
    """Keeps the storages of a process that is being started alive, as one of its arguments.

    A queue or a pipe duplicates the file descriptor at once. A launch keeps only its number, so the
    new process would lose a descriptor that is closed with its storage.
    """
    launch = get_spawning_popen()
    if launch is not None:
        vars(launch).setdefault("_npu_sent", []).append(host)


def _problem(tensor: torch.Tensor) -> Exception | None:
    """Returns the reason why a tensor cannot be sent; None if it can."""
    if _C.is_in_bad_fork():
        return _forked()
    if tensor.requires_grad and not tensor.is_leaf:
        return InputError(
            "npu: a tensor that autograd computed cannot go to another process; its graph stays "
            "here. Send tensor.detach().",
            code="send-non-leaf",
        )
    return None


def _forked() -> Exception:
    try:
        _C.check_process()
    except DeviceError as error:
        return error
    raise AssertionError("asked for the error of a forked process in one that is not")


def _refuse(problem: Exception) -> Reduced:
    """Raises; in a DataLoader worker, the process that waits for the batch raises instead.

    A worker's queue pickles on a separate thread, where an exception only prints a traceback and
    the batch never arrives.
    """
    if get_worker_info() is None:
        raise problem
    return _raise, (problem,)


def _raise(problem: Exception) -> NoReturn:
    raise problem


def _rebuild_storage(reduced: Reduced, device: str) -> torch.UntypedStorage:
    function, arguments = reduced
    storage: torch.UntypedStorage = function(*arguments).to(device=device)
    return storage


def _rebuild_tensor(
    kind: type[torch.Tensor],
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    geometry: Geometry,
    is_conj: bool,
    is_neg: bool,
) -> torch.Tensor:
    offset, size, stride, requires_grad = geometry
    tensor = torch.empty(0, dtype=dtype, device=storage.device)
    tensor.set_(storage, offset, size, stride)
    if is_conj:
        tensor = torch._conj(tensor)
    if is_neg:
        tensor = torch._neg_view(tensor)
    return _finish(kind, tensor, requires_grad)


def _rebuild_from_host(
    kind: type[torch.Tensor], reduced: Reduced, device: str, requires_grad: bool
) -> torch.Tensor:
    function, arguments = reduced
    return _finish(kind, function(*arguments).to(device), requires_grad)


def _finish(kind: type[torch.Tensor], tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    if issubclass(kind, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor
