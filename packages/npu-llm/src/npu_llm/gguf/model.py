"""Builds transformers' model of a GGUF file, with parameters that stay in the file."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig

from npu_llm.errors import ModelError
from npu_llm.gguf.architectures import find_architecture
from npu_llm.gguf.file import open_gguf
from npu_llm.gguf.keys import Keys
from npu_llm.gguf.ropes import Rope
from npu_llm.gguf.rows import Architecture, At, Named
from npu_llm.gguf.weights import Weight, zeros

try:
    from transformers.initialization import no_init_weights
except ImportError:  # before transformers 5
    from transformers.modeling_utils import no_init_weights

__all__ = ["load_gguf_model", "made_of"]

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
# Tensors of factors, which are part of the rotary positions.
_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_lock = threading.RLock()


def load_gguf_model(path: Path, *, auto: Any = None) -> tuple[Any, dict[str, Weight]]:
    """Builds the model of a GGUF file on the CPU, without reading its weights.

    Args:
        path: the file, or any part of a split one.
        auto: transformers' class for models of its task; by default the architecture's own.

    Returns:
        A transformers model in eval mode whose parameters are on the meta device, and the values
        of each by name.

    Raises:
        ModelError: [gguf-architecture] for one that is not in the table, [gguf-metadata] for
            metadata that is missing, contradicts itself or would be left out, [gguf-tensors] for
            tensors without a place in the model, [weights-missing], [weights-shape] for the
            opposite, and what npu_llm.gguf.file.open_gguf raises.
    """
    file = open_gguf(path)
    keys = Keys(file)
    row = find_architecture(keys)
    made = getattr(transformers, row.auto) if auto is None else auto
    ropes = {} if row.ropes is None else dict(row.ropes(keys))
    model = _build(keys, row, ropes, made)
    if row.prepare is not None:
        row.prepare(model, keys)
    used: set[str] = set()
    weights = dict(_weights(model, keys, row, used))
    if row.ropes is not None:
        _set_ropes(model, ropes)
        used |= set(_FACTORS)
    keys.check_all_used(row.without_effect)
    # Layers that only predict further tokens are not run.
    last = keys.layers
    predicting = tuple(f"blk.{layer}." for layer in range(last, keys.number("block_count")))
    left = sorted(
        name
        for name in file.tensors
        if name not in used and not name.startswith((*predicting, *row.unused))
    )
    if left:
        raise ModelError(
            f"{file.path}: must have no tensors that the model has no place for; got {len(left)}, "
            f"such as {', '.join(left[:3])} (architecture {file.architecture!r}). Convert the "
            "model again, or use a checkpoint folder of it.",
            code="gguf-tensors",
        )
    return model.eval(), weights


def made_of(config: Any, auto: Any) -> Any:
    """Returns a model with parameters on the meta device and buffers that have values.

    Args:
        config: transformers' config.
        auto: transformers' class for models of the task.
    """
    with _lock, no_init_weights(), _without_memory():
        model = auto.from_config(config, dtype=torch.float32)
        model.tie_weights()
        return model


def _build(keys: Keys, row: Architecture, ropes: Mapping[str, Rope], auto: Any) -> Any:
    """Returns the model, with parameters on the meta device and buffers that have values."""
    attributes = row.config_of(keys)
    partial = attributes.get("partial_rotary_factor")
    extras = dict(row.rope_extras(keys))
    parameters = {
        prefix.removesuffix("_"): {**rope.parameters(partial=partial), **extras}
        for prefix, rope in ropes.items()
    }
    if parameters:
        attributes["rope_parameters"] = parameters.get("", parameters)
    attributes |= _special_tokens(keys)
    try:
        config = AutoConfig.for_model(row.model_type, **attributes)
        config.architectures = [auto._model_mapping[type(config)].__name__]
        config.dtype = torch.float32
        return made_of(config, auto)
    except (MemoryError, ModelError):
        raise
    except Exception as failure:  # of any class: configs check themselves, models compute with them
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        raise keys.refuse(
            f"must be a model that transformers' {row.model_type} can be, got: {lines[-1].strip()}"
        ) from failure


def _special_tokens(keys: Keys) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        value = keys.file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        is_one = isinstance(value, int) and 0 <= value < keys.vocabulary
        found[f"{name}_token_id"] = value if is_one else None
    return found


@contextmanager
def _without_memory() -> Iterator[None]:
    """Moves each parameter to the meta device when a module of this thread gets it."""
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


def _weights(
    model: Any, keys: Keys, row: Architecture, used: set[str]
) -> Iterator[tuple[str, Weight]]:
    """Yields the values of each parameter; sets those of buffers that are part of a checkpoint."""
    _add_biases(model, keys, row)
    buffers = dict(model.named_buffers())
    parameters = dict(model.named_parameters(remove_duplicate=False))
    seen: set[int] = set()
    for name in model.state_dict():
        tensor = parameters.get(name, buffers.get(name))
        if tensor is None or (id(tensor) in seen and name in parameters):
            continue
        seen.add(id(tensor))
        weight = _find(name, tuple(tensor.shape), keys, row)
        if weight.shape != tuple(tensor.shape):
            made_of = ", ".join(one.name for one in weight.tensors[:3])
            raise ModelError(
                f"{keys.file.path}: must have weights of the shapes that its metadata implies; "
                f"{made_of or name} gives {list(weight.shape)} instead of {list(tensor.shape)}. "
                "Convert the model again.",
                code="weights-shape",
            )
        used |= {one.name for one in (*weight.tensors, *weight.others)}
        if name in buffers:
            buffers[name].copy_(weight.values())
            continue
        for other, same in parameters.items():
            if same is tensor:
                yield other, weight


def _find(name: str, shape: tuple[int, ...], keys: Keys, row: Architecture) -> Weight:
    numbers = tuple(int(number) for number in _NUMBER.findall(name))
    pattern = _NUMBER.sub("*", name)
    module, _, leaf = pattern.rpartition(".")
    source = row.names.get(pattern, row.names.get(module))
    if source is None:
        raise keys.refuse(f"must be a model without {name}, for which the table has no tensor")
    at = At(keys, numbers, leaf)
    if callable(source):
        if leaf == "bias" and not _has_bias(at, source):
            return zeros(*shape)
        return source(at)
    if not at.has(source) and any(fnmatchcase(at.full(source), f"*{one}") for one in row.optional):
        return zeros(*shape)
    return at.weight(source)


def _has_bias(at: At, source: Named) -> bool:
    try:
        assert callable(source)
        source(at)
    except ModelError:
        return False
    return True


def _add_biases(model: Any, keys: Keys, row: Architecture) -> None:
    """Gives linear layers and norms the biases that the file has, where their class has none."""
    biases = [name for name in keys.file.tensors if name.endswith(".bias")]
    if not biases:
        return
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Linear, nn.LayerNorm)) or module.bias is not None:
            continue
        source = row.names.get(_NUMBER.sub("*", name + ".")[:-1])
        if source is None:
            continue
        at = At(keys, tuple(int(one) for one in _NUMBER.findall(name + ".")), "bias")
        if _has_bias(at, source) if callable(source) else at.has(source):
            size = module.weight.shape[0]
            module.bias = nn.Parameter(torch.empty(size, device="meta"), requires_grad=False)


def _set_ropes(model: Any, ropes: Mapping[str, Rope]) -> None:
    """Sets the frequencies of all rotary embeddings to those that ggml would compute."""
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
                module.rope_type = "default"  # texts of any length have the same
            scaling = f"{prefix}attention_scaling"
            if hasattr(module, scaling):
                setattr(module, scaling, rope.scale)
