"""What transformers is told of npu: a function for each module, run when the module is there."""

import inspect
from types import ModuleType
from typing import Any

import torch

from npu_runtime import npu
from npu_runtime.hugging_face.attention import flash_attn_func, flash_attn_varlen_func
from npu_runtime.hugging_face.memory_keys import with_indices
from npu_runtime.hugging_face.moving import warn_if_moved
from npu_runtime.hugging_face.questions import answer_in
from npu_runtime.library_patches.replacing import forget_answers, replace, wrap
from npu_runtime.torch_integration.distributed import BACKEND

__all__ = ["CHANGES"]

_QUESTION = "is_torch_npu_available"


def _answer(module: ModuleType) -> None:
    answer_in(module, _QUESTION)


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


def _memory(module: ModuleType) -> None:
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


CHANGES = {
    "transformers.utils.import_utils": _answer,
    "transformers.utils": _forget,
    "transformers.masking_utils": _block_masks,
    "transformers.cache_utils": _offloaded_cache,
    "transformers.integrations.npu_flash_attention": _flash_attention,
    "transformers.integrations.accelerate": _memory,
    "transformers.integrations.flex_attention": _flex_attention,
    "transformers.trainer_optimizer": _fused_optimizer,
    "transformers.trainer": _trainer,
    "transformers.pipelines.base": _pipeline,
    "transformers.distributed.utils": _distributed,
}
