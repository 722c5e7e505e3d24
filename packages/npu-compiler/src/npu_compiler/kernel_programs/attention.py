"""Matches attention in a step: operands, scores and masks."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compiler.kernel_programs.calls import ADDS, MULTIPLIES, is_moving, scalar, stripped
from npu_compiler.kernel_programs.evaluation import Case, Evaluator, Step, inputs_of, refused

__all__ = [
    "AttentionCall",
    "CachedOperand",
    "MaskFacts",
    "ScoreFacts",
    "attention_call",
    "cached_operand",
    "read_scores",
]

_aten = torch.ops.aten
_SDPA = _aten.scaled_dot_product_attention.default
_PRODUCTS = (_aten.matmul.default, _aten.bmm.default)
_RESHAPES = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)
# Maximum depth of a search back from scores to their product.
_FARTHEST = 64
_SOFTMAX = (_aten.softmax.int, _aten._softmax.default)


@dataclass(frozen=True)
class AttentionCall:
    """softmax(cap(scale * queries keys^T) + mask) values, for heads of a batch."""

    queries: fx.Node  # (batch, heads, tokens, key size)
    # (batch, heads, all, key size), with the last two dimensions transposed if `is_turned`.
    keys: fx.Node
    values: fx.Node  # (batch, heads, all, value size)
    mask: fx.Node | None
    scale: float
    soft_cap: float | None = None
    sinks: fx.Node | None = None  # a parameter (heads,), or None
    is_turned: bool = False  # like keys
    # Input of the softmax if mask, scale and soft_cap must be found by evaluation; they are then
    # None, 0.0 and None. Otherwise None.
    scores: fx.Node | None = None
    product: fx.Node | None = None  # the queries times the keys, with `scores`


@dataclass(frozen=True)
class CachedOperand:
    """Keys or values: the cache, those of new tokens, and the graph output that joins both."""

    whole: fx.Node
    cache: fx.Node
    new: fx.Node


def attention_call(
    node: fx.Node, graph_module: fx.GraphModule, rows: Container[fx.Node]
) -> AttentionCall | None:
    """Returns the attention that ends at a node of a step with these rows, or None."""
    if node.target is _SDPA:
        return _fused(node)
    if node.target not in _PRODUCTS or not isinstance(node.args[1], fx.Node):
        return None
    found = _softmax_before(node.args[0])
    if found is None:
        return None
    scores, sinks = found
    known = _spelled_out(node, scores, sinks, graph_module)
    return known if known is not None else _computed(node, scores, sinks, rows)


def _fused(node: fx.Node) -> AttentionCall:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    arguments: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    queries = arguments["query"]
    scale = arguments.get("scale")
    if scale is None:
        scale = int(queries.meta["val"].shape[-1]) ** -0.5
    if arguments.get("is_causal") or arguments.get("dropout_p"):
        raise refused(node, "has a causal mask or dropout independent of the cache")
    return AttentionCall(
        queries, arguments["key"], arguments["value"], arguments.get("attn_mask"), float(scale)
    )


def _softmax_before(weights: Any) -> tuple[Any, fx.Node | None] | None:
    """Returns the scores whose softmax is `weights`, and sinks; None for other weights."""
    weights = stripped(weights)
    while isinstance(weights, fx.Node) and weights.target in _RESHAPES:
        weights = stripped(weights.args[0])
    # Sinks are an additional score per head; its weight is dropped.
    has_sinks = isinstance(weights, fx.Node) and weights.target is _aten.slice.Tensor
    if has_sinks:
        if weights.args[2:] != (0, -1) or not _is_last(weights, weights.args[1]):
            return None
        weights = stripped(weights.args[0])
    if not isinstance(weights, fx.Node) or weights.target not in _SOFTMAX:
        return None
    if not _is_last(weights, weights.args[1]):
        return None
    scores = stripped(weights.args[0])
    if not has_sinks:
        return scores, None
    scores, sinks = _without_sinks(scores)
    return None if sinks is None else (scores, sinks)


def _computed(
    node: fx.Node, scores: fx.Node, sinks: fx.Node | None, rows: Container[fx.Node]
) -> AttentionCall | None:
    """Returns attention whose scores are an unknown function of the one product before them."""
    products, pending, seen = [], [scores], {scores}
    while pending and len(seen) < _FARTHEST:
        one = pending.pop()
        if one.target in _PRODUCTS or one.target is _aten.baddbmm.default:
            products.append(one)
            continue
        new = [before for before in inputs_of(one) if before in rows and before not in seen]
        seen.update(new)
        pending += new
    if len(products) != 1:
        return None
    (product,) = products
    queries, keys = product.args[-2:]
    values: Any = node.args[1]
    return AttentionCall(
        queries, keys, values, None, 0.0, None, sinks,  # type: ignore[arg-type]
        is_turned=True, scores=scores, product=product,
    )  # fmt: skip


def _spelled_out(
    node: fx.Node, scores: Any, sinks: fx.Node | None, graph_module: fx.GraphModule
) -> AttentionCall | None:
    """Matches softmax(scale * queries keys^T + mask) @ values in separate calls."""
    values = node.args[1]
    mask = None
    soft_cap = None
    factor = 1.0
    while isinstance(scores, fx.Node) and scores.target not in _PRODUCTS:
        if scores.target in ADDS and mask is None and soft_cap is None and factor == 1.0:
            scores, mask = stripped(scores.args[0]), scores.args[1]
            continue
        if scores.target in MULTIPLIES or scores.target is _aten.div.Tensor:
            number = scalar(scores.args[1], graph_module)
            inner = stripped(scores.args[0])
            if number is None or not isinstance(inner, fx.Node):
                return None
            if inner.target is _aten.tanh.default and scores.target in MULTIPLIES:
                if factor != 1.0:
                    return None
                soft_cap = number
                capped = stripped(inner.args[0])
                if not isinstance(capped, fx.Node) or capped.target is not _aten.div.Tensor:
                    return None
                if scalar(capped.args[1], graph_module) != number:
                    return None
                scores = stripped(capped.args[0])
                continue
            factor *= number if scores.target in MULTIPLIES else 1 / number
            scores = inner
            continue
        return None
    if not isinstance(scores, fx.Node) or not isinstance(values, fx.Node):
        return None
    queries, keys = scores.args[0], scores.args[1]
    if not isinstance(queries, fx.Node) or not isinstance(keys, fx.Node):
        return None
    return AttentionCall(queries, keys, values, mask, factor, soft_cap, sinks, is_turned=True)


def _is_last(node: fx.Node, dim: Any) -> bool:
    """Whether a number denotes a node's last dimension."""
    return dim in (-1, len(node.meta["val"].shape) - 1)


