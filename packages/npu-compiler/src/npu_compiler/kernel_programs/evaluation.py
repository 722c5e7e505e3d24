"""Evaluates values of a step in concrete cases; errors for calls without kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx

from npu_compiler.errors import LoweringError
from npu_compiler.graph.origins import call_place

__all__ = ["Case", "Evaluator", "Step", "inputs_of", "no_kernel", "refused", "unordered"]


def refused(node: fx.Node, reason: str) -> LoweringError:
    """Returns the error for a call without a kernel, or that mixes rows: [not-row-wise]."""
    return LoweringError(
        f"{call_place(node)} must treat every token separately, or be attention to "
        f"the cache, got one that {reason}. Run the model in another pipeline.",
        code="not-row-wise",
        node_name=node.name,
        reason=reason,
    )


def no_kernel(node: fx.Node, reason: str) -> LoweringError:
    """Returns the error for a call without a kernel in a graph of tensors: [no-kernel]."""
    place = call_place(node)
    return LoweringError(
        f"{place} must be computed row by row, got one that {reason}. Compile it for OpenVINO.",
        code="no-kernel",
        node_name=node.name,
        reason=f"{place} {reason}",
    )


def unordered(module: str) -> LoweringError:
    """Returns the error for values read in an order that weights cannot have."""
    return LoweringError(
        f"`{module or 'a layer'}` must have outputs that calls read in runs of columns, got one "
        "whose outputs several calls read in another order. Run the model in another pipeline.",
        code="not-row-wise",
        reason="reads columns in an order that no weight can be given",
    )


# Parts of a step do not depend on tokens: masks, tables of rotary embeddings. They are not matched
# by their calls, but evaluated in cases that distinguish them.

_aten = torch.ops.aten


@dataclass(frozen=True)
class Step:
    """The placeholders of a captured step."""

    tokens: fx.Node  # input_ids (batch, tokens)
    mask: fx.Node  # attention_mask (batch, past + tokens)
    positions: fx.Node | None  # position_ids (batch, tokens); None if the model computes positions
    kept: fx.Node  # logits_to_keep (kept,)
    caches: tuple[fx.Node, ...]  # key and value of each layer (batch, heads, past, size)

    @classmethod
    def of(cls, graph: fx.Graph, inputs: Sequence[str]) -> Step:
        """Returns the placeholders of a graph by input names."""
        nodes = [node for node in graph.nodes if node.op == "placeholder"]
        named = dict(zip(inputs, nodes, strict=False))
        return cls(
            tokens=named["input_ids"],
            mask=named["attention_mask"],
            positions=named.get("position_ids"),
            kept=named["logits_to_keep"],
            caches=tuple(nodes[len(inputs) :]),
        )

    def roles(self, node: fx.Node) -> tuple[str | int, ...]:
        """Returns the role of each dimension of a tensor.

        The role is a number for a fixed size of the model, "batch", "tokens", "kept", "rows" (batch
        * tokens), "kept rows", "all" (past + tokens), or "?" for another size. A dimension of batch
        * heads counts as two, see Evaluator.opened.
        """
        return tuple(role for size in node.meta["val"].shape for role in self._roles(size))

    def _roles(self, size: Any) -> tuple[str | int, ...]:
        if isinstance(size, int):
            return (size,)
        expression = size.node.expr
        if expression.is_number:
            return (int(expression),)
        heads = expression / self._symbols[0]
        if heads.is_Integer and heads > 1:
            return "batch", int(heads)
        return (self._known.get(expression, "?"),)

    @cached_property
    def _symbols(self) -> tuple[Any, Any, Any, Any, Any]:
        """Returns the graph's sizes: batch, tokens, kept, past, and past + tokens."""
        shapes = (
            *self.tokens.meta["val"].shape,
            *self.kept.meta["val"].shape,
            self.caches[0].meta["val"].shape[2],
            self.mask.meta["val"].shape[1],
        )
        batch, tokens, kept, past, total = (size.node.expr for size in shapes)
        return batch, tokens, kept, past, total

    @cached_property
    def _known(self) -> dict[Any, str]:
        batch, tokens, kept, past, total = self._symbols
        return {
            batch: "batch",
            tokens: "tokens",
            kept: "kept",
            batch * tokens: "rows",
            batch * kept: "kept rows",
            past + tokens: "all",
            total: "all",
        }

    def sizes(self, case: Case) -> dict[Any, int]:
        """Returns the values of the graph's symbolic sizes in a case."""
        sizes = (case.batch, case.tokens, case.kept, case.past, case.past + case.tokens)
        return dict(zip(self._symbols, sizes, strict=True))


