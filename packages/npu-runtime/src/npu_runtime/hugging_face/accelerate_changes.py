"""What accelerate is told of npu: a function for each module, run when the module is there."""

import importlib
from types import ModuleType
from typing import Any

import torch

from npu_runtime.hugging_face.memory_keys import with_indices
from npu_runtime.hugging_face.moving import warn_if_moved
from npu_runtime.hugging_face.questions import answer_in
from npu_runtime.info import device_info
from npu_runtime.library_patches.replacing import wrap
from npu_runtime.torch_integration.distributed import BACKEND

__all__ = ["CHANGES"]

_COMPILER = "NPU"  # accelerate writes names of torch.compile's backends in capitals


def _answer(module: ModuleType) -> None:
    answer_in(module, "is_npu_available")


def _process_group(module: ModuleType) -> None:
    def prepare(
        prepared: Any, state: Any, cpu: bool = False, sagemaker: Any = False, asked: Any = None
    ) -> Any:
        backend, kind = prepared(state, cpu, sagemaker, asked)
        if backend == "hccl" and kind == module.DistributedType.MULTI_NPU:
            # accelerate itself refuses another one that was asked for, and names this.
            backend = asked if asked is not None and "gloo" in asked else BACKEND
        return backend, kind

    def wait(waited: Any, state: Any) -> None:
        if state.use_distributed and state.device.type == "npu":
            torch.distributed.barrier()  # accelerate names a device by the process's number
        else:
            waited(state)

    wrap(module.PartialState, "_prepare_backend", prepare)
    wrap(module.PartialState, "wait_for_everyone", wait)


def _compiler(module: ModuleType) -> None:
    backends = module.DynamoBackend
    member = str.__new__(backends, _COMPILER)
    member._name_ = member._value_ = _COMPILER

    def missing(kind: Any, value: object) -> Any:
        return member if value == _COMPILER else None

    backends._missing_ = classmethod(missing)


def _compiler_choices(module: ModuleType) -> None:
    module.DYNAMO_BACKENDS.append(_COMPILER)


def _memory(module: ModuleType) -> None:
    wrap(module, "get_max_memory", with_indices)


def _accelerator(module: ModuleType) -> None:
    def prepare(prepared: Any, accelerator: Any, model: Any, *others: Any, **named: Any) -> Any:
        if not accelerator.state._cpu:
            warn_if_moved(model, accelerator.device, "Accelerator.prepare", "Accelerator")
        if accelerator.device.type != "npu" or accelerator.verify_device_map(model):
            return prepared(accelerator, model, *others, **named)
        # Processes of a machine share its NPU. Without this their number would be the device's,
        # in DistributedDataParallel alone.
        variables = importlib.import_module("accelerate.utils").patch_environment
        with variables(accelerate_bypass_device_map="true"):
            made = prepared(accelerator, model, *others, **named)
        if isinstance(made, torch.nn.parallel.DistributedDataParallel) and made.device_ids is None:
            made.device_ids = [accelerator.device.index or 0]  # inputs of the CPU go there
        return made

    wrap(module.Accelerator, "prepare_model", prepare)


class _Version:
    """torch.version as `accelerate env` reads it."""

    def __getattr__(self, name: str) -> Any:
        if name != "cann":
            return getattr(torch.version, name)
        device = device_info()
        return f"none, npu is {device.full_name} ({device.device}) by {device.driver}"


class _Torch:
    """torch as `accelerate env` sees it: it writes the version of Huawei's software for npu."""

    version = _Version()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _report(module: ModuleType) -> None:
    module.torch = _Torch()  # type: ignore[attr-defined]


CHANGES = {
    "accelerate.utils.imports": _answer,
    "accelerate.utils.dataclasses": _compiler,
    "accelerate.utils.modeling": _memory,
    "accelerate.state": _process_group,
    "accelerate.accelerator": _accelerator,
    "accelerate.commands.config.config_utils": _compiler_choices,
    "accelerate.commands.env": _report,
}
