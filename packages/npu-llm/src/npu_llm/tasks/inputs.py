"""Inputs of one-step models: validation, and padding to few shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npu_compiler.exported.manifest import Manifest, PortSpec, build
from npu_llm.errors import ContextError, OptionError, check_token_range

__all__ = ["Padding", "bind_inputs"]

# Passed to any model by pipelines and processors; these values have no effect here.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "return_dict": (True, False, None),
    "output_attentions": (False, None),
    "output_hidden_states": (False, None),
    "use_cache": (False, None),
    "interpolate_pos_encoding": (False, None),
    "return_loss": (False, None),
    "labels": (None,),
    "position_ids": (None,),
    "inputs_embeds": (None,),
    "head_mask": (None,),
}
TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")  # for text
_MASKS = ("attention_mask", "pixel_mask")


def bind_inputs(
    name: str,
    given: Mapping[str, Any],
    ports: Sequence[PortSpec],
    *,
    vocabulary: int | None,
    types: int | None,
    limit: int | None,
) -> list[torch.Tensor]:
    """Returns the program's inputs on the host, with default masks and token types.

    Args:
        name: the model's name, for messages.
        given: the caller's arguments by name.
        ports: inputs of the program.
        vocabulary: vocabulary size; token ids are below it.
        types: upper bound of token types.
        limit: the model's maximum number of tokens; None for no limit.

    Raises:
        OptionError: [input-name] for an unknown input, [input-missing], [step-dtype], [step-shape],
            [image-channels], [token-range] or [input-not-finite].
        ContextError: [context-overflow] for a text above the model's limit.
    """
    names = [port.name for port in ports]
    for key, value in given.items():
        if key not in names and not any(value is fine for fine in _WITHOUT_EFFECT.get(key, ())):
            _check_unread(name, key, value, names)
    found: dict[str, torch.Tensor] = {}
    for port in ports:
        value = given.get(port.name)
        if value is None:
            value = _default(name, port, found)
        found[port.name] = _checked(name, port, value)
    if "input_ids" in found:
        ids = found["input_ids"]
        if limit is not None and ids.shape[1] > limit:
            raise ContextError(
                f"`{name}` must be given texts of at most {limit:,} tokens, got {ids.shape[1]:,}. "
                "Shorten or split the text, or have the tokenizer truncate it.",
                code="context-overflow",
            )
        _check_range("input_ids", ids, vocabulary)
    if "token_type_ids" in found:
        _check_range("token_type_ids", found["token_type_ids"], types)
    return [found[port.name] for port in ports]


def _check_unread(name: str, key: str, value: Any, names: Sequence[str]) -> None:
    is_all = isinstance(value, torch.Tensor) and key in _MASKS and bool((value == 1).all())
    is_first = isinstance(value, torch.Tensor) and key == "token_type_ids" and not bool(value.any())
    if is_all or is_first:
        return  # passed without any effect
    raise OptionError(
        f"`{name}` must be called with the inputs {', '.join(names)}, got {key}. Omit it: a "
        "program's inputs and outputs are fixed.",
        code="input-name",
    )


def _default(name: str, port: PortSpec, found: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if port.name == "attention_mask" and found:
        return torch.ones(next(iter(found.values())).shape[:2], dtype=torch.int64)
    if port.name == "pixel_mask" and "pixel_values" in found:
        images = found["pixel_values"]
        return torch.ones((images.shape[0], *images.shape[2:]), dtype=torch.int64)
    if port.name == "token_type_ids" and "input_ids" in found:
        return torch.zeros_like(found["input_ids"])
    raise OptionError(
        f"`{name}` must be given {port.name}, got none. Pass the result of the model's processor "
        "or tokenizer.",
        code="input-missing",
    )


def _checked(name: str, port: PortSpec, value: Any) -> torch.Tensor:
    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    wants_float = port.dtype.startswith(("float", "bfloat"))
    if tensor.is_floating_point() != wants_float:
        raise OptionError(
            f"`{port.name}` must have a dtype of {'floats' if wants_float else 'integers'}, got "
            f"{tensor.dtype}. Pass the result of the model's processor or tokenizer.",
            code="step-dtype",
        )
    wrong = _misfit(port, tensor)
    if port.name == "pixel_values" and wrong in (-1, 1):
        raise OptionError(
            f"`{port.name}` must be (batch, channels, height, width) with {port.shape[1]} "
            f"channels, got {tuple(tensor.shape)}. Prepare it with the model's processor.",
            code="image-channels",
        )
    if wrong is not None:
        raise OptionError(
            f"`{port.name}` must have the shape {_plain(port)} without a size of 0, got "
            f"{tuple(tensor.shape)}. Pass a batch from the model's processor, with "
            'return_tensors="pt".',
            code="step-shape",
        )
    tensor = tensor.detach().to("cpu", getattr(torch, port.dtype)).contiguous()
    if wants_float and not bool(tensor.isfinite().all()):
        raise OptionError(
            f"`{port.name}` must be finite, got NaN or infinity. Check the audio or image behind "
            "it.",
            code="input-not-finite",
        )
    return tensor


def _misfit(port: PortSpec, tensor: torch.Tensor) -> int | None:
    """Returns the first mismatched dimension, -1 for another number of them; None if all match."""
    if tensor.dim() != len(port.shape):
        return -1
    for dim, size in enumerate(port.shape):
        if tensor.shape[dim] == 0 or (isinstance(size, int) and tensor.shape[dim] != size):
            return dim
    return None


def _plain(port: PortSpec) -> str:
    sizes = [str(size) if isinstance(size, int) else "any" for size in port.shape]
    return f"({', '.join(sizes)})"


def _check_range(name: str, ids: torch.Tensor, bound: int | None) -> None:
    if bound is not None:
        check_token_range(name, int(ids.min()), int(ids.max()), bound)


# Tokens of the shortest program; the next ones double it.
_SHORTEST = 16


class Padding:
    """Pads the inputs of a model, and crops its results."""

    def __init__(self, manifest: Manifest, config: Any, *, limit: int | None) -> None:
        """Determines the dynamic sizes.

        Args:
            manifest: manifest of the model's program.
            config: the transformers config.
            limit: maximum number of tokens of a text; None for no limit.
        """
        self._inputs: Sequence[PortSpec] = manifest.inputs
        self._limit = limit
        filling = getattr(config.get_text_config(), "pad_token_id", None)
        self._filling = filling if isinstance(filling, int) and filling >= 0 else 0
        # Results in their original order, which is not that of the outputs.
        places = build(manifest.structure, list(manifest.outputs))
        self._results = pytree.tree_leaves(places)
        names = [port.name for port in manifest.inputs]
        self._rows = {port.shape[0] for port in manifest.inputs if isinstance(port.shape[0], str)}
        self._tokens = {
            port.shape[1]
            for port in manifest.inputs
            if port.name in TOKEN_INPUTS and "input_ids" in names and isinstance(port.shape[1], str)
        }

    def pad(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns inputs with more tokens, which masks hide, and copies of the last row."""
        return [self._longer(port, value) for port, value in zip(self._inputs, values, strict=True)]

    def cut(self, results: Any, values: Sequence[torch.Tensor]) -> Any:
        """Crops a program's results for padded inputs to those of the original inputs."""
        sizes = {
            name: value.shape[dim]
            for port, value in zip(self._inputs, values, strict=True)
            for dim, name in enumerate(port.shape)
            if name in self._rows | self._tokens
        }
        leaves, spec = pytree.tree_flatten(results)
        for index, port in enumerate(self._results):
            if isinstance(port, PortSpec):
                for dim, name in enumerate(port.shape):
                    if name in sizes:
                        leaves[index] = leaves[index].narrow(dim, 0, sizes[name])
        return pytree.tree_unflatten(leaves, spec)

    def _longer(self, port: PortSpec, value: torch.Tensor) -> torch.Tensor:
        for dim, name in enumerate(port.shape):
            size = value.shape[dim]
            if name in self._tokens:
                fill = self._filling if port.name == "input_ids" else 0
                shape = [*value.shape]
                shape[dim] = self._length(size) - size
                value = torch.cat([value, value.new_full(shape, fill)], dim)
            elif name in self._rows:
                rows = torch.arange(_rounded(size, 1)).clamp_max(size - 1)
                value = value.index_select(dim, rows)
        return value

    def _length(self, tokens: int) -> int:
        most = self._limit
        length = _rounded(tokens, _SHORTEST)
        return length if most is None or tokens > most else min(length, most)


def _rounded(number: int, least: int) -> int:
    """Returns `least` times the smallest power of two that reaches a number."""
    while least < number:
        least *= 2
    return least
