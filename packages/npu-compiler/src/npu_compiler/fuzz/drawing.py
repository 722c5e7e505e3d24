"""Draws random graphs: inputs, then calls that fit the existing values, then results.

Each call is executed on the CPU when drawn, so that dtypes, shapes and values are known for the
next. vocabulary.py has the ops, attention.py spelled-out attention. A graph depends only on its
seed and number, so that a run can be resumed and any graph reproduced.
"""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from npu_compiler.fuzz.attention import FORMS, Sizes
from npu_compiler.fuzz.graph import (
    FLOAT_EDGES,
    LAYOUTS,
    InputSpec,
    RandomGraph,
    Ref,
    Step,
    call,
    make_input,
    references,
    renumbered,
)
from npu_compiler.fuzz.vocabulary import EXACT, OPS, Draft, Misfit, Values, Vocable

__all__ = ["KINDS", "POOL", "GraphDraft", "draw_graph"]

# A graph uses two or three of these few sizes, so that sizes often coincide.
POOL = (1, 2, 3, 4, 7, 8, 12)
# Kinds of graphs, and their share in percent.
KINDS = {"attention": 45, "ops": 35, "edges": 15, "outside": 5}
_DTYPES = (
    *("float32",) * 9, *("float16",) * 2, *("bfloat16",) * 2, *("int64",) * 3, *("bool",) * 2,
    "int32", "float64", "uint8",
)  # fmt: skip
_INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
_LARGEST = 1e4
_CELLS = 16384
_INPUT_CELLS = 1024
_ATTEMPTS = 8
# Index arguments that may be out of range: by call name, their position and the source's.
_INDEXED = {
    "torch.index_select": (2, 0),
    "F.embedding": (0, 1),
    "torch.gather": (2, 0),
    "operator.getitem": (1, 0),
}


