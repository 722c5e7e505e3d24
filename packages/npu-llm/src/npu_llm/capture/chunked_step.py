"""Converts the one-token step of a model with recurrent states into a step for prompt chunks.

The code of such models reads several tokens at once only at the start (most start from zeros), so a
step of many tokens cannot be traced. But the traced one-token step takes any number of rows. Tokens
of one sequence take the place of rows: everything that does not depend on the previous token is
computed for all tokens at once, weights are read once for all of them, and only the calls between a
state and its next value run token by token. These are the same calls, so nothing is approximated.
Padded tokens leave the states unchanged, by the step's token_mask for rows; so a chunk may be
padded like those of other models.

Attention reads all tokens of the chunk together, with a mask (tokens, past + tokens) as an input,
which hides later tokens from each token.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import openvino.opset15 as ops
import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from npu_compiler.lowering import lower
from npu_compiler.lowering.context import Context
from npu_compiler.lowering.registry import converter
from npu_llm.capture.step import CapturedStep
from npu_llm.checkpoint.streamed import StreamedWeights
from npu_llm.kv_cache.static_layout import KEY_POSITIONS, TOKEN_MASK

__all__ = [
    "TokenLoop",
    "in_order",
    "read_in_chunks",
    "state_cycles",
]

_logger = logging.getLogger(__name__)
_aten = torch.ops.aten
_PAST, _TOKENS, _PADDED = 3, 5, 2
# Relative to the largest logit or state element: both are float32 sums in another order.
_TOLERANCE = 1e-3
# Calls that read a tensor regardless of its rows.
_LOOKS = frozenset(
    {_aten.slice.Tensor, _aten.to.dtype, _aten.to.device, _aten.alias.default, _aten.clone.default}
)


class _UnfitError(Exception):
    """A step that cannot be converted; the message contains the reason."""


def read_in_chunks(
    captured: CapturedStep, *, windowed: bool, weights: StreamedWeights
) -> CapturedStep:
    """Returns a step that reads any number of tokens of one sequence, if possible.

    Args:
        captured: a functional one-token step with states; unchanged.
        windowed: whether a layer sees only a window of earlier tokens; their position is then known
            for one token only.
        weights: the values of the model's parameters.

    Returns:
        A step whose input_ids, position_ids and token_mask are (1, tokens), its attention_mask
        (tokens, past + tokens), and its caches and states of one row; or the same step, with the
        reason logged.
    """
    try:
        if windowed:
            raise _UnfitError("a layer has a sliding window")
        chunked = _Chunking(captured).step()
        if not _agree(captured, chunked, weights):
            raise _UnfitError("its tokens' results differ")
    except (_UnfitError, RuntimeError) as reason:
        _logger.info("prompts are read token by token: %s", reason)
        return captured
    return chunked


class _Chunking:
    """Makes one graph from another."""

    def __init__(self, captured: CapturedStep) -> None:
        self._captured = captured
        graph = captured.graph_module.graph
        graph.eliminate_dead_code()
        placeholders = graph.find_nodes(op="placeholder")
        (self._output,) = graph.find_nodes(op="output")
        inputs, caches = len(captured.inputs), len(captured.caches)
        self._inputs = dict(zip(captured.inputs, placeholders, strict=False))
        self._caches = placeholders[inputs : inputs + caches]
        self._states = placeholders[inputs + caches :]
        self._longer = self._output.args[0][1 : 1 + caches]
        after = self._output.args[0][1 + caches :]
        self._following = dict(zip(self._states, after, strict=True))
        ids = self._inputs["input_ids"].meta["val"]
        if not isinstance(ids.shape[0], torch.SymInt) or captured.adapted:
            raise _UnfitError("it takes only one row")
        self._mode = ids.fake_mode
        self._rows = ids.shape[0].node.expr
        self._past = self._caches[0].meta["val"].shape[2].node.expr if caches else None
        self._made = fx.Graph()
        self._new: dict[fx.Node, Any] = {}
        # Calls that read the past followed by the new tokens.
        self._joined = set(self._longer)

    def step(self) -> CapturedStep:
        """Returns the converted step."""
        captured = self._captured
        self._placeholders()
        graph = captured.graph_module.graph
        cycles = state_cycles(graph, self._following)
        if set(self._states) - set(cycles):
            raise _UnfitError("a state does not depend on itself")
        after: dict[fx.Node, fx.Node] = {}
        for unit in in_order(graph.nodes, cycles):
            if isinstance(unit, frozenset):
                after |= self._loop(sorted(unit))
            elif unit.op == "call_function":
                self._new[unit] = self._call(unit)
            elif unit.op == "get_attr":
                self._new[unit] = self._made.node_copy(unit)
        results = [self._new[node] for node in self._output.args[0][: 1 + len(self._caches)]]
        self._made.output((*results, *(after[state] for state in self._states)))
        self._made.eliminate_dead_code()
        made = fx.GraphModule(captured.graph_module, self._made)
        return replace(captured, graph_module=made, reads_chunks=True)

    def _placeholders(self) -> None:
        """Adds the inputs, and replaces rows by tokens."""
        by_row = {self._inputs[name] for name in ("input_ids", "position_ids", TOKEN_MASK)
                  if name in self._inputs}  # fmt: skip
        of_one = {*self._caches, *self._states}
        for node in self._captured.graph_module.graph.find_nodes(op="placeholder"):
            new = self._made.placeholder(node.name)
            value = node.meta["val"]
            sizes = list(value.shape)
            if node in by_row:
                sizes[-2:] = reversed(sizes[-2:])
            elif node in of_one:
                sizes[0] = 1
            if node in self._caches:
                # One key more than the past, as for a single token; those of the chunk are not part
                # of the past.
                sizes[2] = sizes[2] + 1 - self._inputs["input_ids"].meta["val"].shape[0]
            with self._mode:
                new.meta["val"] = torch.empty(sizes, dtype=value.dtype)
            self._new[node] = new
        for node in by_row:
            self._new[node] = self._emit(node, _aten.transpose.int, self._new[node], -2, -1)
        ids = self._inputs["input_ids"]
        self._tokens = self._emit(ids, _aten.sym_size.int, self._new[ids], 0)
        self._before = None
        if self._caches:
            # All keys but the last precede a token, which hides invalid ones.
            mask = self._inputs["attention_mask"]
            length = self._emit(mask, _aten.sym_size.int, self._new[mask], 1)
            self._before = self._emit(mask, operator.sub, length, 1)

    def _call(self, node: fx.Node) -> Any:
        """Returns the replacement of a call."""
        target, new = node.target, self._new
        arguments: Any = node.args
        if target is _aten.sym_size.int and (size := self._size(node)) is not None:
            return size
        reads_past = [one for one in node.all_input_nodes if one in self._joined]
        if node in self._joined:
            cache, added = _parts(node, self._caches)
            turned = self._emit(node, _aten.transpose.int, new[added], 0, 2)
            return self._emit(node, _aten.cat.default, [new[cache], turned], 2)
        if set(node.all_input_nodes) & set(self._caches):
            raise _UnfitError(f"{node.name} reads a cache without its new tokens")
        if target is _aten.scaled_dot_product_attention.default and reads_past:
            return self._attention(node)
        if reads_past:
            if target not in _LOOKS or len(node.all_input_nodes) > 1:
                raise _UnfitError(f"{node.name} reads keys or values without being attention")
            self._joined.add(node)
            return self._emit(node, target, *fx.map_arg(node.args, new.__getitem__), **node.kwargs)
        kept = self._inputs["logits_to_keep"]
        if kept in node.all_input_nodes:
            if target is not _aten.index.Tensor or list(arguments[1]) != [None, kept]:
                raise _UnfitError(f"{node.name} selects logits in another way")
            turned = self._emit(node, _aten.transpose.int, new[arguments[0]], 0, 1)
            return self._emit(node, target, turned, [None, new[kept]])
        return self._made.node_copy(node, new.__getitem__)

    def _size(self, node: fx.Node) -> Any:
        """Returns the replacement of a size that is the number of rows or the past."""
        expression = _expression(node.meta["val"])
        if expression == self._rows:
            return self._tokens
        return self._before if expression == self._past else None

    def _attention(self, node: fx.Node) -> fx.Node:
        arguments: Any = node.args
        if len(arguments) != 4 or not isinstance(arguments[3], fx.Node):
            raise _UnfitError(f"{node.name} has no mask")
        query, key, value, mask = arguments
        if key not in self._joined or value not in self._joined or not self._is_by_row(mask):
            raise _UnfitError(f"{node.name} reads other keys, or has no mask per row")
        query, mask = (
            self._emit(node, _aten.transpose.int, self._new[one], 0, 2) for one in (query, mask)
        )
        keys = (self._new[one] for one in (key, value))
        found = self._emit(node, node.target, query, *keys, mask, **node.kwargs)
        return self._emit(node, _aten.transpose.int, found, 0, 2)

    def _loop(self, members: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
        """Adds the loop of a cycle; returns the next value of each state."""
        states = [node for node in members if node.op == "placeholder"]
        read = dict.fromkeys(one for node in members for one in node.all_input_nodes)
        outside = [one for one in read if one not in members and not _is_number(one)]
        rows = [one for one in outside if self._is_by_row(one)]
        shared = [one for one in outside if one not in rows]
        told = [
            node
            for node in members
            if any(user not in members and user is not self._output for user in node.users)
        ]
        if not rows or not all(self._is_by_row(node) for node in told):
            raise _UnfitError(f"{members[0].name} leads to a tensor without a row for each token")
        following = [self._following[state] for state in states]
        body = self._body(members, [*states, *rows, *shared], [*following, *told])
        given = [self._new[one] for one in (*states, *rows, *shared)]
        loop = TokenLoop(body, states=len(states), rows=len(rows))
        call = self._made.call_function(loop, tuple(given))
        values = [one.meta["val"] for one in given[: len(states)]]
        values += [node.meta["val"] for node in told]
        origin = {key: one for key, one in following[0].meta.items() if key != "val"}
        call.meta = {**origin, "val": values}
        found = []
        for index, value in enumerate(values):
            item = self._made.call_function(operator.getitem, (call, index))
            item.meta = {**origin, "val": value}
            found.append(item)
        self._new |= dict(zip(told, found[len(states) :], strict=True))
        return dict(zip(states, found, strict=False))

    def _body(
        self, members: Sequence[fx.Node], given: Sequence[fx.Node], results: Sequence[fx.Node]
    ) -> fx.GraphModule:
        """Returns a cycle's calls for one token."""
        graph = fx.Graph()
        inner: dict[fx.Node, Any] = {node: graph.placeholder(f"one_{node.name}") for node in given}

        def own(node: fx.Node) -> Any:
            return self._of_one(node) if _is_number(node) else inner[node]

        for node in members:
            if node.op != "placeholder" and not _is_number(node):
                inner[node] = graph.node_copy(node, own)
        graph.output(tuple(inner[node] for node in results))
        made = fx.GraphModule({}, graph)
        mode = FakeTensorMode()
        with mode:
            examples = [
                torch.empty([self._number(size) for size in one.shape], dtype=one.dtype)
                for one in (node.meta["val"] for node in given)
            ]
        FakeTensorProp(made, mode).propagate_dont_convert_inputs(*examples)
        return made

    def _of_one(self, node: fx.Node) -> int:
        return self._number(node.meta["val"])

    def _number(self, size: Any) -> int:
        """Returns a size for one token."""
        found = sympy.sympify(_expression(size)).subs(self._rows, 1)
        if not found.is_Integer:
            raise _UnfitError(f"a size {size} varies from token to token")
        return int(found)

    def _is_by_row(self, node: Any) -> bool:
        """Whether a tensor has a row for each token as its first dimension.

        Raises:
            _UnfitError: if rows are in another dimension.
        """
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise _UnfitError(f"{node.name} is not a tensor")
        first, *others = [_expression(size) for size in value.shape] or [1]
        if any(self._rows in sympy.sympify(one).free_symbols for one in others):
            raise _UnfitError(f"{node.name} has its rows in a later dimension")
        if first != self._rows and self._rows in sympy.sympify(first).free_symbols:
            raise _UnfitError(f"{node.name} has several rows for each token")
        return bool(first == self._rows)

    def _emit(self, origin: fx.Node, target: Any, *arguments: Any, **options: Any) -> fx.Node:
        """Appends a call with its fake value and the origin of another call."""
        node = self._made.call_function(target, arguments, options)
        node.meta = {key: one for key, one in origin.meta.items() if key != "val"}
        with self._mode:
            values = fx.map_arg((arguments, options), lambda one: one.meta["val"])
            node.meta["val"] = target(*values[0], **values[1])
        return node