def _without_sinks(scores: Any) -> tuple[Any, fx.Node | None]:
    """Returns the scores to which sinks were joined, and the parameter of the sinks."""
    while isinstance(scores, fx.Node) and scores.target is _aten.sub.Tensor:
        taken: Any = scores.args[1]
        if not isinstance(taken, fx.Node) or taken.meta["val"].shape[-1] != 1:
            return scores, None
        scores = stripped(
            scores.args[0]
        )  # minus a number per row, which does not change the softmax
    if not isinstance(scores, fx.Node) or scores.target is not _aten.cat.default:
        return scores, None
    parts: Any = scores.args[0]
    if len(parts) != 2 or not _is_last(scores, scores.args[1] if len(scores.args) > 1 else 0):
        return scores, None
    sinks = parts[1]
    while isinstance(sinks, fx.Node) and is_moving(sinks):
        sinks = sinks.args[0]
    return stripped(parts[0]), sinks if sinks.op == "get_attr" else None


def cached_operand(
    graph_module: fx.GraphModule, step: Step, call: fx.Node, operand: fx.Node, *, is_turned: bool
) -> CachedOperand:
    """Returns the parts of keys or values (batch, heads, all, size); heads may be repeated.

    With `is_turned`, their last two dimensions are transposed. Raises [not-row-wise] unless they
    are the cache followed by those of the new tokens.
    """
    whole = operand
    while is_moving(whole) and isinstance(whole.args[0], fx.Node):
        whole = whole.args[0]
    if whole.target is not _aten.cat.default:
        raise refused(call, "reads other keys or values than the cache's and the new tokens'")
    parts: Any = whole.args[0]
    dim = whole.args[1] if len(whole.args) > 1 else 0
    rank = len(whole.meta["val"].shape)
    if len(parts) != 2 or parts[0] not in step.caches or int(dim) % rank != 2:  # type: ignore[arg-type]
        raise refused(call, "reads a cache that does not grow by its new tokens")
    case = Case()
    evaluator = Evaluator(graph_module, step, case)
    shape = [evaluator.size(size) for size in whole.meta["val"].shape]
    numbers = torch.arange(torch.Size(shape).numel()).view(shape)
    result: torch.Tensor = evaluator.with_values({whole: numbers}).value(operand)
    if is_turned:
        result = result.transpose(-1, -2)
    result = result.reshape(case.batch, -1, *result.shape[-2:])
    repeats = result.shape[1] // shape[1]
    if not torch.equal(result, numbers.repeat_interleave(repeats, 1)):
        raise refused(call, "reads the cache's heads in another order")
    return CachedOperand(whole, parts[0], parts[1])


# A mask is evaluated in cases that distinguish the kinds of masks.

# Factors are measured with products so large that a mask is negligible, or so small that a cap is
# negligible.
_LARGE, _SMALL = 2.0**20, 2.0**-12
# A bias below this masks a score.
_HIDDEN = -1e30


@dataclass(frozen=True)
class MaskFacts:
    """The tokens that a token sees: itself and earlier ones of its sequence, without padding."""

    window: int | None  # number of visible tokens, including itself; None for all
    # (heads,) float32: slope * (slot - own slot) is added to the scores; None.
    slopes: torch.Tensor | None


@dataclass(frozen=True)
class ScoreFacts:
    """Scores are cap(scale * queries keys^T) with a mask."""

    scale: float  # of the product
    soft_cap: float | None  # c in c tanh(scale * product / c), or None
    mask: MaskFacts  # window and slopes


def read_scores(
    graph_module: fx.GraphModule,
    step: Step,
    node: fx.Node,
    call: AttentionCall,
    *,
    positions: int,
) -> ScoreFacts:
    """Returns an attention's function from product to scores; [not-row-wise] without a kernel."""
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
        """Returns scores (batch, heads, tokens, all) for values of the product."""
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
    raise refused(node, "computes scores in a way that no kernel supports")


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
    """Returns the meaning of a mask; [not-row-wise] unless it is causal, or causal in a window.

    `computed` evaluates the mask (batch, 1 or heads, tokens, past + tokens) in a case: boolean, or
    added to the scores.
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
    """Returns the positions visible to any head: (batch, tokens, all) bool."""
    return _visible(value).any(1)


def _visible(value: torch.Tensor) -> torch.Tensor:
    return value if value.dtype is torch.bool else value > _HIDDEN


def _causal(case: Case, window: int | None) -> torch.Tensor:
    """Returns the expected mask, (batch, tokens, all) bool."""
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
