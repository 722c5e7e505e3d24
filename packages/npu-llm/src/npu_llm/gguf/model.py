"""Builds a GGUF file's transformers model, with parameters that stay in the file."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from npu_llm.errors import ModelError
from npu_llm.gguf.description import Description
from npu_llm.gguf.ropes import Rope
from npu_llm.gguf.weights import Weight

try:
    from transformers.initialization import no_init_weights
except ImportError:  # before transformers 5
    from transformers.modeling_utils import no_init_weights

__all__ = ["load_gguf_model", "made_of"]

# For classifiers.
_SCORES = "cls.output.weight"

_lock = threading.RLock()


def load_gguf_model(path: Path, *, auto: Any = None) -> tuple[Any, dict[str, Weight]]:
    """Builds a GGUF file's model on the CPU without reading its weights.

    Args:
        path: the file, or any part of a split one.
        auto: transformers' auto class for the task; by default that of the architecture.

    Returns:
        A transformers model in eval mode with parameters on the meta device, and the values of each
        by name.

    Raises:
        ModelError: [gguf-architecture] for an architecture that is not in the table,
            [gguf-metadata] for missing, inconsistent or unused metadata, [gguf-tensors] for unused
            tensors, [weights-missing], [weights-shape] for missing or mismatched ones,
            [unknown-architecture] for a class of another task, and the errors of
            npu_llm.gguf.file.open_gguf.
    """
    described = Description(path)
    row, keys = described.row, described.keys
    made = _class_for(described, auto)
    model = _build(described, made)
    described.base, described.has_head = model.base_model_prefix, made is not AutoModel
    if row.prepare is not None:
        row.prepare(model, keys)
    weights = dict(_weights(model, described))
    _set_ropes(model, described.ropes)
    described.check_all_used()
    return model.eval(), weights


def _class_for(described: Description, auto: Any) -> Any:
    """Returns transformers' auto class for a task, if the file supports it."""
    row, keys = described.row, described.keys
    if auto is None or (auto is AutoModel and row.auto == "AutoModelForTextEncoding"):
        return getattr(transformers, row.auto)
    is_possible = auto.__name__ == row.auto or auto is AutoModel
    if auto is AutoModelForSequenceClassification:
        is_possible = keys.has_tensor(_SCORES)
    if is_possible:
        return auto
    made_for, command = ("text embeddings", "embed")
    if row.auto == "AutoModelForCausalLM":
        made_for, command = ("continuing texts", "generate")
    raise ModelError(
        f"`{keys.file.path}` must have an architecture for "
        f"{auto.__name__.removeprefix('AutoModelFor')}, got {keys.file.architecture!r}, which is "
        f"for {made_for}. Load it with NPUAutoModel, or run npu-llm {command}.",
        code="unknown-architecture",
    )


def made_of(config: Any, auto: Any) -> Any:
    """Returns a model with parameters on the meta device, and buffers with values.

    Args:
        config: transformers' config.
        auto: transformers' auto class for the task.
    """
    with _lock, no_init_weights(), _without_memory():
        model = auto.from_config(config, dtype=torch.float32)
        model.tie_weights()
        return model


def _build(described: Description, auto: Any) -> Any:
    """Returns the model, with parameters on the meta device, and buffers with values."""
    row, attributes = described.row, described.config()
    if auto is AutoModelForSequenceClassification:
        attributes["num_labels"] = described.keys.tensor(_SCORES).shape[0]
    try:
        config = AutoConfig.for_model(row.model_type, **attributes)
        config.architectures = [auto._model_mapping[type(config)].__name__]
        config.dtype = torch.float32
        return made_of(config, auto)
    except (MemoryError, ModelError):
        raise
    except Exception as failure:  # of any class: configs validate, and models use them
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        raise described.keys.refuse(
            f"must be a model that transformers' {row.model_type} supports, got: "
            f"{lines[-1].strip()}"
        ) from failure


@contextmanager
def _without_memory() -> Iterator[None]:
    """Moves each parameter to the meta device when a module of this thread receives it."""
    original, mine = nn.Module.register_parameter, threading.get_ident()

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and threading.get_ident() == mine and not param.is_meta:
            param = nn.Parameter(param.detach().to("meta"), requires_grad=False)
        original(module, name, param)

    nn.Module.register_parameter = register  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


def _weights(model: Any, described: Description) -> Iterator[tuple[str, Weight]]:
    """Yields the values of each parameter; sets those of persistent buffers."""
    _add_biases(model, described)
    buffers = dict(model.named_buffers())
    parameters = dict(model.named_parameters(remove_duplicate=False))
    seen: set[int] = set()
    for name in model.state_dict():
        tensor = parameters.get(name, buffers.get(name))
        if tensor is None or (id(tensor) in seen and name in parameters):
            continue
        seen.add(id(tensor))
        weight = described.weight(name, tuple(tensor.shape))
        if name in buffers:
            buffers[name].copy_(weight.values())
            continue
        for other, same in parameters.items():
            if same is tensor:
                yield other, weight


def _add_biases(model: Any, described: Description) -> None:
    """Adds the file's biases to linear layers and norms of classes without them."""
    if not any(name.endswith(".bias") for name in described.keys.file.tensors):
        return
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Linear, nn.LayerNorm)) or module.bias is not None:
            continue
        if described.has_bias(name):
            size = module.weight.shape[0]
            module.bias = nn.Parameter(torch.empty(size, device="meta"), requires_grad=False)


def _set_ropes(model: Any, ropes: Mapping[str, Rope]) -> None:
    """Sets the frequencies of all rotary embeddings to ggml's."""
    for module in model.modules():
        for prefix, rope in ropes.items():
            buffer = getattr(module, f"{prefix}inv_freq", None)
            if not isinstance(buffer, torch.Tensor):
                continue
            for name in (f"{prefix}inv_freq", f"{prefix}original_inv_freq"):
                if isinstance(getattr(module, name, None), torch.Tensor):
                    getattr(module, name).copy_(rope.frequencies)
            kinds = getattr(module, "rope_type", None)
            if isinstance(kinds, dict):
                kinds[prefix.removesuffix("_")] = "default"
            elif kinds is not None:
                module.rope_type = "default"  # equal for texts of any length
            scaling = f"{prefix}attention_scaling"
            if hasattr(module, scaling):
                setattr(module, scaling, rope.scale)
