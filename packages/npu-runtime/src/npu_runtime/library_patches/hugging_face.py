"""Patches for accelerate, diffusers and transformers, applied to imported modules."""

import importlib
import inspect
import logging
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType, ModuleType
from typing import Any

import torch

from npu_runtime import npu
from npu_runtime.info import device_info
from npu_runtime.library_patches import ascend_calls
from npu_runtime.library_patches.ascend_calls import flash_attn_func, flash_attn_varlen_func
from npu_runtime.library_patches.default_device import picks_npu
from npu_runtime.library_patches.replacing import forget_answers, replace, wrap
from npu_runtime.torch_integration.distributed import BACKEND

__all__ = ["CHANGES", "answer_in", "is_npu_available", "warn_if_moved", "with_indices"]

# Modules that use the answer only to call Ascend's kernels: transformers turns an additive mask
# into a boolean one, which differs unless it is all or nothing.
_KEEPS_ANSWER = {"transformers.integrations.sdpa_attention"}
# Libraries with modules that import and call torch_npu: they get our replacement.
_CALLS_ASCEND = ("diffusers.", "trl.")


def is_npu_available(check_device: bool = False) -> bool:
    """Whether npu is the default device; `check_device` is ignored.

    False for code that calls Huawei's torch_npu, so that it takes its generic path.
    """
    return not _means_ascend(sys._getframe(1)) and picks_npu()


def _cache_clear() -> None:
    """Does nothing: unlike the libraries' functions, this one has no cache."""


is_npu_available.cache_clear = _cache_clear  # type: ignore[attr-defined]
# torch.compile puts the answer into its graph, as it does with transformers' own function.
is_npu_available._dynamo_marked_constant = True  # type: ignore[attr-defined]


def answer_in(module: ModuleType, question: str) -> None:
    """Replaces a library's availability function."""
    if replace(module, question, is_npu_available):
        forget_answers(module, {question})


def _means_ascend(caller: FrameType) -> bool:
    """Whether the caller uses Huawei's package."""
    module = str(caller.f_globals.get("__name__"))
    is_import = caller.f_code.co_name == "<module>"
    if is_import and module in _KEEPS_ANSWER:
        return True
    if not any(name.partition(".")[0] == "torch_npu" for name in caller.f_code.co_names):
        return False
    if is_import and module.startswith(_CALLS_ASCEND):
        caller.f_globals.setdefault("torch_npu", ascend_calls)
    return True


def with_indices(counted: Any, max_memory: Any = None) -> Any:
    """Calls accelerate's or transformers' get_max_memory with `npu` and `npu:1` as indices."""
    if max_memory is None:
        return counted(None)
    named = {key: torch.device(key) for key in max_memory if str(key).partition(":")[0] == "npu"}
    if not named:
        return counted(max_memory)
    npu.init()  # the program has chosen npu: report it as available from now on
    indices = {key: device.index or 0 for key, device in named.items()}
    sizes = {indices.get(key, key): size for key, size in max_memory.items()}
    counts = counted(sizes)
    # accelerate replaces texts by bytes, and callers rely on it.
    max_memory.update({key: sizes[indices.get(key, key)] for key in max_memory})
    return counts


_logger = logging.getLogger(__name__)


def warn_if_moved(model: object, device: torch.device, mover: str, decided_by: str) -> None:
    """Logs a warning if a model on npu is about to move to another device.

    Ignores other objects than modules; `decided_by` chose the device at creation.
    """
    if device.type == "npu" or not isinstance(model, torch.nn.Module):
        return
    first = next(model.parameters(), None)
    if first is not None and first.device.type == "npu":
        _logger.warning(
            "npu: %s moves the model from %s to %s, the device that was taken when %s was made. "
            "Set NPU_AUTO=1, or put the model on npu before that, and it stays there.",
            mover,
            first.device,
            device,
            decided_by,
        )


_COMPILER = "NPU"  # accelerate writes names of torch.compile's backends in capitals


def _process_group(module: ModuleType) -> None:
    def prepare(
        prepared: Any, state: Any, cpu: bool = False, sagemaker: Any = False, asked: Any = None
    ) -> Any:
        backend, kind = prepared(state, cpu, sagemaker, asked)
        if backend == "hccl" and kind == module.DistributedType.MULTI_NPU:
            # accelerate itself rejects another requested backend, and names this one.
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


def _accelerate_memory(module: ModuleType) -> None:
    wrap(module, "get_max_memory", with_indices)


def _accelerator(module: ModuleType) -> None:
    def prepare(prepared: Any, accelerator: Any, model: Any, *others: Any, **named: Any) -> Any:
        if not accelerator.state._cpu:
            warn_if_moved(model, accelerator.device, "Accelerator.prepare", "Accelerator")
        if accelerator.device.type != "npu" or accelerator.verify_device_map(model):
            return prepared(accelerator, model, *others, **named)
        # Processes of a machine share its NPU. Without this, DistributedDataParallel would use
        # their rank as device index.
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
    """A stand-in for torch in `accelerate env`, which prints Huawei's version for npu."""

    version = _Version()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _report(module: ModuleType) -> None:
    module.torch = _Torch()  # type: ignore[attr-defined]


_QUESTION = "is_torch_npu_available"


def _forget(module: ModuleType) -> None:
    forget_answers(module, {_QUESTION})


