"""What becomes of queries times keys before softmax, found by computing it: factor, cap, and mask.

A mask is computed in cases that tell what it lets a token see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.kernel_programs.attention import AttentionCall
from npu_compiler.kernel_programs.evaluation import Case, Evaluator, Step, inputs_of
from npu_compiler.kernel_programs.refusal import refused

__all__ = ["MaskFacts", "ScoreFacts", "read_scores"]

_aten = torch.ops.aten
# Factors are measured with products so large that a mask's numbers do not count, and with a cap so
# small that it does not count.
_LARGE, _SMALL = 2.0**20, 2.0**-12
# Below this a bias hides what it is added to.
_HIDDEN = -1e30


@dataclass(frozen=True)
class MaskFacts:
    """What a token sees: itself and what lies before it in its sequence, and no padding.

    Attributes:
        window: how many tokens it sees, itself included; None for all.
        slopes: (heads,) float32: slope * (slot - own slot) is added to the scores; None.
    """

    window: int | None
    slopes: torch.Tensor | None


@dataclass(frozen=True)
class ScoreFacts:
    """Scores are cap(scale * queries keys^T) with a mask.

    Attributes:
        scale: of the product.
        soft_cap: c of c tanh(scale * product / c); None for none.
        mask: what is seen, and slopes.
    """

    scale: float
    soft_cap: float | None
    mask: MaskFacts


def read_scores(
    graph_module: fx.GraphModule,
    step: Step,
    node: fx.Node,
    call: AttentionCall,
    *,
    positions: int,
) -> ScoreFacts:
    """Returns how an attention makes scores of its product.

    Args:
        graph_module: the captured step.
        step: its placeholders.
        node: the attention, for the error.
        call: what it is.
        positions: how long a sequence may become.

    Raises:
        LoweringError: [not-row-wise] if no kernel computes it so.
    """
    if call.scores is None:
        return ScoreFacts(
            call.scale, call.soft_cap, _fused_mask(graph_module, step, node, call, positions)
        )
    scores, product = call.scores, call.product
    assert product is not None

    def shape(case: Case) -> list[int]:
        evaluator = Evaluator(graph_module, step, case)
        return [evaluator.size(size) for size in product.meta["val"].shape]

    def made(case: Case, values: torch.Tensor) -> torch.Tensor:
        """Returns the scores (batch, heads, tokens, all) for values of the product."""
        evaluator = Evaluator(graph_module, step, case)
        if product.target is _aten.baddbmm.default:
            factors: Any = product.kwargs
            added = evaluator.value(product.all_input_nodes[0])
            values = factors.get("beta", 1.0) * added + factors.get("alpha", 1.0) * values
        result: torch.Tensor = evaluator.with_values({product: values}).value(scores)
        return result.reshape(case.batch, -1, case.tokens, case.past + case.tokens)

    def mask(case: Case) -> torch.Tensor:
        return made(case, torch.zeros(()).expand(shape(case)))

    facts = _read_mask(node, mask, positions=positions)
    case = Case()
    base = mask(case)
    seen = base > _HIDDEN

    def gained(values: torch.Tensor) -> torch.Tensor:
        return (made(case, values) - base)[seen]

    values = 3 * torch.randn(shape(case), generator=torch.Generator().manual_seed(0))
    known = gained(values)
    product_seen = values.reshape(base.shape)[seen]
    scale = float((gained(torch.full(shape(case), _LARGE)) / _LARGE).median())
    if torch.allclose(known, scale * product_seen, atol=1e-4, rtol=1e-4):
        return ScoreFacts(scale, None, facts)
    scale = float((gained(torch.full(shape(case), _SMALL)) / _SMALL).median())
    for cap in _numbers(scores, product):
        capped = cap * torch.tanh(scale * product_seen / cap)
        if torch.allclose(known, capped, atol=1e-4, rtol=1e-4):
            return ScoreFacts(scale, cap, facts)
    raise refused(node, "makes scores of queries and keys in a way that no kernel has")


def _fused_mask(
    graph_module: fx.GraphModule, step: Step, node: fx.Node, call: AttentionCall, positions: int
) -> MaskFacts:
    mask = call.mask
    if mask is None:
        raise refused(node, "has no mask, so that tokens would see later ones")

    def computed(case: Case) -> torch.Tensor:
        value: torch.Tensor = Evaluator(graph_module, step, case).value(mask)
        return value.expand(case.batch, value.shape[1], case.tokens, case.past + case.tokens)

    return _read_mask(node, computed, positions=positions)


def _numbers(node: fx.Node, end: fx.Node) -> set[float]:
    """Returns the positive numbers among the arguments of calls between two nodes."""
    found: set[float] = set()
    pending, seen = [node], {end}
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        found |= {
            float(value) for value in one.args if isinstance(value, (int, float)) and value > 0
        }
        pending += inputs_of(one)
    return found


def _read_mask(
    node: fx.Node, computed: Callable[[Case], torch.Tensor], *, positions: int
) -> MaskFacts:
    """Returns what a mask means.

    Args:
        node: the call that uses the mask, for the error.
        computed: computes the mask (batch, 1 or heads, tokens, past + tokens) in a case: boolean or
            added to the scores.
        positions: how long a sequence may become.

    Raises:
        LoweringError: [not-row-wise] if it is neither causal nor causal in a window.
    """
    longest = max(positions, 2)
    seen = _seen(computed(Case(batch=1, tokens=1, past=longest - 1, kept=1)))
    visible = int(seen.sum(-1).max())
    window = None if visible == longest else visible
    padded = torch.ones(2, 7, dtype=torch.int64)
    padded[0, :2] = 0
    cases = [
        Case(mask=padded),
        Case(batch=2, tokens=5, past=0, kept=1),
        Case(batch=1, tokens=1, past=0, kept=1),
        Case(batch=1, tokens=min(9, longest), past=max(0, min(visible, longest - 9)), kept=1),
    ]
    slopes = None
    for case in cases:
        value = computed(case)
        by_head = _visible(value)
        if not torch.equal(by_head, by_head[:, :1].expand_as(by_head)):
            raise refused(node, "has a mask by which heads see different tokens")
        expected = _causal(case, window)
        real = case.full_mask[:, -case.tokens :].bool()
        if not torch.equal(_seen(value)[real], expected.expand_as(_seen(value))[real]):
            raise refused(node, "has a mask that is neither causal nor causal in a window")
        if value.dtype is torch.bool or case.past + case.tokens == 1:
            continue
        found = _slopes(value, case, expected, real)
        if found is None or (slopes is not None and not torch.allclose(found, slopes, atol=1e-6)):
            raise refused(node, "has a mask with a bias that is not linear in the distance")
        slopes = found
    if slopes is not None and not bool(slopes.any()):
        slopes = None
    return MaskFacts(window, slopes)


def _seen(value: torch.Tensor) -> torch.Tensor:
    """Returns what is seen by any head: (batch, tokens, all) bool."""
    return _visible(value).any(1)


def _visible(value: torch.Tensor) -> torch.Tensor:
    return value if value.dtype is torch.bool else value > _HIDDEN


def _causal(case: Case, window: int | None) -> torch.Tensor:
    """Returns (batch, tokens, all) bool: what a token should see."""
    real = case.full_mask.bool()
    own = torch.arange(case.past, case.past + case.tokens)[:, None]
    other = torch.arange(case.past + case.tokens)[None]
    causal = other <= own
    if window is not None:
        causal &= own - other < window
    return causal[None] & real[:, None]


def _slopes(
    value: torch.Tensor, case: Case, seen: torch.Tensor, real: torch.Tensor
) -> torch.Tensor | None:
    """Returns (heads,) if the bias is slope * distance, up to a number per row; else None."""
    heads = value.shape[1]
    own = torch.arange(case.past, case.past + case.tokens)[:, None]
    other = torch.arange(case.past + case.tokens)[None]
    distance = (other - own).float()
    at_self = torch.gather(value, 3, own.expand(case.batch, heads, -1, 1))
    bias = (value - at_self).masked_fill(~seen[:, None], 0)
    bias = bias * real[:, None, :, None]
    before = (seen & (distance == -1))[:, None] & real[:, None, :, None]
    slopes = torch.stack([-bias[:, head][before[:, 0]].float().mean() for head in range(heads)])
    expected = slopes[None, :, None, None] * distance
    expected = expected.masked_fill(~seen[:, None], 0) * real[:, None, :, None]
    return slopes if torch.allclose(bias.float(), expected, atol=1e-4, rtol=1e-4) else None