def _parts(node: fx.Node, caches: Sequence[fx.Node]) -> tuple[fx.Node, fx.Node]:
    """Returns the cache and the new tokens that a call concatenates."""
    parts: Any = node.args[0]
    is_joined = node.target is _aten.cat.default and len(parts) == 2
    if not is_joined or parts[0] not in caches or node.args[1] not in (2, -2):
        raise _UnfitError(f"{node.name} is not a cache followed by its new tokens")
    return parts[0], parts[1]


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (int, torch.SymInt))


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _agree(captured: CapturedStep, chunked: CapturedStep, weights: StreamedWeights) -> bool:
    """Whether tokens of a padded chunk after others have the same results as alone."""
    generator = torch.Generator().manual_seed(0)
    whole = _PAST + _TOKENS
    ids = torch.randint(0, captured.vocabulary, (1, whole), generator=generator)
    held = [torch.zeros(1, heads, 0, size) for heads, size in captured.caches]
    held += [torch.zeros(1, *state.sizes) for state in captured.states]
    logits, before = [], held
    for place in range(whole - _PADDED):
        before = held if place == _PAST else before
        given = _inputs(captured, ids, place, 1)
        found, *held = weights.run(captured.graph_module, *given, *held)
        logits.append(found)
    given = _inputs(chunked, ids, _PAST, _TOKENS, padded=_PADDED)
    found, *after = weights.run(chunked.graph_module, *given, *before)
    read, caches = _TOKENS - _PADDED, len(captured.caches)
    pairs = [(torch.cat(logits[_PAST:], 1), found[:, :read])]
    pairs += [
        (one, other[:, :, : one.shape[2]]) for one, other in zip(held, after[:caches], strict=False)
    ]
    pairs += zip(held[caches:], after[caches:], strict=True)
    return all(
        (one - other).abs().max() <= _TOLERANCE * one.abs().max().clamp_min(1e-6)
        for one, other in pairs
    )


