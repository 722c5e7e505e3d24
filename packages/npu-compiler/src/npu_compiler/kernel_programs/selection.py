"""From a captured step's graph to instructions on values, one call after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from npu_compiler.graph.origins import node_origins
from npu_compiler.kernel_programs.activations import ACTIVATIONS, find_activation
from npu_compiler.kernel_programs.attention import (
    AttentionCall,
    attention_call,
    cached_operand,
)
from npu_compiler.kernel_programs.calls import (
    ADDS,
    MULTIPLIES,
    LinearCall,
    NormCall,
    linear_call,
    norm_call,
    scalar,
    stripped,
)
from npu_compiler.kernel_programs.draft import Draft, Line, Part
from npu_compiler.kernel_programs.evaluation import Case, Evaluator, Step, inputs_of
from npu_compiler.kernel_programs.experts import ExpertsCall, experts_call
from npu_compiler.kernel_programs.masks import MaskFacts, read_mask
from npu_compiler.kernel_programs.refusal import refused
from npu_compiler.kernel_programs.rotary import Rotation, find_rotation
from npu_compiler.kernel_programs.views import Mover, View, arranged, is_moving, rows_first
from npu_ops.kernel_programs.instructions import NormOptions
from npu_ops.kernel_programs.program import LayerShape, Recipe
from npu_ops.kernel_programs.weights import BLOCK_OUTPUTS

__all__ = ["Selection", "select"]

_aten = torch.ops.aten


@dataclass
class Selection:
    """A graph as instructions.

    Attributes:
        draft: the instructions.
        logits: the part with the result.
        tables: weights that were computed here.
        sources: the parameters by the names that recipes use.
    """

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
    """Returns the instructions of a captured step.

    Args:
        graph_module: the step, without calls that write in place.
        inputs: names of its first placeholders.
        layers: what each layer of the cache keeps.
        positions: how long a sequence may become.

    Raises:
        LoweringError: [not-row-wise] if a call has no kernel, or mixes rows.
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
        self._computed: set[fx.Node] = set()
        self._masks: dict[fx.Node, MaskFacts] = {}
        self._rotations: dict[Any, tuple[str, str, str] | None] = {}
        self._numbers: dict[fx.Node, int] = {}
        self._known_numbers: dict[Any, int] = {}
        self._tables: dict[str, torch.Tensor] = {}
        self._sources: dict[str, torch.Tensor] = {}
        self._attended: dict[int, tuple[fx.Node, fx.Node]] = {}
        self._modules = {name: module for name, (module, _) in node_origins(self._graph).items()}
        self._row_nodes = self._find_rows()

    def run(self) -> Selection:
        (output,) = self._graph.find_nodes(op="output")
        results: Any = output.args[0]
        for node in self._graph.nodes:
            # In the graph's order, so that no later call has to look far back.
            if node in self._row_nodes and self._is_anchor(node):
                self._view(node)
        logits = self._part(stripped(results[0]))
        self._check_caches(results[1:])
        return Selection(self._draft, logits, self._tables, self._sources)

    # What a node is

    def _find_rows(self) -> set[fx.Node]:
        """Returns the nodes whose values depend on the tokens or the cache, and embeddings."""
        found: set[fx.Node] = set()
        starts = {self._step.tokens, *self._step.caches}
        for node in self._graph.nodes:
            before = inputs_of(node)
            is_embedding = node.target is _aten.embedding.default
            if is_embedding or any(one in found or one in starts for one in before):
                found.add(node)
        return found

    def _is_anchor(self, node: fx.Node) -> bool:
        return (
            node.target is _aten.embedding.default
            or linear_call(node) is not None
            or attention_call(node, self._module) is not None
            or experts_call(node) is not None
        )

    def _is_boundary(self, node: fx.Node) -> bool:
        """Whether a node's value is computed by an instruction of its own."""
        return (
            node in self._computed
            or self._is_anchor(node)
            or norm_call(node, self._module) is not None
        )

    # Values

    def _part(self, node: fx.Node) -> Part:
        """Returns the columns that a node's rows are."""
        return self._columns(node, self._view(node))

    def _columns(self, node: fx.Node, view: View) -> Part:
        """Returns the columns that a view shows, as a run of them."""
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
        """Returns what a node of rows shows, after adding the instructions that compute it."""
        node = stripped(node)
        if node not in self._views:
            self._views[node] = self._compute(node)
        return self._views[node]

    def _compute(self, node: fx.Node) -> View:
        if node not in self._row_nodes:
            raise refused(node, "is not computed from the tokens")
        if node.target is _aten.embedding.default:
            return self._result(node, self._embed(node))
        linear = linear_call(node)
        if linear is not None:
            return self._result(node, self._linear(node, linear))
        attention = attention_call(node, self._module)
        if attention is not None:
            return self._result(node, self._attend(node, attention))
        experts = experts_call(node)
        if experts is not None:
            return self._result(node, self._experts(node, experts))
        norm = norm_call(node, self._module)
        if norm is not None:
            return self._result(node, self._norm(node, norm))
        if is_moving(node):
            source = node.args[0]
            if isinstance(source, fx.Node) and source.meta.get("val").__class__ in (list, tuple):
                source = source.args[0]
            assert isinstance(source, fx.Node)
            return self._mover.moved(node, source, self._view(source))
        if self._is_kept(node):
            source = node.args[0]
            assert isinstance(source, fx.Node)
            part = self._part(source)
            return self._result(node, self._add(node, "keep", part.width, {"input": part}))
        rotated = self._rotate(node)
        if rotated is not None:
            return self._result(node, rotated)
        return self._result(node, self._combine(node))

    def _result(self, node: fx.Node, part: Part) -> View:
        """Returns the view of a node that an instruction computed."""
        self._computed.add(node)
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

    def _vector(self, node: fx.Node | None, added: float = 0.0) -> str | None:
        """Returns the name of a vector of the model."""
        node = stripped(node)
        if node is None:
            return None
        if node.op != "get_attr":
            raise refused(node, "computes a vector of weights")
        recipe = Recipe(sources=(self._source(str(node.target)),), kind="vector", added=added)
        return self._draft.weight(recipe)

    def _table(self, tensor: torch.Tensor) -> str:
        """Returns the name of a table; equal ones have one name."""
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
        chosen = "token"
        if index is not self._step.tokens:
            if index in self._row_nodes or not self._is_position(index):
                raise refused(node, "looks up something else than the token or its position")
            chosen = "position"
        width = int(node.meta["val"].shape[-1])
        if chosen == "position":
            self._positions = min(self._positions, int(table.meta["val"].shape[0]))
        weight = self._draft.weight(
            Recipe(sources=(self._source(str(table.target)),), kind="linear", keeps_precision=True)
        )
        return self._add(node, "embed", width, {}, table=weight, index=chosen)

    def _is_position(self, node: fx.Node) -> bool:
        case = Case(batch=2, tokens=3, past=4)
        found: torch.Tensor = Evaluator(self._module, self._step, case).value(node)
        return torch.equal(found.expand(2, 3), case.full_positions)

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
        """Whether a parameter is an embedding too."""
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
        inner = int(getattr(self._module, call.gate_up).shape[1]) // 2
        if inner % BLOCK_OUTPUTS:
            raise refused(node, f"has experts of {inner} channels, no multiple of {BLOCK_OUTPUTS}")
        gate_up, down = self._source(call.gate_up), self._source(call.down)

        def weights(source: str, *, interleaved: bool) -> tuple[str, ...]:
            return tuple(
                self._draft.weight(
                    Recipe(sources=(source,), kind="linear", interleaved=interleaved, index=index)
                )
                for index in range(call.experts)
            )

        reads = {"input": self._part(call.x), "scores": self._part(call.scores)}
        return self._add(
            node,
            "experts",
            int(node.meta["val"].shape[-1]),
            reads,
            gate_up=weights(gate_up, interleaved=True),
            down=weights(down, interleaved=False),
            chosen=call.chosen,
            shares=call.shares,
            activation=call.activation,
        )

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
        if call.mask is None:
            raise refused(node, "has no mask, so that tokens would see later ones")
        facts = self._mask(node, call.mask)
        queries = self._part(call.queries)
        reads = {"keys": self._part(keys.new), "values": self._part(values.new)}
        module = self._module_of(node)
        self._draft.lines.append(Line("append", -1, reads, {"layer": number}, module))
        heads = queries.width // shape.key_size
        slopes = facts.slopes
        if slopes is not None:
            slopes = slopes.expand(heads)
        return self._add(
            node,
            "attend",
            heads * shape.value_size,
            {"queries": queries},
            layer=number,
            heads=heads,
            scale=call.scale,
            window=facts.window,
            soft_cap=call.soft_cap,
            sinks=self._vector(call.sinks),
            slopes=None if slopes is None else self._table(slopes.float()),
        )

    def _mask(self, node: fx.Node, mask: fx.Node) -> MaskFacts:
        mask = stripped(mask)
        if mask not in self._masks:
            self._masks[mask] = read_mask(
                self._module, self._step, node, mask, positions=self._positions
            )
        return self._masks[mask]

    def _check_caches(self, results: Sequence[fx.Node]) -> None:
        for number in range(len(self._layers)):
            expected = self._attended.get(number)
            found = tuple(stripped(one) for one in results[2 * number : 2 * number + 2])
            if expected is None or found != expected:
                raise refused(
                    results[2 * number], f"keeps something else for layer {number} than it reads"
                )

    # Calls element by element

    def _combine(self, node: fx.Node) -> Part:
        """A sum, a product, a factor, or an activation."""
        activation = ACTIVATIONS.get(node.target)
        if activation is not None:
            name = activation(node)
            if name is None:
                raise refused(node, "has options that no kernel has")
            part = self._part(node.args[0])  # type: ignore[arg-type]
            return self._add(node, "combine", part.width, {"left": part}, activation=name)
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
        found = self._activation(node)
        if found is not None:
            return found
        raise refused(node, "no kernel computes")

    def _pair(self, node: fx.Node) -> Part | None:
        """A sum or product of two rows, or of a row and a vector of the model."""
        op = "add" if node.target in ADDS else "mul"
        left, right = stripped(node.args[0]), stripped(node.args[1])
        alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
        if alpha != 1 or not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
            return None
        if self._activation_source(node) is not None:
            return None
        if left in self._row_nodes and right in self._row_nodes:
            if self._step.roles(left) != self._step.roles(right):
                return None
            one, other = self._part(left), self._part(right)
            return self._add(node, "combine", one.width, {"left": one, "right": other}, op=op)
        rows, vector = (left, right) if left in self._row_nodes else (right, left)
        if vector.op == "get_attr" and len(vector.meta["val"].shape) == 1:
            part = self._part(rows)
            if int(vector.meta["val"].shape[0]) == part.width:
                name = self._vector(vector)
                return self._add(node, "combine", part.width, {"left": part}, op=op, vector=name)
        return None

    def _activation(self, node: fx.Node) -> Part | None:
        source = self._activation_source(node)
        if source is None:
            return None

        def compute(x: torch.Tensor) -> torch.Tensor:
            evaluator = Evaluator(self._module, self._step, Case(batch=1, tokens=x.numel(), past=0))
            shape = [1, x.numel(), *[1] * (len(source.meta["val"].shape) - 2)]
            result: torch.Tensor = evaluator.with_values({source: x.view(shape)}).value(node)
            return result.flatten()

        name = find_activation(compute)
        if name is None:
            return None
        part = self._part(source)
        return self._add(node, "combine", part.width, {"left": part}, activation=name)

    def _activation_source(self, node: fx.Node) -> fx.Node | None:
        """Returns the one value of which a node is computed element by element; else None."""
        leaves: set[fx.Node] = set()
        calls = 0
        pending = [node]
        seen: set[fx.Node] = set()
        while pending:
            one = pending.pop()
            if one in seen:
                continue
            seen.add(one)
            if one is not node and (one not in self._row_nodes or self._is_boundary(one)):
                if one in self._row_nodes:
                    leaves.add(one)
                elif scalar(one, self._module) is None:
                    return None
                continue
            if one is not node and is_moving(one) and stripped(one) is one:
                leaves.add(one)
                continue
            calls += 1
            if calls > 16:
                return None
            pending += [stripped(before) for before in inputs_of(one)]
        (leaf,) = leaves if len(leaves) == 1 else (None,)
        if leaf is None or leaf is node or calls < 2:
            return None
        same = leaf.meta["val"].shape == node.meta["val"].shape
        return leaf if same else None

    # Rotary embedding

    def _rotate(self, node: fx.Node) -> Part | None:
        """Rows that are turned by their position; None if a node is no such thing."""
        leaves, tables, signature = self._region(node)
        if not leaves or not tables:
            return None
        if self._step.positions is None:
            raise refused(node, "counts positions itself, without taking them as an input")
        views = {leaf: self._view(leaf) for leaf in leaves}
        values = {view.value for view in views.values()}
        shown = torch.cat([view.columns.flatten() for view in views.values()])
        columns = torch.unique(shown)
        width = columns.numel()
        shape = [role for role in self._step.roles(node) if isinstance(role, int)]
        if len(values) != 1 or torch.Size(shape).numel() != width:
            raise refused(node, "joins rows with what depends on positions in an unknown way")
        size = shape[-1]
        places = {leaf: torch.searchsorted(columns, view.columns) for leaf, view in views.items()}
        key = (signature, tuple(tuple(one.flatten().tolist()) for one in places.values()), width)
        if key not in self._rotations:
            self._rotations[key] = self._find_rotation(node, places, width, size)
        names = self._rotations[key]
        if names is None:
            raise refused(node, "joins rows with what depends on positions in an unknown way")
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
            given = {
                leaf: arranged(x[:, :, place], self._step.roles(leaf))
                for leaf, place in places.items()
            }
            evaluator = Evaluator(self._module, self._step, case).with_values(given)
            result: torch.Tensor = evaluator.value(node)
            return rows_first(result, self._step.roles(node)).reshape(batch, tokens, -1)

        found: Rotation | None = find_rotation(
            compute, heads=width // size, size=size, positions=self._positions
        )
        if found is None:
            return None
        return self._table(found.own), self._table(found.other), self._table(found.partner)

    def _region(self, node: fx.Node) -> tuple[list[fx.Node], list[fx.Node], Any]:
        """Returns the rows and the tables that a node is computed of, and how, for comparison."""
        leaves: list[fx.Node] = []
        tables: list[fx.Node] = []
        known: dict[fx.Node, int] = {}
        signature: list[Any] = []

        def visit(one: fx.Node) -> int:
            if one in known:
                return known[one]
            is_leaf = one is not node and (
                one not in self._row_nodes or self._is_boundary(one) or self._only_moves(one)
            )
            if is_leaf and one in self._row_nodes:
                leaves.append(one)
                entry: Any = ("rows", self._step.roles(one))
            elif is_leaf:
                value = one.meta.get("val")
                if isinstance(value, torch.Tensor) and one.op != "get_attr":
                    tables.append(one)
                entry = ("table", self._number(one))
            else:
                inner = [visit(before) for before in inputs_of(one)]
                arguments = fx.map_arg((one.args, one.kwargs), lambda before: "node")
                entry = (str(one.target), inner, repr(arguments))
            known[one] = len(known)
            signature.append(entry)
            return known[one]

        visit(node)
        return leaves, tables, repr(signature)

    def _number(self, node: fx.Node) -> int:
        """Returns a number that is the same for nodes that compute the same of the same inputs."""
        if node not in self._numbers:
            value = node.meta.get("val")
            if isinstance(value, (torch.SymInt, int)):
                key: Any = ("size", str(value))
            elif node.op != "call_function":
                key = (node.op, str(node.target))
            else:
                key = (node.target, repr(fx.map_arg((node.args, node.kwargs), self._numbered)))
            self._numbers[node] = self._known_numbers.setdefault(key, len(self._known_numbers))
        return self._numbers[node]

    def _numbered(self, node: fx.Node) -> str:
        return f"node {self._number(node)}"

    def _only_moves(self, node: fx.Node) -> bool:
        """Whether a node only moves elements of a value that an instruction computes."""
        while is_moving(node) and isinstance(node.args[0], fx.Node):
            if self._is_boundary(node):
                return True
            node = node.args[0]
        return self._is_boundary(node)
