"""A random graph as plain data, which a pipe and a report can carry, and the module it stands for.

How graphs are drawn is in strategies.py, how they are compared in comparison.py.
"""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

__all__ = [
    "CREATING",
    "InputSpec",
    "Mark",
    "RandomGraph",
    "Ref",
    "Step",
    "call",
    "make_input",
    "references",
]

_ROOTS: dict[str, Any] = {"torch": torch, "F": F, "operator": operator}
CREATING = ("torch.arange", "torch.full", "torch.ones", "torch.zeros")
_QUARTERS = 65  # of -8 to 8


@dataclass(frozen=True)
class Ref:
    """An argument that is the value of that number: inputs first, then one per step."""

    value: int


@dataclass(frozen=True)
class Mark:
    """An argument that plain data has no name for: a dtype by its name, or a slice."""

    kind: str
    content: Any


@dataclass(frozen=True)
class Step:
    """One call.

    Attributes:
        target: such as "torch.add", "F.relu", "operator.getitem", or "method.add_".
        arguments: plain values, `Ref` and `Mark`, in lists or alone.
        keywords: likewise.
    """

    target: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class InputSpec:
    """A tensor given to the graph.

    Attributes:
        shape: its sizes.
        dtype: for example "float32".
        fill: "quarters" (multiples of 1/4 from -8 to 8, which each dtype holds exactly), "normal",
            or "indices" (0 and 1).
        seed: of its content.
        frozen: whether it is a buffer of the module, which may become a constant of the program.
        order: axes in the order in which they lie in memory; empty for the usual one.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    fill: str = "quarters"
    seed: int = 0
    frozen: bool = False
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class RandomGraph:
    """Inputs, calls in order, and which values are returned."""

    inputs: tuple[InputSpec, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    def to_json(self) -> str:
        """One line, from which `from_json` makes the same graph."""
        inputs = [dataclasses.asdict(spec) for spec in self.inputs]
        steps = [[s.target, _packed(s.arguments), _packed(s.keywords)] for s in self.steps]
        return json.dumps([inputs, steps, self.outputs])

    @classmethod
    def from_json(cls, line: str) -> RandomGraph:
        """The graph that `to_json` wrote down."""
        inputs, steps, outputs = json.loads(line)
        return cls(
            tuple(
                InputSpec(**{**i, "shape": tuple(i["shape"]), "order": tuple(i["order"])})
                for i in inputs
            ),
            tuple(Step(t, tuple(_unpacked(a)), _unpacked(k)) for t, a, k in steps),
            tuple(outputs),
        )

    def tensors(self) -> list[torch.Tensor]:
        """All inputs on the CPU; the same each time."""
        return [make_input(spec) for spec in self.inputs]

    def module(self, device: str = "cpu") -> fx.GraphModule:
        """The graph as dynamo would hand it over: torch functions, methods, buffers.

        Args:
            device: of the buffers, and of the tensors that calls create from nothing.
        """
        root = torch.nn.Module()
        graph = fx.Graph()
        for index, spec in enumerate(self.inputs):
            if spec.frozen:
                root.register_buffer(f"buffer_{index}", make_input(spec).to(device))
        # Placeholders first.
        given = {i: graph.placeholder(f"x{i}") for i, s in enumerate(self.inputs) if not s.frozen}
        values = [
            given.get(index) or graph.get_attr(f"buffer_{index}")
            for index in range(len(self.inputs))
        ]
        for step in self.steps:
            arguments = _replaced(step.arguments, values.__getitem__)
            keywords = _replaced(step.keywords, values.__getitem__)
            if step.target in CREATING:
                keywords["device"] = device
            kind, _, name = step.target.partition(".")
            if kind == "method":
                values.append(graph.call_method(name, tuple(arguments), keywords))
            else:
                values.append(
                    graph.call_function(_function(step.target), tuple(arguments), keywords)
                )
        graph.output(tuple(values[index] for index in self.outputs))
        return fx.GraphModule(root, graph)

    def program_text(self) -> str:
        """The graph as lines of Python, for a report."""
        lines = [f"x{i} = {spec}" for i, spec in enumerate(self.inputs)]
        first = len(self.inputs)
        for number, step in enumerate(self.steps, first):
            listed = [*map(_shown, step.arguments)]
            listed += [f"{key}={_shown(value)}" for key, value in step.keywords.items()]
            lines.append(f"x{number} = {step.target}({', '.join(listed)})")
        return "\n".join([*lines, f"return {', '.join(f'x{i}' for i in self.outputs)}"])


def call(step: Step, values: list[Any]) -> Any:
    """Makes one call on tensors."""
    arguments = _replaced(step.arguments, values.__getitem__)
    keywords = _replaced(step.keywords, values.__getitem__)
    kind, _, name = step.target.partition(".")
    if kind == "method":
        return getattr(arguments[0], name)(*arguments[1:], **keywords)
    return _function(step.target)(*arguments, **keywords)


def make_input(spec: InputSpec) -> torch.Tensor:
    """The tensor of a spec."""
    generator = torch.Generator().manual_seed(spec.seed)
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.fill == "indices" or dtype is torch.bool:
        tensor = torch.randint(0, 2, spec.shape, generator=generator)
    elif not dtype.is_floating_point:
        tensor = torch.randint(-8, 9, spec.shape, generator=generator)
    elif spec.fill == "normal":
        tensor = torch.randn(spec.shape, generator=generator)
    else:
        tensor = torch.randint(0, _QUARTERS, spec.shape, generator=generator) / 4 - 8
    tensor = tensor.to(dtype)
    if not spec.order:
        return tensor
    inverse = [spec.order.index(axis) for axis in range(len(spec.order))]
    return tensor.permute(spec.order).contiguous().permute(inverse)


def _function(target: str) -> Callable[..., Any]:
    found: Any = _ROOTS
    head, *rest = target.split(".")
    found = _ROOTS[head]
    for part in rest:
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function


def _replaced(value: Any, get: Callable[[int], Any]) -> Any:
    """Arguments with their references and marks resolved."""
    if isinstance(value, Ref):
        return get(value.value)
    if isinstance(value, Mark):
        return getattr(torch, value.content) if value.kind == "dtype" else slice(*value.content)
    if isinstance(value, dict):
        return {key: _replaced(each, get) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(each, get) for each in value)
    return value


def references(value: Any) -> Iterator[int]:
    """The numbers of the values that arguments name."""
    if isinstance(value, Ref):
        yield value.value
    elif isinstance(value, dict):
        yield from references(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from references(each)


def _shown(value: Any) -> str:
    if isinstance(value, Ref):
        return f"x{value.value}"
    if isinstance(value, Mark):
        return str(value.content)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value)


def _packed(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"ref": value.value}
    if isinstance(value, Mark):
        return {"mark": [value.kind, value.content]}
    if isinstance(value, tuple):
        return {"tuple": [_packed(each) for each in value]}
    if isinstance(value, list):
        return [_packed(each) for each in value]
    if isinstance(value, dict):
        return {"keywords": {key: _packed(each) for key, each in value.items()}}
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "ref":
        return Ref(content)
    if kind == "mark":
        return Mark(*content)
    if kind == "tuple":
        return tuple(_unpacked(each) for each in content)
    return {key: _unpacked(each) for key, each in content.items()}