def _inputs(
    step: CapturedStep, ids: torch.Tensor, past: int, tokens: int, *, padded: int = 0
) -> list[torch.Tensor]:
    """Returns the inputs of a step except caches and states."""
    counts = torch.ones(1, tokens, dtype=torch.int64)
    counts[:, tokens - padded :] = 0
    mask = torch.ones(tokens, past + tokens, dtype=torch.int64).tril(past)
    values = {
        "input_ids": ids[:, past : past + tokens],
        "attention_mask": mask,
        "position_ids": torch.arange(past, past + tokens)[None],
        "logits_to_keep": torch.arange(tokens),
        TOKEN_MASK: counts,
        KEY_POSITIONS: torch.arange(past + tokens),
    }
    return [values[name] for name in step.inputs]


_Item = TypeVar("_Item")


def state_cycles(
    graph: fx.Graph, following: Mapping[fx.Node, fx.Node]
) -> dict[fx.Node, frozenset[fx.Node]]:
    """Returns the cycle of each call and state in a cycle.

    Args:
        graph: a functional step.
        following: next-value node of each state's placeholder.
    """
    back: dict[fx.Node, list[fx.Node]] = {after: [] for after in following.values()}
    for state, after in following.items():
        back[after].append(state)
    finished: list[fx.Node] = []
    seen: set[fx.Node] = set()
    for root in graph.nodes:
        finished += _after_all(root, lambda node: [*node.users, *back.get(node, ())], seen)
    found: dict[fx.Node, frozenset[fx.Node]] = {}
    seen = set()

    def before(node: fx.Node) -> Sequence[fx.Node]:
        return [*node.all_input_nodes, *([following[node]] if node in following else ())]

    for root in reversed(finished):
        component = frozenset(_after_all(root, before, seen))
        if len(component) > 1:
            found |= dict.fromkeys(component, component)
    return found


