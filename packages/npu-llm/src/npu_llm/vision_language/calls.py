"""What a part of a model is called with and returns: as named tensors, and as it was again."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.utils import ModelOutput

from npu_llm.tasks.results import describe_result, make_result

__all__ = ["Call", "Outline", "call_again", "outline", "read_call"]

# Said with many calls, and without effect on what a part computes.
_WITHOUT_EFFECT = {"return_dict", "use_cache", "output_attentions"}


@dataclass(frozen=True)
class Call:
    """A call of a part.

    Attributes:
        tensors: by name; those in a mapping have its name, a dot and their key.
        choices: what else has an effect, such as which hidden states to return.
    """

    tensors: dict[str, torch.Tensor]
    choices: dict[str, Any]


@dataclass(frozen=True)
class Outline:
    """What a part's result is made of.

    Attributes:
        tree: the number of a tensor, None, a list, or a mapping of the fields of a result.
        described: the result's class, as npu_llm.tasks.results describes it; None for a tensor.
    """

    tree: Any
    described: Mapping[str, Any] | None

    def make(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Returns a result with these tensors."""
        values = _filled(self.tree, tensors)
        return values if self.described is None else make_result(self.described, values)


def read_call(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Returns what a module is called with."""
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
        # What a part has no name for it hands on to its layers, which heed such outputs alone.
        elif name in signature.parameters or name.startswith("output_"):
            choices[name] = list(value) if isinstance(value, tuple) else value
    return Call(tensors, choices)


def call_again(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Returns the arguments that have these tensors."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        outer, _, key = name.partition(".")
        if key:
            found.setdefault(outer, {})[key] = tensor
        else:
            found[name] = tensor
    return found


def outline(result: Any) -> tuple[Outline, list[torch.Tensor]]:
    """Returns what a result is made of, and its tensors."""
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
