"""Puts programs where a model's own code calls its parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from transformers.modeling_outputs import BaseModelOutputWithPast

from npu_llm.cache_names import CACHE, rename_cache
from npu_llm.errors import OptionError
from npu_llm.vision_language.calls import Outline, read_call
from npu_llm.vision_language.grids import with_positions
from npu_llm.vision_language.places import LANGUAGE, find_parts, glue_tensors
from npu_llm.vision_language.running import Parts

__all__ = ["GLUE", "put_programs"]

GLUE = "glue.safetensors"


@dataclass(frozen=True)
class _KnownPart:
    """How a part was called when it was captured; see npu_llm.vision_language.observing.

    Attributes:
        inputs: the tensors' names, sorted.
        choices: what else it was called with.
        result: what it returns.
    """

    inputs: Sequence[str]
    choices: Mapping[str, Any]
    result: Outline

    @classmethod
    def from_dict(cls, about: Mapping[str, Any]) -> _KnownPart:
        """Returns what npu_llm.vision_language.observing.SeenPart.as_dict wrote."""
        return cls(about["inputs"], about["choices"], Outline(**about["result"]))


def put_programs(model: Any, programs: Parts) -> None:
    """Makes a model without weights run its parts as programs.

    Args:
        model: of the class whose parts the programs are.
        programs: by the names that npu_llm.vision_language.places has for the parts.
    """
    held = load_file(programs.entry.folder / GLUE)
    for name, tensor in list(glue_tensors(model)):
        _replace(model, name, held[name].to(tensor.dtype))
    parts = find_parts(model)
    for name, part in parts.items():
        for inner, tensor in (*part.named_parameters(), *part.named_buffers()):
            # The model's code asks where and of which dtype they are.
            _replace(part, inner, torch.zeros((), dtype=tensor.dtype).expand(tensor.shape))
        run = _language(part) if name == LANGUAGE else _stateless(name, part, programs)
        object.__setattr__(part, "forward", functools.wraps(part.forward)(run))


def _stateless(name: str, part: torch.nn.Module, programs: Parts) -> Callable[..., Any]:
    about: dict[str, Any] | None = programs.entry.about["parts"].get(name)
    known = None if about is None else _KnownPart.from_dict(about)

    def run(*args: Any, **kwargs: Any) -> Any:
        call = read_call(part, args, kwargs)
        tensors = with_positions(part, call.tensors)
        got = _listed(sorted(tensors), call.choices)
        if known is None or got != _listed(known.inputs, known.choices):
            wanted = "not at all" if known is None else _listed(known.inputs, known.choices)
            raise OptionError(
                f"{name}: must be called as when it was captured, with {wanted}; got {got}. Omit "
                "options of images, or load a checkpoint that has them in its config.",
                code="input-name",
            )
        return known.result.make(programs.run(name, tensors))

    return run


def _language(part: torch.nn.Module) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        cache = rename_cache(kwargs)
        call = read_call(part, args, {k: v for k, v in kwargs.items() if k != CACHE})
        hidden = cache.read(call.tensors)
        return BaseModelOutputWithPast(last_hidden_state=hidden, **{CACHE: cache})

    return run


def _replace(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    if last in owner._parameters:
        owner._parameters[last] = torch.nn.Parameter(tensor, requires_grad=False)
    else:
        owner._buffers[last] = tensor


def _listed(inputs: Sequence[str], choices: Mapping[str, Any]) -> str:
    return ", ".join([*inputs, *(f"{name}={value}" for name, value in sorted(choices.items()))])
