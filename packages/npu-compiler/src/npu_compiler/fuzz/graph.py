"""Random graphs: their inputs, calls and text form."""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

__all__ = [
    "CREATING",
    "FLOAT_EDGES",
    "LAYOUTS",
    "InputSpec",
    "Mark",
    "RandomGraph",
    "Ref",
    "Step",
    "call",
    "function",
    "make_input",
    "references",
    "renumbered",
    "replaced_reference",
]

_QUARTERS = 65  # of -8 to 8
# Edge values of arithmetic; each is used for about one element in six.
FLOAT_EDGES = {
    "nan": (float("nan"),),
    "infinite": (float("inf"), float("-inf")),
    "tiny": (-0.0, 1e-42, -1e-42),
    "edges": (float("nan"), float("inf"), float("-inf"), -0.0),
    "large": (6e4, -7e4, 1e20, -3e38),
}
_WHOLE_EDGES = (2**63 - 1, -(2**63), 2**31 - 1, -(2**31), 2**31, -(2**31) - 1, 1 << 40, 0, 1, -1)
_ONE_IN = 6
LAYOUTS = ("sliced", "strided", "interleaved", "expanded", "offset")


@dataclass(frozen=True)
class InputSpec:
    """An input tensor of the graph."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    # "quarters" (multiples of 1/4 from -8 to 8, which each dtype holds exactly), "normal", "small"
    # (a fifth of that), "ones", "indices" (below `bound`), "outside" (likewise, with one that is
    # not), a key of FLOAT_EDGES (quarters, with those between), or "extreme" (integers at the ends
    # of 32 and 64 bits).
    fill: str = "quarters"
    seed: int = 0
    # Whether it is a module buffer, which may become a constant of the program.
    frozen: bool = False
    # Axes in memory order; empty for contiguous.
    order: tuple[int, ...] = ()
    layout: str = ""  # empty, or a member of LAYOUTS
    bound: int = 2
    # A letter per axis, "-" for an axis of fixed size: sizes of axes with one letter vary together.
    # Empty for static sizes.
    names: str = ""


def make_input(spec: InputSpec) -> torch.Tensor:
    """Creates the tensor of a spec."""
    tensor = _content(spec)
    if spec.order:
        inverse = [spec.order.index(axis) for axis in range(len(spec.order))]
        return tensor.permute(spec.order).contiguous().permute(inverse)
    return _laid_out(tensor, spec.layout) if spec.layout and tensor.dim() else tensor


def _content(spec: InputSpec) -> torch.Tensor:
    generator = torch.Generator().manual_seed(spec.seed)
    dtype: torch.dtype = getattr(torch, spec.dtype)
    shape: Sequence[int] = spec.shape
    if spec.fill == "ones":
        return torch.ones(shape, dtype=dtype)
    if spec.fill in ("indices", "outside"):
        tensor = torch.randint(0, max(1, spec.bound), shape, generator=generator)
        if spec.fill == "outside" and tensor.numel():
            outside = (spec.bound, -spec.bound - 1, spec.bound + 1000, 1 << 40, -(1 << 40))
            place = int(torch.randint(0, tensor.numel(), (), generator=generator))
            tensor.view(-1)[place] = outside[spec.seed % len(outside)]
        return tensor.to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if not dtype.is_floating_point:
        tensor = torch.randint(-8, 9, shape, generator=generator).to(dtype)
        if spec.fill != "extreme":
            return tensor
        ends = torch.iinfo(dtype)
        numbers = [min(max(number, ends.min), ends.max) for number in _WHOLE_EDGES]
        return _sprinkled(tensor, torch.tensor(numbers, dtype=dtype), generator)
    if spec.fill == "normal":
        return torch.randn(shape, generator=generator).to(dtype)
    if spec.fill == "small":
        return (torch.randn(shape, generator=generator) / 5).to(dtype)
    tensor = (torch.randint(0, _QUARTERS, shape, generator=generator) / 4 - 8).to(dtype)
    if spec.fill not in FLOAT_EDGES:
        return tensor
    return _sprinkled(tensor, torch.tensor(FLOAT_EDGES[spec.fill], dtype=dtype), generator)


def _sprinkled(
    tensor: torch.Tensor, numbers: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    where = torch.randint(0, _ONE_IN, tensor.shape, generator=generator) == 0
    which = torch.randint(0, len(numbers), tensor.shape, generator=generator)
    return torch.where(where, numbers[which], tensor)


def _laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns the same numbers in another layout; "expanded" repeats the first entry."""
    if layout == "expanded":
        return tensor[:1].expand(tensor.shape)
    if layout == "sliced":
        wide = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] + 3, dtype=tensor.dtype)
        view = wide[..., 2 : 2 + tensor.shape[-1]]
    elif layout == "strided":
        wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
        view = wide[..., ::2]
    elif layout == "interleaved":
        wide = torch.zeros(tensor.shape[0], 3, *tensor.shape[1:], dtype=tensor.dtype)
        view = wide[:, 1]
    else:
        wide = torch.zeros(tensor.numel() + 5, dtype=tensor.dtype)
        view = wide[5:].view(tensor.shape)
    view.copy_(tensor)
    return view


