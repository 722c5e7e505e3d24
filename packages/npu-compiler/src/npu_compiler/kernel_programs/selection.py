"""Selects instructions for a captured step's graph, call by call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from npu_compiler.graph.origins import node_origins
from npu_compiler.kernel_programs.attention import (
    AttentionCall,
    ScoreFacts,
    cached_operand,
    read_scores,
)
from npu_compiler.kernel_programs.calls import (
    ACTIVATIONS,
    ADDS,
    MULTIPLIES,
    LinearCall,
    Mover,
    NormCall,
    View,
    arranged,
    find_activation,
    is_moving,
    linear_call,
    norm_call,
    other_rows,
    rows_first,
    scalar,
    squared_of,
    stripped,
)
from npu_compiler.kernel_programs.draft import Draft, Line, Part
from npu_compiler.kernel_programs.evaluation import Case, Evaluator, Step, inputs_of, refused
from npu_compiler.kernel_programs.experts import (
    ChosenProduct,
    ExpertsCall,
    experts_call,
    read_gate,
    read_shares,
)
from npu_compiler.kernel_programs.nodes import Nodes, Rotation, find_rotation, is_vector
from npu_ops.kernel_programs.program import LayerShape, NormOptions, Recipe
from npu_ops.kernel_programs.weights import BLOCK_OUTPUTS

__all__ = ["Selection", "select"]

_aten = torch.ops.aten


@dataclass
class Selection:
    """Selected instructions of a graph: draft, logits, computed tables, and parameters by name."""

    draft: Draft
    logits: Part
    tables: dict[str, torch.Tensor] = field(default_factory=dict)
    sources: dict[str, torch.Tensor] = field(default_factory=dict)


def select(
    graph_module: fx.GraphModule,
    inputs: Sequence[str],
    layers: Sequence[LayerShape],
    *,
    positions: int,
) -> Selection:
    """Returns the instructions of a captured step without in-place writes.

    Raises [not-row-wise] if a call has no kernel, or mixes rows.
    """
    return _Selector(graph_module, inputs, layers, positions).run()


class _Selector:
    def __init__(
        self,
        graph_module: fx.GraphModule,
        inputs: Sequence[str],
        layers: Sequence[LayerShape],
        positions: int,
    ) -> None:
        self._module = graph_module
        self._graph = graph_module.graph
        self._step = Step.of(self._graph, inputs)
        self._layers = layers
        self._positions = positions
        self._mover = Mover(graph_module, self._step)
        self._draft = Draft()
        self._views: dict[fx.Node, View] = {}
        self._score_facts: dict[Any, ScoreFacts] = {}
        self._rotations: dict[Any, tuple[str, str, str] | None] = {}
        self._tables: dict[str, torch.Tensor] = {}
        self._sources: dict[str, torch.Tensor] = {}
        self._attended: dict[int, tuple[fx.Node, fx.Node]] = {}
        self._modules = {name: module for name, (module, _) in node_origins(self._graph).items()}
        self._nodes = Nodes(graph_module, self._step)

    def run(self) -> Selection:
        (output,) = self._graph.find_nodes(op="output")
        results: Any = output.args[0]
        for node in self._graph.nodes:
            # In the graph's order, so that later calls search back only a few nodes.
            if node in self._nodes.rows and self._nodes.is_anchor(node):
                self._view(node)
        logits = self._part(stripped(results[0]))
        self._check_caches(results[1:])
        return Selection(self._draft, logits, self._tables, self._sources)

    # Values

    def _part(self, node: fx.Node) -> Part:
        """Returns the columns of a node's rows."""
        return self._columns(node, self._view(node))

    def _columns(self, node: fx.Node, view: View) -> Part:
        """Returns the columns of a view as one run."""
        run = view.run
        if run is not None:
            return Part(view.value, *run)
        return self._draft.add(
            "select",
            view.columns.numel(),
            {"input": self._draft.whole(view.value)},
            module=self._module_of(node),
            columns=tuple(view.flat),
        )

    def _view(self, node: fx.Node) -> View:
        """Returns the view of a node of rows, after adding its instructions."""
        node = stripped(node)
        if node not in self._views:
            self._views[node] = self._compute(node)
        return self._views[node]

    def _compute(self, node: fx.Node) -> View:
        if node not in self._nodes.rows:
            raise refused(node, "is not computed from the tokens")
        if node.target is _aten.embedding.default:
            return self._result(node, self._embed(node))
        linear = linear_call(node)
        if linear is not None:
            return self._result(node, self._linear(node, linear))
        attention = self._nodes.attention(node)
        if attention is not None:
            return self._result(node, self._attend(node, attention))
        experts = experts_call(node)
        if experts is not None:
            return self._result(node, self._experts(node, experts))
        roles = self._step.roles(node)
        if "all" in roles or "?" in roles:
            raise refused(node, other_rows(roles))
        norm = norm_call(node, self._module)
        if norm is not None:
            return self._result(node, self._norm(node, norm))
        if is_moving(node):
            source = node.args[0]
            if isinstance(source, fx.Node) and source.meta.get("val").__class__ in (list, tuple):
                source = source.args[0]
            assert isinstance(source, fx.Node)
            moved = self._mover.moved(node, source, self._view(source))
            if moved.is_repeated:  # heads that share keys, before rotation
                return self._result(node, self._columns(node, moved))
            return moved
        if self._is_kept(node):
            source = node.args[0]
            assert isinstance(source, fx.Node)
            part = self._part(source)
            return self._result(node, self._add(node, "keep", part.width, {"input": part}))
        is_plain = self._nodes.is_weighted(node) or self._nodes.is_joined(node)
        rotated = None if is_plain else self._rotate(node)
        if rotated is not None:
            return self._result(node, rotated)
        if node.target is _aten.cat.default:
            return self._result(node, self._join(node))
        return self._result(node, self._combine(node))

    def _result(self, node: fx.Node, part: Part) -> View:
        """Returns the view of a node computed by an instruction."""
        self._nodes.computed.add(node)
        shape = [role for role in self._step.roles(node) if isinstance(role, int)]
        columns = torch.arange(part.start, part.start + part.width).view(shape)
        return View(part.value, columns)

    def _add(self, node: fx.Node, kind: Any, width: int, reads: Any, **fields: Any) -> Part:
        return self._draft.add(kind, width, reads, module=self._module_of(node), **fields)

    def _module_of(self, node: fx.Node) -> str:
        return self._modules.get(node.name, "")

    # Weights

    def _source(self, name: str) -> str:
        self._sources[name] = getattr(self._module, name)
        return name

    def _vector(self, node: fx.Node | None, added: float = 0.0, *, repeats: int = 1) -> str | None:
        """Returns the name of a parameter vector, possibly repeated."""
        node = stripped(node)
        if node is None:
            return None
        if node.op != "get_attr":
            raise refused(node, "computes a vector of weights")
        sources = (self._source(str(node.target)),) * repeats
        return self._draft.weight(Recipe(sources=sources, kind="vector", added=added))

    def _table(self, tensor: torch.Tensor) -> str:
        """Returns the name of a table; equal tables share a name."""
        for name, known in self._tables.items():
            if known.dtype is tensor.dtype and torch.equal(known, tensor):
                return name
        name = f"table.{len(self._tables)}"
        self._tables[name] = tensor.contiguous()
        self._draft.weights[name] = Recipe(sources=(name,), kind="table")
        return name

    # Instructions

    def _embed(self, node: fx.Node) -> Part:
        table, index = stripped(node.args[0]), stripped(node.args[1])
        if table.op != "get_attr" or any(node.args[3:]):
            raise refused(node, "looks up a table that is computed")
        while is_moving(index):
            index = stripped(index.args[0])
        chosen, order = "token", None
        if index is not self._step.tokens:
            chosen, order = "position", self._entries(node, index, table)
        width = int(node.meta["val"].shape[-1])
        recipe = Recipe(
            sources=(self._source(str(table.target)),),
            kind="linear",
            keeps_precision=True,
            order=order,
        )
        return self._add(node, "embed", width, {}, table=self._draft.weight(recipe), index=chosen)

    def _entries(self, node: fx.Node, index: fx.Node, table: fx.Node) -> str | None:
        """Returns the table entries that positions look up; None for the positions themselves."""
        entries = int(table.meta["val"].shape[0])
        last = min(self._positions, entries)
        mask = torch.ones(2, 7, dtype=torch.int64)
        mask[0, :2] = 0
        cases = [Case(batch=1, tokens=last, past=0, kept=1), Case(mask=mask), Case(past=0)]
        if self._step.positions is not None:
            cases.append(Case(positions=torch.tensor([[5, 2, 3], [0, 1, 7]]) % last))
        every = None
        for case in cases:
            if index in self._nodes.rows or last < mask.shape[1]:
                break
            found: torch.Tensor = Evaluator(self._module, self._step, case).value(index)
            found = found.expand(case.batch, case.tokens)
            every = found[0] if every is None else every
            real = case.full_mask[:, -case.tokens :].bool()
            if not torch.equal(found[real], every[case.full_positions][real]):
                break
        else:
            assert every is not None
            usable = (every >= 0) & (every < entries)
            self._positions = int(usable.long().cumprod(0).sum())
            every = every[: self._positions]
            return None if torch.equal(every, torch.arange(len(every))) else self._table(every)
        raise refused(node, "looks up another index than the token or its position")

    def _linear(self, node: fx.Node, call: LinearCall) -> Part:
        part = self._part(call.x)
        recipe = Recipe(
            sources=(self._source(call.weight),),
            kind="linear",
            transposed=call.is_transposed,
            keeps_precision=self._is_table(call.weight),
        )
        return self._add(
            node,
            "linear",
            int(node.meta["val"].shape[-1]),
            {"input": part},
            weight=self._draft.weight(recipe),
            bias=self._vector(call.bias),
        )

    def _is_table(self, name: str) -> bool:
        """Whether a parameter is also an embedding."""
        return any(
            stripped(node.args[0]).target == name
            for node in self._graph.find_nodes(op="call_function", target=_aten.embedding.default)
        )

    def _norm(self, node: fx.Node, call: NormCall) -> Part:
        part = self._part(call.x)
        size = int(node.meta["val"].shape[-1])
        weight = None if call.weight is None else self._vector(*call.weight)
        norm = NormOptions(
            kind=call.kind,
            eps=call.eps,
            weight=weight,
            bias=self._vector(call.bias),
            parts=part.width // size,
        )
        return self._add(node, "norm", part.width, {"input": part}, options=norm)

    def _experts(self, node: fx.Node, call: ExpertsCall) -> Part:
        if call.inner % BLOCK_OUTPUTS:
            reason = f"has experts of {call.inner} channels, not a multiple of {BLOCK_OUTPUTS}"
            raise refused(node, reason)
        shares = read_shares(self._module, self._step, node, call)
        gate = read_gate(self._module, self._step, node, call)
        numbers = torch.arange(2 * call.inner)
        order = None if torch.equal(gate.order, numbers) else self._table(gate.order)

        def weights(product: ChosenProduct, **how: Any) -> tuple[str, ...]:
            made = Recipe(
                sources=(self._source(str(product.weight.target)),),
                kind="linear",
                transposed=product.is_transposed,
                **how,
            )
            return self._by_expert(made, call.experts)

        def biases(product: ChosenProduct, **how: Any) -> tuple[str, ...] | None:
            if product.bias is None:
                return None
            source = self._source(str(product.bias.target))
            return self._by_expert(Recipe(sources=(source,), kind="vector", **how), call.experts)

        reads = {"input": self._part(call.x), "scores": self._part(call.scores)}
        first = {"order": order, "interleaved": True}
        width = int(node.meta["val"].shape[-1])
        result = self._add(
            node,
            "experts",
            width,
            reads,
            gate_up=weights(call.gate_up, **first),
            down=weights(call.down),
            gate_up_bias=biases(call.gate_up, **first),
            down_bias=biases(call.down),
            chosen=call.chosen,
            shares=shares.kind,
            activation=gate.activation,
            limit=gate.limit,
        )
        if shares.factor == 1.0:
            return result
        return self._add(node, "combine", width, {"left": result}, factor=shares.factor)

    def _by_expert(self, recipe: Recipe, experts: int) -> tuple[str, ...]:
        """Returns the weight names of all experts, as slices of a recipe's result."""
        return tuple(self._draft.weight(replace(recipe, index=index)) for index in range(experts))

    def _is_kept(self, node: fx.Node) -> bool:
        if node.target not in (_aten.index.Tensor, _aten.index_select.default):
            return False
        indices: Any = node.args[1]
        if node.target is _aten.index_select.default:
            return (node.args[1], stripped(node.args[2])) == (1, self._step.kept)
        return len(indices) == 2 and indices[0] is None and indices[1] is self._step.kept

    def _attend(self, node: fx.Node, call: AttentionCall) -> Part:
        keys, values = (
            cached_operand(self._module, self._step, node, operand, is_turned=turned)
            for operand, turned in ((call.keys, call.is_turned), (call.values, False))
        )
        number, rest = divmod(self._step.caches.index(keys.cache), 2)
        if rest or self._step.caches.index(values.cache) != 2 * number + 1:
            raise refused(node, "reads keys and values of different layers")
        if number in self._attended:
            raise refused(node, "attends to a layer's cache a second time")
        self._attended[number] = (keys.whole, values.whole)
        shape = self._layers[number]
        facts = self._scores(node, call)
        queries = self._part(call.queries)
        reads = {"keys": self._part(keys.new), "values": self._part(values.new)}
        module = self._module_of(node)
        self._draft.lines.append(Line("append", -1, reads, {"layer": number}, module))
        heads = queries.width // shape.key_size
        slopes = facts.mask.slopes
        if slopes is not None:
            slopes = slopes.expand(heads)
        return self._add(
            node,
            "attend",
            heads * shape.value_size,
            {"queries": queries},
            layer=number,
            heads=heads,
            scale=facts.scale,
            window=facts.mask.window,
            soft_cap=facts.soft_cap,
            sinks=self._vector(call.sinks),
            slopes=None if slopes is None else self._table(slopes.float()),
        )

    def _scores(self, node: fx.Node, call: AttentionCall) -> ScoreFacts:
        if call.scores is None:
            key: Any = (stripped(call.mask), call.scale, call.soft_cap)
        else:
            assert call.product is not None
            self._nodes.computed.add(call.product)
            added = [self._nodes.number(one) for one in inputs_of(call.product)[:-2]]
            key = (self._nodes.region(call.scores)[2], added, repr(call.product.kwargs))
            key = repr(key)
        if key not in self._score_facts:
            self._score_facts[key] = read_scores(
                self._module, self._step, node, call, positions=self._positions
            )
        return self._score_facts[key]

    def _check_caches(self, results: Sequence[fx.Node]) -> None:
        for number in range(len(self._layers)):
            expected = self._attended.get(number)
            found = tuple(stripped(one) for one in results[2 * number : 2 * number + 2])
            if expected is None or found != expected:
                raise refused(
                    results[2 * number], f"stores other values for layer {number} than it reads"
                )

    def _join(self, node: fx.Node) -> Part:
        """Concatenates rows."""
        parts: Any = node.args[0]
        roles = self._step.roles(node)
        given: Any = node.args[1] if len(node.args) > 1 else 0
        dim = given % len(roles)
        are_rows = all(
            stripped(part) in self._nodes.rows
            and [role for role in self._step.roles(part) if isinstance(role, str)]
            == [role for role in roles if isinstance(role, str)]
            for part in parts
        )
        is_plain = len(roles) == len(node.meta["val"].shape)
        if not are_rows or not is_plain or not isinstance(roles[dim], int):
            raise refused(node, "no kernel computes")
        values = [self._part(part) for part in parts]
        at = sum(isinstance(role, int) for role in roles[:dim])
        numbers, start = [], 0
        for part, value in zip(parts, values, strict=True):
            shape = [role for role in self._step.roles(part) if isinstance(role, int)]
            numbers.append(torch.arange(start, start + value.width).view(shape))
            start += value.width
        reads = {str(number): value for number, value in enumerate(values)}
        joined = self._add(node, "join", start, reads)
        return self._columns(node, View(joined.value, torch.cat(numbers, at)))

    # Elementwise calls

    def _combine(self, node: fx.Node) -> Part:
        """Adds a sum, a product, a factor or an activation."""
        activation = ACTIVATIONS.get(node.target)
        if activation is not None:
            name = activation(node)
            if name is None:
                raise refused(node, "has options that no kernel supports")
            part = self._part(node.args[0])  # type: ignore[arg-type]
            return self._add(node, "combine", part.width, {"left": part}, activation=name)
        found = self._activation(node)
        if found is not None:
            return found
        squared = squared_of(node)
        if squared is not None:
            part = self._part(squared)
            return self._add(node, "combine", part.width, {"left": part, "right": part}, op="mul")
        if node.target in ADDS or node.target in MULTIPLIES:
            found = self._pair(node)
            if found is not None:
                return found
        if node.target in MULTIPLIES or node.target is _aten.div.Tensor:
            factor = scalar(node.args[1], self._module)
            source = node.args[0]
            if factor is None and node.target in MULTIPLIES:
                factor, source = scalar(node.args[0], self._module), node.args[1]
            if factor is not None and isinstance(source, fx.Node):
                factor = factor if node.target in MULTIPLIES else 1 / factor
                part = self._part(source)
                return self._add(node, "combine", part.width, {"left": part}, factor=factor)
        raise refused(node, "no kernel computes")

    def _pair(self, node: fx.Node) -> Part | None:
        """Adds a sum or product of two rows, or of a row and a parameter vector."""
        op = "add" if node.target in ADDS else "mul"
        left, right = stripped(node.args[0]), stripped(node.args[1])
        alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
        if alpha != 1 or not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
            return None
        if left in self._nodes.rows and right in self._nodes.rows:
            if {self._nodes.rows_of(left), self._nodes.rows_of(right)} != {
                self._nodes.rows_of(node)
            }:
                return None
            one, other = self._broadcast(left, node), self._broadcast(right, node)
            return self._add(node, "combine", one.width, {"left": one, "right": other}, op=op)
        rows, vector = (left, right) if left in self._nodes.rows else (right, left)
        if is_vector(vector) and self._step.roles(rows) == self._step.roles(node):
            part = self._part(rows)
            shape = tuple(vector.meta["val"].shape)
            repeats, rest = divmod(part.width, torch.Size(shape).numel())
            shown = tuple(self._view(rows).columns.shape)
            if not rest and repeats and shown[len(shown) - len(shape) :] == shape:
                name = self._vector(vector, repeats=repeats)
                return self._add(node, "combine", part.width, {"left": part}, op=op, vector=name)
        return None

    def _broadcast(self, operand: fx.Node, node: fx.Node) -> Part:
        """Returns an operand's columns, broadcast for a sum or product."""
        view = self._view(operand)
        shape = [role for role in self._step.roles(node) if isinstance(role, int)]
        return self._columns(operand, View(view.value, view.columns.expand(shape)))

    def _activation(self, node: fx.Node) -> Part | None:
        source = self._nodes.activation_source(node)
        if source is None:
            return None

        def compute(x: torch.Tensor) -> torch.Tensor:
            tokens = 1 + x.numel() // width
            evaluator = Evaluator(self._module, self._step, Case(batch=1, tokens=tokens, past=0))
            # Different numbers in a row: a function that mixes a row's numbers is not an
            # activation.
            given = torch.cat([x, x.new_zeros(tokens * width - x.numel())])
            given = evaluator.closed(given, source)
            result: torch.Tensor = evaluator.with_values({source: given}).value(node)
            return result.flatten()[: x.numel()]

        roles = self._step.roles(source)
        if not {"batch", "tokens", "rows"}.issuperset(self._nodes.rows_of(source)):
            return None
        width = torch.Size([role for role in roles if isinstance(role, int)]).numel()
        name = find_activation(compute)
        if name is None:
            return None
        part = self._part(source)
        return self._add(node, "combine", part.width, {"left": part}, activation=name)

    # Rotary embedding

    def _rotate(self, node: fx.Node) -> Part | None:
        """Adds a rotation of rows by position; None if a node is not one."""
        leaves, tables, signature = self._nodes.region(node)
        if not leaves or not tables:
            return None
        if self._step.positions is None:
            raise refused(node, "computes positions instead of taking them as an input")
        views = {leaf: self._view(leaf) for leaf in leaves}
        values = {view.value for view in views.values()}
        shown = torch.cat([view.columns.flatten() for view in views.values()])
        columns = torch.unique(shown)
        width = columns.numel()
        shape = [role for role in self._step.roles(node) if isinstance(role, int)]
        if len(values) != 1 or torch.Size(shape).numel() != width:
            if node.target is _aten.cat.default:
                return None
            raise refused(node, "joins rows with values that depend on positions unpredictably")
        size = shape[-1]
        places = {leaf: torch.searchsorted(columns, view.columns) for leaf, view in views.items()}
        key = (signature, tuple(tuple(one.flatten().tolist()) for one in places.values()), width)
        if key not in self._rotations:
            self._rotations[key] = self._find_rotation(node, places, width, size)
        names = self._rotations[key]
        if names is None:
            raise refused(node, "joins rows with values that depend on positions unpredictably")
        (value,) = values
        part = self._columns(node, View(value, columns))
        return self._add(
            node,
            "rotate",
            width,
            {"input": part},
            heads=width // size,
            own=names[0],
            other=names[1],
            partner=names[2],
        )

    def _find_rotation(
        self, node: fx.Node, places: dict[fx.Node, torch.Tensor], width: int, size: int
    ) -> tuple[str, str, str] | None:
        def compute(x: torch.Tensor, positions: torch.Tensor, past: int) -> torch.Tensor:
            batch, tokens = x.shape[:2]
            positions = positions.expand(batch, tokens)
            case = Case(batch=batch, tokens=tokens, past=past, kept=1, positions=positions)
            evaluator = Evaluator(self._module, self._step, case)
            given = {
                leaf: evaluator.closed(arranged(x[:, :, place], self._step.roles(leaf)), leaf)
                for leaf, place in places.items()
            }
            result = evaluator.opened(evaluator.with_values(given).value(node), node)
            return rows_first(result, self._step.roles(node)).reshape(batch, tokens, -1)

        found: Rotation | None = find_rotation(
            compute, heads=width // size, size=size, positions=self._positions
        )
        if found is None:
            return None
        return self._table(found.own), self._table(found.other), self._table(found.partner)
