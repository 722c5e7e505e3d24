"""Remaps positions: a step reads the positions of cache slots from an input.

Models number keys and queries by slot: key j is token j. A cache with hidden or unused slots breaks
this rule. The pass finds the traced code that numbers them, and reads the numbers from an input
instead. To verify that the model uses slot numbers nowhere else, the step is run on a cache with
holes, and must give the same result as without holes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from npu_llm.adapters.lora import idle_inputs
from npu_llm.capture.graph_rewrites import Emitter
from npu_llm.capture.step import CapturedStep
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.kv_cache.cache import Relocation, Slots
from npu_llm.kv_cache.static_layout import KEY_POSITIONS, TOKEN_MASK

__all__ = ["remap_positions"]

_TO_END = 2**63 - 1
_TOKENS, _PAST = 6, 4
# Relative to the largest logit: tolerance for sums in another order, also in half precision.
_TOLERANCE = 2e-2
_aten = torch.ops.aten
_ARANGE = (_aten.arange.default, _aten.arange.start, _aten.arange.start_step)


def remap_positions(
    captured: CapturedStep,
    *,
    windowed: bool,
    weights: StreamedWeights | None = None,
    given: Mapping[str, torch.Tensor] | None = None,
    embedding: torch.Tensor | None = None,
) -> tuple[CapturedStep, Relocation]:
    """Makes a step independent of the slots of its past, if possible.

    Args:
        captured: the step, unchanged; the result shares its weights.
        windowed: whether a layer sees only a window of positions: holes would then shift the
            window, which no short test detects.
        weights: the values of the step's parameters if they are not in memory.
        given: values for inputs that only steps with an encoder have.
        embedding: (vocabulary, width) embeddings, for a step that reads these.

    Returns:
        The step, with key_positions (past + tokens,) int64 as its last input if it numbers its
        keys; and how its program identifies valid slots.
    """
    runner = _Runner(weights or StreamedWeights(), given or {}, embedding)
    if not captured.layers:
        return captured, None
    numbered = _with_positions(captured)
    if numbered is not None and _stands_holes(numbered, "positions", runner):
        return numbered, "positions"
    if not windowed and _stands_holes(captured, "mask", runner):
        return captured, "mask"
    return captured, None


@dataclass(frozen=True)
class _Runner:
    """Inputs of a step besides tokens: see remap_positions."""

    weights: StreamedWeights
    given: Mapping[str, torch.Tensor]
    embedding: torch.Tensor | None


def _with_positions(captured: CapturedStep) -> CapturedStep | None:
    """Returns the step with key and query positions as an input; None if it numbers none."""
    graph = copy.deepcopy(captured.graph_module.graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    count = len(captured.inputs)
    past = placeholders[count].meta["val"].shape[2]
    tokens = placeholders[0].meta["val"].shape[1]
    keys = [node for node in graph.nodes if _counts(node, 0, past + tokens)]
    if not keys:
        return None
    with graph.inserting_after(placeholders[count - 1]):
        positions = graph.placeholder(KEY_POSITIONS)
    positions.meta["val"] = keys[0].meta["val"]
    for node in keys:
        node.replace_all_uses_with(positions)
    with graph.inserting_after(placeholders[-1]):
        length = graph.call_function(_aten.sym_size.int, (placeholders[count], 2))
    length.meta["val"] = past
    with graph.inserting_after(length):
        last = graph.call_function(_aten.slice.Tensor, (positions, 0, length, _TO_END))
    with positions.meta["val"].fake_mode:
        last.meta["val"] = torch.empty(tokens, dtype=torch.int64)
    for node in list(graph.nodes):
        if _counts(node, past, tokens):
            node.replace_all_uses_with(last)
        elif _shifts(node, past):
            with graph.inserting_before(node):
                emit = Emitter(node)
                first = emit(_aten.slice.Tensor, last, 0, 0, 1)
                first = emit(_aten.to.dtype, first, node.meta["val"].dtype)
            node.replace_input_with(node.args[1], first)
    graph.eliminate_dead_code()
    return replace(
        captured,
        graph_module=fx.GraphModule(captured.graph_module, graph),
        inputs=(*captured.inputs, KEY_POSITIONS),
    )


def _counts(node: fx.Node, start: Any, length: Any) -> bool:
    """Whether a node is a range of `length` integers from `start` on."""
    if node.target not in _ARANGE:
        return False
    first = 0 if node.target is _aten.arange.default else _value(node.args[0])
    step = node.args[2] if len(node.args) > 2 else 1
    size = node.meta["val"].shape[0]
    return bool(_same(first, start) and step == 1 and _same(size, length))


def _shifts(node: fx.Node, summand: Any) -> bool:
    """Whether a node adds `summand` to integers, such as the positions of a step's tokens."""
    if node.target is not _aten.add.Tensor or not isinstance(node.args[1], fx.Node):
        return False
    is_whole = not node.meta["val"].is_floating_point()
    other = _value(node.args[1])
    return is_whole and not isinstance(other, torch.Tensor) and _same(other, summand)