# Graphs are drawn in drawing.py and compared in comparison.py.

_ROOTS: dict[str, Any] = {"torch": torch, "F": F, "operator": operator}
CREATING = ("torch.arange", "torch.full", "torch.ones", "torch.zeros")


@dataclass(frozen=True)
class Ref:
    """An argument that refers to a value by number: inputs first, then one per step."""

    value: int


@dataclass(frozen=True)
class Mark:
    """An argument that is not plain data."""

    kind: str  # "dtype", "slice", "rest" (an ellipsis), or "size" (of a value, along an axis)
    content: Any  # a dtype's name; a slice's three numbers; None; the two numbers


@dataclass(frozen=True)
class Step:
    """One call."""

    target: str  # such as "torch.add", "F.relu", "operator.getitem", or "method.add_"
    arguments: tuple[Any, ...]  # plain values, `Ref` and `Mark`, also in lists
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class RandomGraph:
    """Inputs, calls in order, and returned values."""

    inputs: tuple[InputSpec, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    def to_json(self) -> str:
        """Returns one line of JSON, which `from_json` reads."""
        inputs = [dataclasses.asdict(spec) for spec in self.inputs]
        steps = [[s.target, _packed(s.arguments), _packed(s.keywords)] for s in self.steps]
        return json.dumps([inputs, steps, self.outputs])

    @classmethod
    def from_json(cls, line: str) -> RandomGraph:
        """Reads a line of `to_json`."""
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
        """Creates all inputs on the CPU; deterministic."""
        return [make_input(spec) for spec in self.inputs]

    def given(self) -> list[torch.Tensor]:
        """Inputs of a call: those that are not frozen."""
        return [make_input(spec) for spec in self.inputs if not spec.frozen]

    def names(self) -> list[str]:
        """Axis names of each of these."""
        return [spec.names for spec in self.inputs if not spec.frozen]

    def values(
        self,
        tensors: list[torch.Tensor] | None = None,
        *,
        wide: bool = False,
        disturb: Callable[[Any, Sequence[torch.Tensor]], None] | None = None,
    ) -> list[Any]:
        """Runs the graph eagerly; returns all values, inputs in their state after the run.

        Args:
            tensors: all inputs; by default those of `tensors()`, on the CPU.
            wide: compute in float64 instead of narrower floating-point types.
            disturb: may write to each input, and to each result of a call, before the next call.
        """
        found: list[Any] = self.tensors() if tensors is None else list(tensors)
        if wide:
            found = [value.double() if value.is_floating_point() else value for value in found]
        if disturb is not None:
            for value in found:
                disturb(value, ())
        for step in self.steps:
            result = call(step, found, wide=wide)
            if disturb is not None:
                used = references([list(step.arguments), step.keywords])
                operands = [found[i] for i in used if isinstance(found[i], torch.Tensor)]
                if step.target.endswith("_") or not _is_view(result, operands):
                    disturb(result, operands)
            found.append(result)
        return found

    def compared(self, values: Sequence[Any]) -> list[torch.Tensor]:
        """Returns the compared values: results, and inputs that are not frozen."""
        given = [value for value, spec in zip(values, self.inputs, strict=False) if not spec.frozen]
        return [*(values[index] for index in self.outputs), *given]

    def resized(self, sizes: Mapping[str, int]) -> RandomGraph:
        """Returns the graph with other sizes of named axes."""
        changed = []
        for spec in self.inputs:
            names = spec.names or "-" * len(spec.shape)
            shape = tuple(sizes.get(n, old) for n, old in zip(names, spec.shape, strict=True))
            changed.append(dataclasses.replace(spec, shape=shape))
        return dataclasses.replace(self, inputs=tuple(changed))

    @property
    def is_writing(self) -> bool:
        """Whether a call writes to its argument."""
        return any(step.target.endswith("_") for step in self.steps)

    def module(self, device: str = "cpu") -> fx.GraphModule:
        """Returns the graph as from dynamo: torch functions, methods, buffers on the device."""
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
                    graph.call_function(function(step.target), tuple(arguments), keywords)
                )
        graph.output(tuple(values[index] for index in self.outputs))
        return fx.GraphModule(root, graph)


