"""Matches mixtures of experts: products of rows with the weights of chosen experts.

The products and the choice are matched by their calls. The function from scores to shares, and the
one between an expert's two products, are found by evaluation.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from npu_compiler.kernel_programs.calls import ADDS, MULTIPLIES, is_moving, linear_call, stripped
from npu_compiler.kernel_programs.evaluation import Case, Evaluator, Step, inputs_of, refused
from npu_ops.kernel_programs.program import Activation
from npu_ops.kernel_programs.reference import ACTIVATIONS

__all__ = [
    "ChosenProduct",
    "ExpertsCall",
    "Gate",
    "Shares",
    "experts_call",
    "read_gate",
    "read_shares",
]

_aten = torch.ops.aten
_SUM = _aten.sum.dim_IntList
_CLAMPS = (_aten.clamp.default, _aten.clamp_min.default, _aten.clamp_max.default)
# Maximum depth of a search back from a call; routers and gates have about twelve calls.
_FARTHEST = 64

ShareKind = Literal["softmax", "softmax_normalized", "sigmoid"]


@dataclass(frozen=True)
class ChosenProduct:
    """Product of each row with the weights of its chosen expert, and a bias."""

    result: fx.Node  # the node: (rows * chosen, outputs), ignoring dimensions of 1
    rows: fx.Node  # the node with the rows
    weight: fx.Node  # the parameter (experts, outputs, inputs)
    is_transposed: bool  # whether it is (experts, inputs, outputs)
    bias: fx.Node | None  # the parameter (experts, outputs), or None
    choice: fx.Node  # the node with expert indices (rows * chosen,)
    top: fx.Node  # the call that chooses


@dataclass(frozen=True)
class ExpertsCall:
    """The sum over chosen experts of share * (down gate(gate_up x))."""

    x: fx.Node  # the rows (rows, inputs)
    scores: fx.Node  # the router's scores (rows, experts)
    shares: fx.Node  # the node with the shares (rows * chosen,), ignoring dimensions of 1
    gate_up: ChosenProduct  # the first product
    opened: fx.Node  # the input of `down`
    down: ChosenProduct  # the second product

    @property
    def experts(self) -> int:
        """Number of experts."""
        return int(self.down.weight.meta["val"].shape[0])

    @property
    def chosen(self) -> int:
        """Number of experts chosen for each row."""
        return int(self.down.top.args[1])  # type: ignore[arg-type]

    @property
    def inner(self) -> int:
        """Number of channels of `opened`."""
        return int(self.down.weight.meta["val"].shape[1 if self.down.is_transposed else 2])


@dataclass(frozen=True)
class Gate:
    """The function between an expert's two products."""

    activation: Activation  # of the gate
    limit: float | None  # see npu_ops.kernel_programs.program.Experts
    # (2 * inner,): outputs of the first product that are gates, then the gated ones.
    order: torch.Tensor


@dataclass(frozen=True)
class Shares:
    """The function from scores to shares (see npu_ops' Experts), and a common factor."""

    kind: ShareKind
    factor: float


def experts_call(node: fx.Node) -> ExpertsCall | None:
    """Returns the mixture of experts that ends at a node, or None."""
    if node.target is not _SUM or list(node.args[1]) != [1]:  # type: ignore[arg-type]
        return None
    weighted = _moved_from(node.args[0])
    if weighted is None or weighted.target not in MULTIPLIES:
        return None
    for product, shares in (weighted.args[:2], weighted.args[1::-1]):
        down = _chosen_product(_moved_from(product))
        if down is None or not isinstance(shares, fx.Node):
            continue
        opened = _moved_from(down.rows)
        if opened is None:
            continue
        firsts = list(_before(opened, lambda one: _chosen_product(one) is not None))
        scores = list(_before(down.top, lambda one: linear_call(one) is not None))
        if len(firsts) != 1 or len(scores) != 1:
            continue
        gate_up = _chosen_product(firsts[0])
        if gate_up is None or gate_up.top is not down.top:
            continue
        x = _repeated(gate_up.rows)
        if x is not None:
            return ExpertsCall(x, scores[0], shares, gate_up, opened, down)
    return None