class GraphDraft(Values):
    """The values so far, with random choices from one generator."""

    def __init__(self, chance: random.Random, *, kind: str) -> None:
        """Starts empty; `kind` is a key of KINDS."""
        self._chance = chance
        self._kind = kind
        self._sizes = chance.sample(POOL, chance.choice((1, 2, 2, 3)))
        self.specs: list[InputSpec] = []
        self.steps: list[Step] = []
        self.tensors: list[Any] = []
        self.exact: list[bool] = []
        self._inputs: list[int] = []  # positions of inputs among the tensors

    @classmethod
    def of_seed(cls, seed: int, *, kind: str) -> GraphDraft:
        """Returns an empty graph of a kind, a key of KINDS."""
        return cls(random.Random(seed), kind=kind)

    def choose(self, options: Sequence[Any]) -> Any:
        """Chooses one of these."""
        return self._chance.choice(options)

    def draw_size(self) -> int:
        """Chooses one of this graph's sizes."""
        return int(self.choose(self._sizes))

    def input(self, shape: Sequence[int], names: str = "", **fields: Any) -> Ref:
        """Adds an input."""
        layout = "" if fields.get("frozen") else self._layout()
        order: tuple[int, ...] = ()
        if len(shape) > 1 and not layout and self._chance.random() < 0.1:
            order = tuple(self._chance.sample(range(len(shape)), len(shape)))
        spec = InputSpec(
            shape=tuple(shape),
            seed=self._chance.randrange(50),
            layout=layout,
            order=order,
            names=names,
            **fields,
        )
        self._inputs.append(len(self.tensors))
        self.specs.append(spec)
        self.tensors.append(make_input(spec))
        self.exact.append(spec.fill not in ("normal", "small"))
        return Ref(len(self.tensors) - 1)

    def _layout(self) -> str:
        return self._chance.choice(LAYOUTS) if self._chance.random() < 0.15 else ""

    def call(self, target: str, *arguments: Any, **keywords: Any) -> Ref:
        """Adds a call; raises Misfit if it fails, or its results cannot be compared."""
        if not self._make(Draft(target, arguments, keywords), frozenset()):
            raise Misfit
        return Ref(len(self.tensors) - 1)

    def add_input(self) -> None:
        """Adds an input of any kind."""
        rank = self.choose((1, 2, 2, 3, 3, 4, 0))
        shape = [self.draw_size() for _ in range(rank)]
        while _cells(shape) > _INPUT_CELLS:
            shape.pop()
        dtype = self.choose(_DTYPES)
        fill = self.choose(("quarters", "quarters", "normal", "indices"))
        if self._kind == "edges":
            dtype = self.choose((*_DTYPES, *_INTEGERS))
            is_float = getattr(torch, dtype).is_floating_point
            fill = self.choose(tuple(FLOAT_EDGES) if is_float else ("extreme",))
        if self._kind == "outside":
            dtype = self.choose(("float32", "float32", "float16", "int64", "int64", "int32"))
            fill = "indices" if dtype == "int64" else fill
        self.input(shape, dtype=dtype, fill=fill, frozen=self.choose((False, False, True)))

    def add_step(self, vocable: Vocable) -> bool:
        """Draws and executes one call of an op; returns whether one fits."""
        try:
            return self._make(vocable.draft(self), vocable.traits)
        except Misfit:
            return False

    def _make(self, draft: Draft, traits: frozenset[str]) -> bool:
        step = Step(draft.target, draft.arguments, draft.keywords)
        used = list(references([list(step.arguments), step.keywords]))
        if "exact only" in traits and not all(self.exact[index] for index in used):
            return False
        is_write = step.target.endswith("_")
        if is_write and _overlaps(self.tensors[used[0]]):
            return False
        # In-place calls change values: try them on copies with the same aliasing.
        kept = _copies(self.tensors) if is_write else []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = call(step, self.tensors)
        except (RuntimeError, IndexError, ValueError, TypeError):
            # A half type without a CPU kernel, or shapes that do not match.
            self._restore(kept)
            return False
        seen = [result, *self.tensors] if is_write else [result]
        if not _is_tame(seen, edges=self._kind == "edges"):
            self._restore(kept)
            return False
        is_exact = EXACT in traits and all(self.exact[index] for index in used)
        if is_write and isinstance(result, torch.Tensor):
            self._spoil(result, is_exact)
        self._add(step, result, is_exact=is_exact)
        if isinstance(result, (tuple, list)) and traits:
            whole = len(self.tensors) - 1
            for part in range(min(len(result), 3)):
                if isinstance(result[part], torch.Tensor):
                    pick = Step("operator.getitem", (Ref(whole), part))
                    self._add(pick, result[part], is_exact=is_exact)
        return True

    def _add(self, step: Step, result: Any, *, is_exact: bool) -> None:
        self.steps.append(step)
        self.tensors.append(result)
        self.exact.append(is_exact and self._is_exact(result))

    def _is_exact(self, value: Any) -> bool:
        """Whether each dtype represents these numbers without rounding, or at an edge."""
        if not isinstance(value, torch.Tensor):
            return False
        is_edge = self._kind == "edges"
        if not value.is_floating_point():
            return is_edge or bool((value.to(torch.int64).abs() <= 128).all())
        if is_edge:
            value = value[value.isfinite() & (value.abs() > 1e-30)]
        wide = value.to(torch.float64) * 4
        return bool((wide == wide.round()).all()) and bool((wide.abs() <= 64).all())

    def _restore(self, kept: list[torch.Tensor | None]) -> None:
        for tensor, copy in zip(self.tensors, kept, strict=False):
            if copy is not None and not torch.equal(tensor, copy):
                tensor.copy_(copy)

    def _spoil(self, written: torch.Tensor, is_exact: bool) -> None:
        """After a write, all values that share its memory are as exact as the written one."""
        pointer = written.untyped_storage().data_ptr()
        for index, tensor in enumerate(self.tensors):
            if not isinstance(tensor, torch.Tensor):
                continue
            if tensor.untyped_storage().data_ptr() == pointer:
                self.exact[index] = self.exact[index] and is_exact and self._is_exact(tensor)

    def outputs(self) -> tuple[int, ...]:
        """Chooses results: all unused values, so that no call is dead, and perhaps others."""
        used = {
            index
            for step in self.steps
            for index in references([list(step.arguments), step.keywords])
        }
        made = (i for i in range(len(self.tensors)) if i not in self._inputs)
        found = [i for i in made if isinstance(self.tensors[i], torch.Tensor)]
        last = [index for index in found if index not in used] or found[-1:]
        more = [self.choose(found) for _ in range(self.choose((0, 0, 0, 1, 2)))]
        return tuple(dict.fromkeys([*last, *more]))

    def graph(self) -> RandomGraph:
        """Returns the graph as data: inputs first, then calls."""
        made = [i for i in range(len(self.tensors)) if i not in self._inputs]
        numbers = {old: new for new, old in enumerate([*self._inputs, *made])}
        steps = [
            Step(
                step.target,
                renumbered(step.arguments, numbers),
                renumbered(step.keywords, numbers),
            )
            for step in self.steps
        ]
        outputs = tuple(numbers[index] for index in self.outputs())
        return RandomGraph(tuple(self.specs), tuple(steps), outputs)