@dataclass(frozen=True)
class Case:
    """Sizes and inputs of a step."""

    batch: int = 2  # number of sequences
    tokens: int = 3  # number of new tokens of each
    past: int = 4  # number of cached tokens of each
    kept: int = 2  # number of tokens with logits
    mask: torch.Tensor | None = None  # (batch, past + tokens) int64; None without padding
    # (batch, tokens) int64; None to count tokens that are not padding.
    positions: torch.Tensor | None = None

    @property
    def full_mask(self) -> torch.Tensor:
        """The attention mask (batch, past + tokens) int64."""
        if self.mask is not None:
            return self.mask
        return torch.ones(self.batch, self.past + self.tokens, dtype=torch.int64)

    @property
    def full_positions(self) -> torch.Tensor:
        """The positions (batch, tokens) int64."""
        if self.positions is not None:
            return self.positions
        return (self.full_mask.cumsum(-1) - 1).clamp_min(0)[:, -self.tokens :]


class Evaluator:
    """Evaluates nodes of a graph in one case, each once."""

    def __init__(self, graph_module: fx.GraphModule, step: Step, case: Case) -> None:
        self._module = graph_module
        self._step = step
        self._sizes = step.sizes(case)
        self._case = case
        self._known: dict[fx.Node, Any] = {
            step.mask: case.full_mask,
            step.tokens: torch.zeros(case.batch, case.tokens, dtype=torch.int64),
            step.kept: torch.arange(case.tokens - case.kept, case.tokens),
        }
        if step.positions is not None:
            self._known[step.positions] = case.full_positions

    def size(self, size: Any) -> int:
        """Returns the value of a size in this case."""
        if isinstance(size, int):
            return size
        return int(size.node.expr.xreplace(self._sizes))

    def opened(self, tensor: torch.Tensor, node: fx.Node) -> torch.Tensor:
        """Returns a node's value with one dimension per role."""
        case = self._case
        sizes = {
            "batch": case.batch,
            "tokens": case.tokens,
            "kept": case.kept,
            "rows": case.batch * case.tokens,
            "kept rows": case.batch * case.kept,
            "all": case.past + case.tokens,
        }
        roles = self._step.roles(node)
        return tensor.reshape([sizes[role] if isinstance(role, str) else role for role in roles])

    def closed(self, tensor: torch.Tensor, node: fx.Node) -> torch.Tensor:
        """Reverses opened: returns a tensor in a node's shape."""
        return tensor.reshape([self.size(size) for size in node.meta["val"].shape])

    def empty(self, node: fx.Node) -> torch.Tensor:
        """Returns a tensor of a node's shape."""
        return torch.empty([self.size(size) for size in node.meta["val"].shape])

    def call(self, node: fx.Node, given: Mapping[fx.Node, Any]) -> Any:
        """Executes one call with other values of some arguments."""

        def argument(one: fx.Node) -> Any:
            return given[one] if one in given else self.value(one)

        args, kwargs = fx.map_arg((node.args, node.kwargs), argument)
        return self._called(node, args, kwargs)

    def value(self, node: fx.Node) -> Any:
        """Returns a node's value."""
        if node in self._known:
            return self._known[node]
        for one in _unknown_before(node, self._known):
            self._known[one] = self._compute(one)
        return self._known[node]

    def with_values(self, given: Mapping[fx.Node, Any]) -> Evaluator:
        """Returns an evaluator of the same case with other values of some nodes."""
        other = Evaluator(self._module, self._step, self._case)
        other._known.update(given)
        return other

    def _compute(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            tensor = getattr(self._module, str(node.target))
            if isinstance(tensor, torch.nn.Parameter):  # has no memory while a model is being built
                raise refused(node, "is a weight where a constant is required")
            return tensor
        if node.op == "placeholder":
            return torch.zeros([self.size(one) for one in node.meta["val"].shape])
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
            return self.size(value)
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: self._known[one])
        return self._called(node, args, kwargs)

    def _called(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        # Tensors created here may have another memory layout than the model's.
        target = _aten.reshape.default if node.target is _aten.view.default else node.target
        assert callable(target)
        try:
            with torch.no_grad():
                return target(*args, **kwargs)
        except (RuntimeError, IndexError, ValueError, TypeError) as failure:
            first = (str(failure).splitlines() or [type(failure).__name__])[0]
            raise refused(node, f"fails for some sizes: {first}") from failure


def _unknown_before(node: fx.Node, known: Mapping[fx.Node, Any]) -> list[fx.Node]:
    """Returns the nodes to evaluate for a node, in topological order."""
    order: list[fx.Node] = []
    seen: set[fx.Node] = set()
    pending = [(node, False)]
    while pending:
        one, is_ready = pending.pop()
        if is_ready:
            order.append(one)
            continue
        if one in seen or one in known:
            continue
        seen.add(one)
        pending.append((one, True))
        pending += [(before, False) for before in inputs_of(one)]
    return order


def inputs_of(node: fx.Node) -> list[fx.Node]:
    """Returns the nodes that a node's value depends on; none for a size."""
    if isinstance(node.meta.get("val"), (torch.SymInt, int)):
        return []
    return list(node.all_input_nodes)