def in_order(
    nodes: Iterable[fx.Node], cycles: Mapping[fx.Node, frozenset[fx.Node]]
) -> list[fx.Node | frozenset[fx.Node]]:
    """Orders calls and whole cycles so that each follows its inputs.

    Args:
        nodes: a graph's nodes in execution order.
        cycles: the result of `state_cycles`.
    """
    ordered: list[fx.Node | frozenset[fx.Node]] = []
    seen: set[fx.Node | frozenset[fx.Node]] = set()

    def before(unit: fx.Node | frozenset[fx.Node]) -> list[fx.Node | frozenset[fx.Node]]:
        members = [unit] if isinstance(unit, fx.Node) else sorted(unit)
        read = dict.fromkeys(one for member in members for one in member.all_input_nodes)
        return [cycles.get(one, one) for one in read if cycles.get(one, one) != unit]

    for node in nodes:
        ordered += _after_all(cycles.get(node, node), before, seen)
    return ordered


def _after_all(
    root: _Item, leads_to: Callable[[_Item], Iterable[_Item]], seen: set[_Item]
) -> list[_Item]:
    """Returns the unseen items reachable from a root, each after everything that it leads to."""
    if root in seen:
        return []
    seen.add(root)
    ordered = []
    stack = [(root, iter(leads_to(root)))]
    while stack:
        item, left = stack[-1]
        following = next((one for one in left if one not in seen), None)
        if following is None:
            stack.pop()
            ordered.append(item)
        else:
            seen.add(following)
            stack.append((following, iter(leads_to(following))))
    return ordered