def draw_graph(seed: int, number: int) -> tuple[str, RandomGraph]:
    """Returns the kind of the graph of a seed and number, and the graph.

    The kind is a key of KINDS; for attention, with a colon and the form.
    """
    chance = random.Random(f"{seed} {number}")
    (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
    while True:
        drawn = _draw_attention(chance) if kind == "attention" else _draw_ops(chance, kind)
        if drawn is not None:
            return drawn


def _draw_attention(chance: random.Random) -> tuple[str, RandomGraph] | None:
    form = chance.choice(list(FORMS))
    drawn = GraphDraft(chance, kind="attention")
    batch = chance.choice((1, 2, drawn.draw_size()))
    tokens, others, heads, size = (drawn.draw_size() for _ in range(4))
    if batch * max(tokens, others) * heads * max(size, tokens) * 3 > _CELLS:
        return None
    try:
        FORMS[form](drawn, Sizes(batch, tokens, others, heads, size))
    except Misfit:
        return None
    _add_steps(drawn, chance.choice((0, 0, 0, 1, 2, 4)))
    return f"attention:{form}", drawn.graph()


def _draw_ops(chance: random.Random, kind: str) -> tuple[str, RandomGraph] | None:
    drawn = GraphDraft(chance, kind=kind)
    for _ in range(chance.choice((2, 2, 3, 4) if kind == "outside" else (1, 2, 2, 3, 4))):
        drawn.add_input()
    _add_steps(drawn, chance.choice((2, 3, 4, 5, 6, 7, 8, 9, 10, 12)))
    if not drawn.steps:
        return None
    graph = drawn.graph()
    return (kind, graph) if kind != "outside" else _with_index_outside(graph)


def _add_steps(drawn: GraphDraft, count: int) -> None:
    wanted = len(drawn.steps) + count
    for _ in range(count * _ATTEMPTS):
        if len(drawn.steps) >= wanted:
            return
        drawn.add_step(drawn.choose(OPS))


def _with_index_outside(graph: RandomGraph) -> tuple[str, RandomGraph] | None:
    """Returns the graph with one index of an input out of range, if a call indexes by an input."""
    tensors: list[Any] = list(graph.tensors())
    for step in graph.steps:
        tensors.append(call(step, tensors))
    for step in graph.steps:
        places = _INDEXED.get(step.target)
        if places is None:
            continue
        index, source = (step.arguments[place] for place in places)
        given = [index] if isinstance(index, Ref) else index if isinstance(index, tuple) else []
        axis = next((i for i, each in enumerate(given) if isinstance(each, Ref)), None)
        if axis is None or given[axis].value >= len(graph.inputs):
            continue
        number = given[axis].value
        if step.target in ("torch.index_select", "torch.gather"):
            axis = int(step.arguments[1] if len(step.arguments) > 2 else 0)
        spec = graph.inputs[number]
        bound = tensors[source.value].shape[axis]
        outside = dataclasses.replace(spec, fill="outside", bound=bound, frozen=False, layout="")
        inputs = list(graph.inputs)
        inputs[number] = outside
        found = dataclasses.replace(graph, inputs=tuple(inputs))
        if _raises(found):
            return "outside", found
    return None


def _raises(graph: RandomGraph) -> bool:
    values: list[Any] = list(graph.tensors())
    try:
        for step in graph.steps:
            values.append(call(step, values))
    except (RuntimeError, IndexError):
        return True
    return False


def _cells(shape: Sequence[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _copies(values: Sequence[Any]) -> list[torch.Tensor | None]:
    return [value.clone() if isinstance(value, torch.Tensor) else None for value in values]


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, as in an expanded tensor.

    There, torch's functionalization sums the values written to one element (torch 2.13).
    """
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in pairs)


def _is_tame(values: Sequence[Any], *, edges: bool) -> bool:
    """Whether numbers are finite and small, so that results can be compared; not for edges."""
    for value in values:
        parts = value if isinstance(value, (tuple, list)) else [value]
        for part in parts:
            if not isinstance(part, torch.Tensor):
                return False
            if part.numel() == 0 or part.numel() > _CELLS:
                return False
            if edges and not part.is_floating_point():
                continue
            wide = part.to(torch.float64)
            if edges:
                wide = wide[wide.isfinite()]
                if not wide.numel():
                    continue
            if not bool(wide.isfinite().all()) or float(wide.abs().max()) > _LARGEST:
                return False
    return True
