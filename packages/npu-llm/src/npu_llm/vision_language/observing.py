"""Sees what a model's own code calls its parts with: it runs, and its parts only as shapes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.modeling_outputs import BaseModelOutputWithPast

from npu_llm.errors import CaptureError
from npu_llm.part_programs.tracing import TRACE_FAILURES, Example
from npu_llm.vision_language.calls import Call, Outline, call_again, outline, read_call
from npu_llm.vision_language.examples import example_images, example_text
from npu_llm.vision_language.grids import packed_attention, with_positions
from npu_llm.vision_language.places import LANGUAGE, find_parts

__all__ = ["SeenPart", "count_image_tokens", "observe_parts"]


@dataclass(frozen=True)
class SeenPart:
    """How a part is called.

    Attributes:
        examples: its inputs by name, with the dimensions that vary from call to call.
        choices: what else it is called with, which is always the same.
        result: what it returns.
    """

    examples: dict[str, Example]
    choices: dict[str, Any]
    result: Outline

    def as_dict(self) -> dict[str, Any]:
        """Returns as JSON what a call of its program needs to know."""
        return {
            "inputs": sorted(self.examples),
            "choices": self.choices,
            "result": {"tree": self.result.tree, "described": self.result.described},
        }


def observe_parts(model: Any) -> dict[str, SeenPart]:
    """Runs a model's own code twice, with other numbers of rows, images and tokens.

    Args:
        model: a model of transformers for images and text; its weights are not read.

    Returns:
        By name: its parts as npu_llm.vision_language.places finds them, if they are called.

    Raises:
        CaptureError: [unknown-encoder] if its code cannot run on example inputs, or calls a part
            more than once.
    """
    first, second = (_observe(model, rows, tokens) for rows, tokens in ((2, 5), (3, 7)))
    seen = {}
    for name, (call, result) in first.items():
        other, _ = second[name]
        if call.choices != other.choices or call.tensors.keys() != other.tensors.keys():
            raise _unknown(model, f"{name} called in different ways")
        examples = {}
        for key, tensor in other.tensors.items():
            before = call.tensors[key].shape
            if len(before) != tensor.dim():
                raise _unknown(model, f"{name} called with {key} of different ranks")
            varying = [dim for dim, size in enumerate(tensor.shape) if size != before[dim]]
            examples[key] = Example(tensor, tuple(varying))
        seen[name] = SeenPart(examples, call.choices, result)
    return seen


def count_image_tokens(model: Any, images: Mapping[str, torch.Tensor], *, rows: int) -> int:
    """Returns how many tokens a model makes of each of as many equal images as there are rows."""
    with _seen_calls(model), torch.no_grad():
        found = model.get_image_features(**images)
    features = getattr(found, "pooler_output", found)
    each = [features] if isinstance(features, torch.Tensor) else features
    return sum(one.numel() // one.shape[-1] for one in each) // rows


def _observe(model: Any, rows: int, tokens: int) -> dict[str, tuple[Call, Outline]]:
    try:
        pictures = example_images(model, rows=rows, fill=torch.ones)
        count = count_image_tokens(model, pictures, rows=rows)
        text = example_text(model, images=count, tokens=[[1] * tokens] * rows)
        with _seen_calls(model) as seen, torch.no_grad():
            model(**text, **pictures, use_cache=False)
    except TRACE_FAILURES as failure:
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        raise _unknown(model, lines[0].rstrip(".")) from failure
    twice = [name for name, calls in seen.items() if len(calls) > 1]
    if twice:
        raise _unknown(model, f"{twice[0]} called more than once")
    return {name: calls[0] for name, calls in seen.items()}


@contextmanager
def _seen_calls(model: Any) -> Iterator[dict[str, list[tuple[Call, Outline]]]]:
    """Notes what a model's parts are called with; they return zeros."""
    seen: dict[str, list[tuple[Call, Outline]]] = {}
    parts = find_parts(model)

    def note(name: str, part: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        call = read_call(part, args, kwargs)
        if name == LANGUAGE:
            result = BaseModelOutputWithPast(
                last_hidden_state=torch.zeros_like(call.tensors["inputs_embeds"])
            )
        else:
            tensors = with_positions(part, call.tensors)
            call = Call(tensors, call.choices)
            result = _as_zeros(part, call)
        made, _ = outline(result)
        seen.setdefault(name, []).append((call, made))
        return result

    for name, part in parts.items():
        noted = functools.wraps(part.forward)(functools.partial(note, name, part))
        object.__setattr__(part, "forward", noted)
    try:
        yield seen
    finally:
        for part in parts.values():
            object.__delattr__(part, "forward")


def _as_zeros(part: torch.nn.Module, call: Call) -> Any:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    forward = type(part).forward
    with packed_attention(part, call.tensors) as beside, fake:
        given = call_again({name: fake.from_tensor(one) for name, one in call.tensors.items()})
        result = forward(part, **given, **call.choices, **beside)
    made, tensors = outline(result)
    return made.make([torch.zeros(one.shape, dtype=one.dtype) for one in tensors])


def _unknown(model: Any, got: str) -> CaptureError:
    return CaptureError(
        f"{type(model).__name__}: its code must run on example images and text, and call each part "
        f"once; got: {got}. Such models are not supported yet.",
        code="unknown-encoder",
    )