def call(step: Step, values: list[Any], *, wide: bool = False) -> Any:
    """Executes one call on tensors; if wide, casts to narrow float types go to float64."""
    arguments = _replaced(step.arguments, values.__getitem__)
    keywords = _replaced(step.keywords, values.__getitem__)
    if wide:
        arguments = tuple(torch.float64 if _is_narrow(each) else each for each in arguments)
        keywords = {k: torch.float64 if _is_narrow(v) else v for k, v in keywords.items()}
    kind, _, name = step.target.partition(".")
    if kind == "method":
        return getattr(arguments[0], name)(*arguments[1:], **keywords)
    return function(step.target)(*arguments, **keywords)


def _is_view(value: Any, operands: Sequence[torch.Tensor]) -> bool:
    parts = value if isinstance(value, (tuple, list)) else [value]
    memory = {operand.untyped_storage().data_ptr() for operand in operands}
    return any(
        isinstance(part, torch.Tensor) and part.untyped_storage().data_ptr() in memory
        for part in parts
    )


def _is_narrow(value: Any) -> bool:
    return any(value is dtype for dtype in (torch.float16, torch.bfloat16, torch.float32))


def function(target: str) -> Callable[..., Any]:
    """Returns the function with a name such as "torch.add"."""
    found: Any = _ROOTS
    head, *rest = target.split(".")
    found = _ROOTS[head]
    for part in rest:
        found = getattr(found, part)
    called: Callable[..., Any] = found
    return called


def _replaced(value: Any, get: Callable[[int], Any]) -> Any:
    """Returns arguments with resolved references and marks."""
    if isinstance(value, Ref):
        return get(value.value)
    if isinstance(value, Mark):
        return _marked(value, get)
    if isinstance(value, dict):
        return {key: _replaced(each, get) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(each, get) for each in value)
    return value


def _marked(mark: Mark, get: Callable[[int], Any]) -> Any:
    if mark.kind == "size":
        owner, axis = get(mark.content[0]), mark.content[1]
        is_node = isinstance(owner, fx.Node)
        return owner.graph.call_method("size", (owner, axis)) if is_node else owner.size(axis)
    if mark.kind == "rest":
        return ...
    return getattr(torch, mark.content) if mark.kind == "dtype" else slice(*mark.content)


def references(value: Any) -> Iterator[int]:
    """Yields the numbers of values that arguments refer to."""
    if isinstance(value, Ref):
        yield value.value
    elif isinstance(value, Mark):
        if value.kind == "size":
            yield value.content[0]
    elif isinstance(value, dict):
        yield from references(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from references(each)


def renumbered(value: Any, numbers: Mapping[int, int]) -> Any:
    """Returns arguments with other numbers of their values."""
    if isinstance(value, Ref):
        return Ref(numbers[value.value])
    if isinstance(value, Mark) and value.kind == "size":
        return Mark("size", [numbers[value.content[0]], value.content[1]])
    if isinstance(value, dict):
        return {key: renumbered(each, numbers) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(renumbered(each, numbers) for each in value)
    return value


def replaced_reference(value: Any, old: int, new: int) -> Any:
    """Returns arguments with one value replaced by another."""
    used = set(references(value))
    return renumbered(value, {index: new if index == old else index for index in used})


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