def _flash_attention(module: ModuleType) -> None:
    replace(module, "npu_flash_attn_func", flash_attn_func)
    replace(module, "npu_flash_attn_varlen_func", flash_attn_varlen_func)
    # Huawei's kernel aligns causal attention in two ways, ours as flash attention does. The
    # question is asked during an import, when no device should be opened.
    replace(module, "is_npu_fa2_top_left_aligned_causal_mask", lambda: False)


def _flex_attention(module: ModuleType) -> None:
    def attend(
        compiled: Any, query: Any, key: Any, value: Any, training: bool = False, **options: Any
    ) -> Any:
        if query.device.type == "npu":  # Inductor's kernel is for Triton's devices
            return module.flex_attention(query, key, value, **options)
        return compiled(query, key, value, training=training, **options)

    wrap(module, "compile_friendly_flex_attention", attend)


def _block_masks(module: ModuleType) -> None:
    def create(created: Any, *arguments: Any, device: Any = None, **options: Any) -> Any:
        # Compiling costs a C++ compiler's time for each new shape, and torch 2.13 writes C++ that
        # is not valid for one query and one key in a batch with padding.
        if device is not None and torch.device(device).type == "npu":
            options["_compile"] = False
        return created(*arguments, device=device, **options)

    wrap(module, "create_block_mask", create)


def _fused_optimizer(module: ModuleType) -> None:
    def torch_fused(made_from: Any, context: Any) -> tuple[Any, dict[str, Any]]:
        context.optimizer_kwargs.update(context.adam_kwargs)
        return torch.optim.AdamW, context.optimizer_kwargs | {"fused": True}

    handler = vars(module).get("_get_adamw_torch_npu_fused")
    wrap(module, "_get_adamw_torch_npu_fused", torch_fused)
    for table in [value for value in vars(module).values() if isinstance(value, dict)]:
        for name, value in table.items():
            if handler is not None and value is handler:
                table[name] = vars(module)["_get_adamw_torch_npu_fused"]


def _trainer(module: ModuleType) -> None:
    def move(moved: Any, trainer: Any, model: Any, device: torch.device) -> None:
        if not trainer.args.use_cpu:
            warn_if_moved(model, device, "Trainer", "TrainingArguments")
        moved(trainer, model, device)

    wrap(module.Trainer, "_move_model_to_device", move)


def _transformers_memory(module: ModuleType) -> None:
    if hasattr(module, "get_max_memory"):  # transformers 4 calls accelerate's, which is wrapped
        wrap(module, "get_max_memory", with_indices)


def _pipeline(module: ModuleType) -> None:
    def made(old: Any, *arguments: Any, **named: Any) -> Any:
        given = inspect.signature(old).bind(*arguments, **named)
        model: Any = given.arguments.get("model")
        if given.arguments.get("device") is None and getattr(model, "has_fixed_device", False):
            given.arguments["device"] = model.device  # else inputs would go where it is not
        return old(*given.args, **given.kwargs)

    wrap(module.Pipeline, "__init__", made)


def _distributed(module: ModuleType) -> None:
    def bind(bound: Any, device_type: str, local_rank: int) -> Any:
        # Processes of a machine share its NPU.
        shared = local_rank % npu.device_count() if device_type == "npu" else local_rank
        return bound(device_type, shared)

    module.DISTRIBUTED_BACKEND_MAP.setdefault("npu", BACKEND)
    wrap(module, "_bind_local_device", bind)


def _offloaded_cache(module: ModuleType) -> None:
    def update(
        updated: Any, cache: Any, keys: Any, values: Any, layer: int, *others: Any, **named: Any
    ) -> Any:
        if not cache.offloading or keys.device.type != "npu":
            return updated(cache, keys, values, layer, *others, **named)
        # transformers asks CUDA for the stream that this layer's fetching has to be in order with.
        current = npu.current_stream(keys.device)
        current.wait_stream(cache.prefetch_stream)
        cache.offloading = False
        try:
            found = updated(cache, keys, values, layer, *others, **named)
        finally:
            cache.offloading = True
        cache.prefetch_stream.wait_stream(current)
        cache.prefetch(layer + 1, cache.only_non_sliding)
        cache.offload(layer, cache.only_non_sliding)
        return found

    wrap(module.Cache, "update", update)


# By library and module: functions that patch the module after its import.
CHANGES: dict[str, dict[str, Callable[[ModuleType], None]]] = {
    "accelerate": {
        "accelerate.utils.imports": partial(answer_in, question="is_npu_available"),
        "accelerate.utils.dataclasses": _compiler,
        "accelerate.utils.modeling": _accelerate_memory,
        "accelerate.state": _process_group,
        "accelerate.accelerator": _accelerator,
        "accelerate.commands.config.config_utils": _compiler_choices,
        "accelerate.commands.env": _report,
    },
    "diffusers": {
        "diffusers.utils.import_utils": partial(answer_in, question=_QUESTION),
    },
    "transformers": {
        "transformers.utils.import_utils": partial(answer_in, question=_QUESTION),
        "transformers.utils": _forget,
        "transformers.masking_utils": _block_masks,
        "transformers.cache_utils": _offloaded_cache,
        "transformers.integrations.npu_flash_attention": _flash_attention,
        "transformers.integrations.accelerate": _transformers_memory,
        "transformers.integrations.flex_attention": _flex_attention,
        "transformers.trainer_optimizer": _fused_optimizer,
        "transformers.trainer": _trainer,
        "transformers.pipelines.base": _pipeline,
        "transformers.distributed.utils": _distributed,
    },
}