class TokenLoop:
    """The call target of a loop over tokens, which passes states from one token to the next.

    Its arguments are the initial states, (1, ...) each; values per token, (tokens, ...) each; and
    values shared by all tokens. Its results are the final states, then the body's outputs per
    token, (tokens, ...).

    Attributes:
        body: takes states, the token's rows (1, ...), and the shared values; returns the next
            states, then its outputs, (1, ...) each.
        states: number of states.
        rows: number of arguments per token; at least one.
    """

    # Its name in the converter table.
    __module__ = "npu_llm"
    __name__ = "token_loop.default"

    def __init__(self, body: fx.GraphModule, *, states: int, rows: int) -> None:
        self.body = body
        self.states = states
        self.rows = rows

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Computes the loop with torch."""
        states = values[: self.states]
        rows = values[self.states :][: self.rows]
        shared = values[self.states + self.rows :]
        told = []
        for token in range(rows[0].shape[0]):
            found = self.body(*states, *(one[token : token + 1] for one in rows), *shared)
            states = found[: self.states]
            told.append(found[self.states :])
        return (*states, *(torch.cat(parts) for parts in zip(*told, strict=True)))


@converter("npu_llm.token_loop.default")
def convert_token_loop(ctx: Context, **given: Any) -> Any:
    """Lowers the body to a separate model inside an OpenVINO loop."""
    loop = ctx.node.target
    assert isinstance(loop, TokenLoop), "a call of this name has such a target"
    values = [ctx.get(value) for value in given.values()]
    lowered = lower(loop.body, name=ctx.node.name)
    ctx.keep_alive.extend(lowered.keep_alive)
    parameters, results = lowered.model.get_parameters(), lowered.model.get_results()
    made = ops.tensor_iterator()
    made.set_function(lowered.model)
    for index, (parameter, value) in enumerate(zip(parameters, values, strict=True)):
        if index < loop.states:
            made.set_merged_input(parameter, value, results[index].output(0))
        elif index < loop.states + loop.rows:
            made.set_sliced_input(parameter, value, 0, 1, 1, -1, 0)
        else:
            made.set_invariant_input(parameter, value)
    outputs = [made.get_iter_value(one.output(0), -1) for one in results[: loop.states]]
    outputs += [
        made.get_concatenated_slices(one.output(0), 0, 1, 1, -1, 0)
        for one in results[loop.states :]
    ]
    return tuple(outputs)
