"""Submodules of a vision-language model, and the calls between them.

Some encoders read patches. An image of any size is a list of patches and a grid. Positions, and the
patches that attend to each other, depend on the grid's values, so a traced encoder takes them as
inputs, computed by functions of transformers. Patches of one image or frame attend to each other;
transformers passes the start of each sequence to kernels for packed sequences. Attention here is
registered as such a kernel, and derives a mask from the starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.utils import ModelOutput

from npu_llm.errors import CaptureError
from npu_llm.tasks.results import describe_result, make_result

try:
    from transformers.exporters.utils import precompute_export_inputs
except ImportError:  # before transformers 5.2x: such encoders cannot be traced
    precompute_export_inputs = None

__all__ = [
    "EMBED",
    "GRID",
    "HEAD",
    "LANGUAGE",
    "Call",
    "Outline",
    "call_again",
    "find_parts",
    "outer_tensors",
    "outline",
    "packed_attention",
    "read_call",
    "with_positions",
]

EMBED, LANGUAGE, HEAD = "embed", "language", "head"


def find_parts(model: Any) -> dict[str, torch.nn.Module]:
    """Returns a model's parts: the modules that its own code calls in sequence.

    Args:
        model: a vision-language model of transformers.

    Returns:
        By name: the token embedding, the language model, the head for logits, and each other child
        of the model without its head, by its own name.

    Raises:
        CaptureError: [unknown-encoder] for a model with other parts.
    """
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    inner = getattr(model, model.base_model_prefix, None)
    children = {} if inner is None else dict(inner.named_children())
    languages = [name for name, child in children.items() if embed in set(child.modules())]
    if head is None or len(languages) != 1:
        raise CaptureError(
            f"`{type(model).__name__}` must have a language model with an embedding of tokens, "
            f"and a head, next to its image encoder, got {', '.join(children) or 'no parts'}. "
            "Such models are not supported yet.",
            code="unknown-encoder",
        )
    language = children.pop(languages[0])
    return {**children, EMBED: embed, LANGUAGE: language, HEAD: head}


def outer_tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the parameters and buffers of the code between the parts, with names."""
    inside = {
        id(tensor)
        for part in find_parts(model).values()
        for tensor in (*part.parameters(), *part.buffers())
    }
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in inside:
            yield name, tensor


# Passed in many calls, without an effect on a part's results.
_WITHOUT_EFFECT = {"return_dict", "use_cache", "output_attentions"}


@dataclass(frozen=True)
class Call:
    """A call of a part.

    Attributes:
        tensors: tensors by name; those in a mapping are named with a dot and their key.
        choices: other effective arguments, such as requested hidden states.
    """

    tensors: dict[str, torch.Tensor]
    choices: dict[str, Any]


@dataclass(frozen=True)
class Outline:
    """The structure of a part's result.

    Attributes:
        tree: the index of a tensor, None, a list, or a mapping of a result's fields.
        described: the result's class, described by npu_llm.tasks.results; None for a tensor.
    """

    tree: Any
    described: Mapping[str, Any] | None

    def make(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Returns a result with these tensors."""
        values = _filled(self.tree, tensors)
        return values if self.described is None else make_result(self.described, values)


def read_call(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Returns the tensors and other arguments of a module's call."""
    signature = inspect.signature(type(module).forward)
    bound = signature.bind(module, *args, **kwargs)
    given = dict(list(bound.arguments.items())[1:])
    given |= given.pop("kwargs", {})
    tensors: dict[str, torch.Tensor] = {}
    choices: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif isinstance(value, dict) and any(isinstance(v, torch.Tensor) for v in value.values()):
            tensors |= {f"{name}.{key}": one for key, one in value.items() if one is not None}
        elif value is None or value is False or name in _WITHOUT_EFFECT:
            continue
        # Unknown arguments go to the part's layers, which only use such output options.
        elif name in signature.parameters or name.startswith("output_"):
            choices[name] = list(value) if isinstance(value, tuple) else value
    return Call(tensors, choices)


def call_again(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Returns call arguments with these tensors."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        outer, _, key = name.partition(".")
        if key:
            found.setdefault(outer, {})[key] = tensor
        else:
            found[name] = tensor
    return found


def outline(result: Any) -> tuple[Outline, list[torch.Tensor]]:
    """Returns the structure of a result, and its tensors."""
    tensors: list[torch.Tensor] = []
    described = describe_result(result) if isinstance(result, ModelOutput) else None
    return Outline(_emptied(result, tensors), described), tensors


def _emptied(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return len(tensors) - 1
    if isinstance(value, dict):
        return {key: _emptied(one, tensors) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_emptied(one, tensors) for one in value]
    return None


def _filled(tree: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(tree, int):
        return tensors[tree]
    if isinstance(tree, dict):
        return {key: _filled(one, tensors) for key, one in tree.items()}
    if isinstance(tree, list):
        return tuple(_filled(one, tensors) for one in tree)
    return None


GRID = "grid_thw"
# transformers looks for "flash" in the name of kernels for packed sequences.
_PACKED = "npu_flash_packed"


def with_positions(
    module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Adds the inputs that an encoder computes from its grid, if it has one.

    Args:
        module: the encoder.
        tensors: its inputs by name.

    Raises:
        CaptureError: [capture-failed] if transformers has no such functions.
    """
    if GRID not in tensors:
        return dict(tensors)
    if precompute_export_inputs is None:
        raise CaptureError(
            f"`{type(module).__name__}` must take inputs derived from its grid, as transformers "
            "5.24 allows, got an older release. Install a newer transformers.",
            code="capture-failed",
        )
    given: dict[str, Any] = dict(tensors)
    precompute_export_inputs(module, given)
    return {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}


@contextmanager
def packed_attention(
    module: Any, tensors: Mapping[str, torch.Tensor]
) -> Iterator[Mapping[str, Any]]:
    """Makes an encoder of patches attend by a mask; yields additional arguments for it."""
    if GRID not in tensors:
        yield {}
        return
    AttentionInterface.register(_PACKED, _attend)
    config = module.config
    before = config._attn_implementation
    config._attn_implementation = _PACKED
    try:
        # Used only by kernels, and computed from data if it is omitted.
        longest = {"max_seqlen": 1}
        if "cu_window_seqlens" in tensors:
            longest["max_window_seqlen"] = 1
        yield longest
    finally:
        config._attn_implementation = before


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    scaling: float,
    cu_seq_lens_q: torch.Tensor,
    **__: Any,
) -> tuple[torch.Tensor, None]:
    """Attends within consecutive sequences.

    Args:
        module: unused.
        query: (1, heads, patches, size), as are key and value.
        key: see query.
        value: see query.
        scaling: factor of the scores.
        cu_seq_lens_q: (sequences + 1,) the start of each sequence, and the end.

    Returns:
        (1, patches, heads, size), and None for the weights.
    """
    places = torch.arange(query.shape[2], device=query.device)
    numbers = (places[:, None] >= cu_seq_lens_q[None, 1:]).sum(-1)
    mask = numbers[:, None] == numbers[None, :]
    found = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask[None, None], scale=scaling
    )
    return found.transpose(1, 2).contiguous(), None