def _value(argument: Any) -> Any:
    return argument.meta.get("val") if isinstance(argument, fx.Node) else argument


def _same(one: Any, other: Any) -> bool:
    """Whether two sizes are the same expression; this adds no condition to the trace."""
    return bool(_expression(one) == _expression(other))


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _stands_holes(captured: CapturedStep, relocation: Relocation, runner: _Runner) -> bool:
    """Whether the step gives the same result with a cache that has holes."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, captured.vocabulary, (1, _TOKENS), generator=generator)
    empty = [torch.zeros(1, heads, 0, size) for heads, size in captured.caches]
    empty += [torch.zeros(1, *state.sizes) for state in captured.states]
    whole = _run(captured, ids, Slots(), empty, relocation, runner)
    slots = Slots()
    # Three tokens, two holes, the fourth token, a hole.
    for wasted in (2, 1):
        slots.append(wasted + (3 if slots.length == 0 else 1))
        slots.crop(slots.length - wasted)
    where = [0, 1, 2, 5]
    past = [
        torch.randn(1, heads, slots.held, size, generator=generator)
        for heads, size in captured.caches
    ]
    for holed, known in zip(past, whole[1 : 1 + len(past)], strict=True):
        holed[:, :, where] = known[:, :, :_PAST].float()
    if captured.states:
        held = _run(captured, ids[:, :_PAST], Slots(), empty, relocation, runner)
        past += held[1 + len(past) :]
    rest = _run(captured, ids[:, _PAST:], slots, past, relocation, runner)
    expected, actual = whole[0][:, _PAST:], rest[0]
    scale = expected.abs().max().clamp_min(1e-6)
    return bool((expected - actual).abs().max() / scale < _TOLERANCE)


def _run(
    captured: CapturedStep,
    ids: torch.Tensor,
    slots: Slots,
    past: list[torch.Tensor],
    relocation: Relocation,
    runner: _Runner,
) -> tuple[torch.Tensor, ...]:
    """Returns the logits of all tokens, and the resulting caches and states."""
    if not captured.states:
        return _run_step(captured, ids, slots, past, relocation, runner)
    slots = copy.deepcopy(slots)
    logits = []
    for place in range(ids.shape[1]):
        token = ids[:, place : place + 1]
        found, *past = _run_step(captured, token, slots, past, relocation, runner)
        logits.append(found)
        slots.append(1)
    return (torch.cat(logits, 1), *past)


def _run_step(
    captured: CapturedStep,
    ids: torch.Tensor,
    slots: Slots,
    past: list[torch.Tensor],
    relocation: Relocation,
    runner: _Runner,
) -> tuple[torch.Tensor, ...]:
    tokens = ids.shape[1]
    positions = torch.arange(slots.length, slots.length + tokens)
    mask = torch.ones(1, slots.length + tokens, dtype=torch.int64)
    values = {
        "input_ids": ids if runner.embedding is None else runner.embedding[ids],
        "attention_mask": slots.mask(mask, relocation),
        "position_ids": positions.expand(*_kinds(captured), 1, tokens),
        "logits_to_keep": torch.arange(tokens),
        KEY_POSITIONS: slots.key_positions(tokens),
        TOKEN_MASK: torch.ones(1, tokens, dtype=torch.int64),
        **idle_inputs(captured.adapted),
        **runner.given,
    }
    with torch.no_grad():
        return runner.weights.run(
            captured.graph_module, *(values[name] for name in captured.inputs), *past
        )


def _kinds(captured: CapturedStep) -> tuple[int, ...]:
    """Returns the leading dimensions of a step's positions before batch and tokens."""
    if "position_ids" not in captured.inputs:
        return ()
    placeholders = captured.graph_module.graph.find_nodes(op="placeholder")
    positions = placeholders[captured.inputs.index("position_ids")]
    return tuple(int(size) for size in positions.meta["val"].shape[:-2])