def _repeated(node: fx.Node) -> fx.Node | None:
    """Returns the rows before each is repeated for its chosen experts."""
    while is_moving(node):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if node.target is _aten.repeat_interleave.self_int:
            return source
        node = source
    return None


def _before(node: fx.Node, is_end: Any) -> Iterator[fx.Node]:
    """Yields the nearest nodes before a node that satisfy a predicate."""
    pending, seen = [node], {node}
    while pending and len(seen) < _FARTHEST:
        one = pending.pop()
        for before in inputs_of(one):
            if before in seen:
                continue
            seen.add(before)
            if is_end(before):
                yield before
            else:
                pending.append(before)


def _chosen_product(node: fx.Node | None) -> ChosenProduct | None:
    if node is None:
        return None
    if node.target in ADDS:
        for one, other in (node.args[:2], node.args[1::-1]):
            product, bias = _plain_product(node, _moved_from(one)), _chosen_weights(other)
            if product is not None and bias is not None and bias[2] is product.top:
                return ChosenProduct(
                    node, product.rows, product.weight, product.is_transposed, bias[0],
                    product.choice, product.top,
                )  # fmt: skip
        return None
    return _plain_product(node, node)


def _plain_product(result: fx.Node, node: fx.Node | None) -> ChosenProduct | None:
    if node is None or node.target is not _aten.bmm.default:
        return None
    for place in (0, 1):
        found, rows = _chosen_weights(node.args[place]), node.args[1 - place]
        if found is not None and isinstance(rows, fx.Node):
            weight, choice, top = found
            return ChosenProduct(result, rows, weight, bool(place), None, choice, top)
    return None


def _chosen_weights(node: Any) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """Returns the parameter, the choice, and the choosing call of weights by row."""
    weights = stripped(node)
    if not isinstance(weights, fx.Node) or weights.target is not _aten.index.Tensor:
        return None
    parameter, indices = stripped(weights.args[0]), weights.args[1]
    if parameter.op != "get_attr" or len(indices) != 1:  # type: ignore[arg-type]
        return None
    choice = indices[0]  # type: ignore[index]
    origin = _moved_from(choice, operator.getitem)
    if origin is None or origin.target is not operator.getitem or origin.args[1] != 1:
        return None
    top: Any = origin.args[0]
    return (parameter, choice, top) if top.target is _aten.topk.default else None  # type: ignore[return-value]


def _moved_from(node: Any, end: Any = None) -> fx.Node | None:
    """Returns the value whose elements a node moves."""
    node = stripped(node)
    while isinstance(node, fx.Node) and is_moving(node) and node.target is not end:
        node = stripped(node.args[0])
    return node if isinstance(node, fx.Node) else None


# ----------------------------------------------------------------------------- evaluation


def read_shares(
    graph_module: fx.GraphModule, step: Step, node: fx.Node, call: ExpertsCall
) -> Shares:
    """Returns the function from scores to shares, after a check that rows are not mixed.

    Raises [not-row-wise] without a kernel for it.
    """
    case = Case()
    rows, chosen = case.batch * case.tokens, call.chosen
    evaluator = Evaluator(graph_module, step, case)
    generator = torch.Generator().manual_seed(0)

    def drawn(one: fx.Node) -> torch.Tensor:
        return torch.randn(
            [evaluator.size(size) for size in one.meta["val"].shape], generator=generator
        )

    scores, products = 3 * drawn(call.scores), drawn(call.down.result)
    inputs = drawn(call.x)
    given = evaluator.with_values({call.scores: scores, call.down.result: products, call.x: inputs})
    repeated: torch.Tensor = given.value(call.gate_up.rows)
    choices = [given.value(one.choice) for one in (call.gate_up, call.down)]
    shares: torch.Tensor = given.value(call.shares)
    result: torch.Tensor = given.value(node)
    scores = scores.reshape(rows, -1)
    products = products.reshape(rows, chosen, -1) * shares.reshape(rows, chosen, 1)
    expected = inputs.reshape(rows, -1).repeat_interleave(chosen, 0)
    are_rows = (
        scores.shape[1] == call.experts
        and torch.equal(choices[0], choices[1])
        and torch.equal(repeated.reshape(expected.shape), expected)
        and torch.allclose(result.reshape(rows, -1), products.sum(1), atol=1e-5, rtol=1e-5)
    )
    if not are_rows:
        raise refused(node, "mixes the rows of several tokens")
    known = torch.zeros_like(scores)
    known.scatter_(1, choices[0].reshape(rows, chosen), shares.reshape(rows, chosen))
    tops = scores.topk(chosen, -1)
    kinds: dict[ShareKind, torch.Tensor] = {
        "softmax": scores.softmax(-1).gather(1, tops.indices),
        "softmax_normalized": tops.values.softmax(-1),
        "sigmoid": tops.values.sigmoid(),
    }
    for kind, values in kinds.items():
        found = torch.zeros_like(scores).scatter_(1, tops.indices, values)
        factor = float(known.sum() / found.sum())
        if torch.allclose(known, factor * found, atol=1e-6, rtol=1e-5):
            return Shares(kind, 1.0 if abs(factor - 1) < 1e-6 else round(factor, 7))
    raise refused(node, "chooses experts or computes their shares in a way that no kernel supports")


def read_gate(graph_module: fx.GraphModule, step: Step, node: fx.Node, call: ExpertsCall) -> Gate:
    """Returns the function between experts' products; [not-row-wise] without a kernel for it."""
    evaluator = Evaluator(graph_module, step, Case())
    shape = [evaluator.size(size) for size in call.gate_up.result.meta["val"].shape]
    limits = [value for value in _limits(call) if value > 0]
    outputs = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    outputs[::2] *= 2 * max([3.0, *limits])  # some values beyond each limit
    outputs = outputs.reshape(shape)
    known: torch.Tensor = evaluator.with_values({call.gate_up.result: outputs}).value(call.opened)
    known, outputs = known.reshape(-1, call.inner), outputs.reshape(-1, 2 * call.inner)
    if len(known) != len(outputs):
        raise refused(node, "mixes the rows of several tokens")
    numbers = torch.arange(2 * call.inner)
    halves, pairs = numbers.view(2, -1), numbers.view(-1, 2).t()
    for first in (halves, halves.flip(0), pairs, pairs.flip(0)):
        gate, up = outputs[:, first[0]], outputs[:, first[1]]
        for name, formula in ACTIVATIONS.items():
            if torch.allclose(known, formula(gate) * up, atol=1e-5, rtol=1e-5):
                return Gate(name, None, first.flatten())
        for limit in limits:
            low, high = gate.clamp(max=limit), up.clamp(-limit, limit)
            if torch.allclose(
                known, low * torch.sigmoid(1.702 * low) * (high + 1), atol=1e-5, rtol=1e-5
            ):
                return Gate("silu", limit, first.flatten())
    raise refused(node, "has experts whose gates no kernel computes")


def _limits(call: ExpertsCall) -> set[float]:
    """Returns the limits of clamps between the products."""
    found: set[float] = set()
    pending = [call.opened]
    seen: set[fx.Node] = set()
    while pending:
        one = pending.pop()
        if one in seen or one is call.gate_up.result:
            continue
        seen.add(one)
        if one.target in _CLAMPS:
            numbers = [*one.args[1:], *one.kwargs.values()]
            found |= {float(value) for value in numbers if isinstance(value, (int, float))}
        pending += inputs_of(one)
    return found
