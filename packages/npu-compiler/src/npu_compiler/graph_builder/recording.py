"""Records calls on graph tensors, with checks at the call."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from npu_compiler.errors import GraphError

__all__ = [
    "GraphTensor",
    "Place",
    "Recording",
    "Rehearsal",
    "Replay",
    "at_place",
    "find_place",
    "pass_over",
]

# Modules between the user's line and this one: torch modules, and checks of argument types.
_between = {__name__.rpartition(".")[0], "torch", "npu_runtime.public_calls"}


@dataclass(frozen=True)
class Place:
    """A line of Python: its file, number and function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def pass_over(package: str) -> None:
    """Makes find_place skip a package that builds graphs for a user."""
    _between.add(package)


def find_place() -> Place | None:
    """Returns the innermost line outside of torch and of skipped packages, or None."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not any(module == name or module.startswith(f"{name}.") for name in _between):
            return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return None


@contextlib.contextmanager
def at_place(place: Place | None) -> Iterator[None]:
    """Sets the source line of calls that torch.export captures in the body."""
    if place is None or not torch.compiler.is_exporting():
        yield
        return
    with fx_traceback.preserve_node_meta():
        fx_traceback.set_stack_trace(
            [f'  File "{place.file}", line {place.line}, in {place.function}\n']
        )
        yield


# Fake tensors check shapes and dtypes, but torch's kernels check more: equal dtypes of a product's
# factors, and indices in range. Such calls run once on zeros and on the graph's constants.

# Limit of tensor elements that a rehearsal creates, or stores for later ones.
_MOST_ELEMENTS = 1 << 24
# Exceptions of torch's kernels.
_REFUSALS = (ArithmeticError, IndexError, RuntimeError, TypeError, ValueError)


class Rehearsal:
    """Known values of a graph: its integer constants, and values computed from them."""

    def __init__(self) -> None:
        """Starts without values."""
        self._known: dict[int, torch.Tensor] = {}

    def learn(self, slot: int, value: torch.Tensor) -> None:
        """Stores a slot's value, except floats, which are not used as indices."""
        if not value.dtype.is_floating_point and value.numel() <= _MOST_ELEMENTS:
            self._known[slot] = value

    def forget(self) -> None:
        """Drops all values after a write, because others may be views of the written one."""
        self._known.clear()

    def try_call(
        self, call: Callable[[Mapping[int, torch.Tensor]], Any], fakes: Mapping[int, torch.Tensor]
    ) -> Any:
        """Runs a call on real tensors if only this shows whether torch accepts it.

        `call` executes it on a value per slot; `fakes` has the fake tensors. Returns the result if
        every value is known, or None. Raises torch's error if it does not depend on unknown values.
        """
        known = {slot for slot in fakes if slot in self._known}
        is_mixed = len({fake.dtype for fake in fakes.values()}) > 1
        is_large = sum(fake.numel() for fake in fakes.values()) > _MOST_ELEMENTS
        if is_large or not (known or is_mixed):
            return None
        try:
            result = self._run(call, fakes, 0)
        except _REFUSALS as failure:
            # A quotient rejects zeros, and an index into one row rejects ones.
            try:
                result = self._run(call, fakes, 1)
            except _REFUSALS:
                raise failure from None
        return result if len(known) == len(fakes) else None

    def _run(
        self,
        call: Callable[[Mapping[int, torch.Tensor]], Any],
        fakes: Mapping[int, torch.Tensor],
        fill: int,
    ) -> Any:
        values = {slot: self._value(slot, fake, fill) for slot, fake in fakes.items()}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return call(values)

    def _value(self, slot: int, fake: torch.Tensor, fill: int) -> torch.Tensor:
        if slot in self._known:
            return self._known[slot].clone()
        return torch.full(tuple(fake.shape), fill, dtype=fake.dtype)


# Calls run once on fake tensors, to check shapes and dtypes, and again when the graph is captured.

# Calls that read a tensor's values in Python, and errors of fake tensors for similar calls.
_GIVES_VALUES = {
    "__array__",
    "__dlpack__",
    "data_ptr",
    "numpy",
    "storage",
    "tolist",
    "untyped_storage",
}
_VALUES_NEEDED = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
)

# Calls that are recorded although they return nothing.
_WRITES = {"__setitem__"}

# This logger prints each refusal at length before it is raised.
_FAKE_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")


class GraphTensor(torch.Tensor):
    """A graph tensor with shape and dtype; it has values only while the graph runs.

    Operators, methods and torch functions on it add calls to the graph. Other tensors among their
    arguments become constants.
    """

    _recording: Recording
    _slot: int
    _fake: torch.Tensor

    @classmethod
    def wrap(cls, recording: Recording, slot: int, fake: torch.Tensor) -> GraphTensor:
        """Creates the tensor of a slot."""
        made: GraphTensor = torch.Tensor._make_wrapper_subclass(
            cls, fake.shape, strides=fake.stride(), dtype=fake.dtype, device=fake.device
        )
        made._recording, made._slot, made._fake = recording, slot, fake
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Records a torch call on graph tensors."""
        found = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, cls)]
        return found[0]._recording.call(func, args, dict(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Rejects code that bypasses torch functions, because there are no values."""
        raise _needs_values(getattr(func, "__name__", str(func)), find_place())

    def item(self) -> GraphTensor:  # type: ignore[override]
        """Returns the only element as a rank-0 graph tensor, because it has no value yet."""
        return self.reshape(())  # type: ignore[return-value]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        shape, dtype = tuple(self._fake.shape), str(self._fake.dtype).removeprefix("torch.")
        return f"{type(self).__name__}(shape={shape}, dtype={dtype})"


@dataclass(frozen=True)
class _Slot:
    """A placeholder for a graph tensor among the arguments of a recorded call."""

    index: int


@dataclass(frozen=True)
class _Step:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[int, ...]
    place: Place | None

    def run(self, values: Mapping[int, torch.Tensor]) -> Any:
        """Executes the call on a value per slot."""
        args, kwargs = pytree.tree_map_only(
            _Slot, lambda slot: values[slot.index], (self.args, self.kwargs)
        )
        return self.function(*args, **kwargs)

    def __str__(self) -> str:
        name = getattr(self.function, "__name__", str(self.function))
        return name if self.place is None else f"{name} ({self.place})"


class Recording:
    """The recorded calls of one graph."""

    def __init__(self, tensor_class: type[GraphTensor] = GraphTensor) -> None:
        """Starts an empty graph with a class for its tensors."""
        self._tensor_class = tensor_class
        self._fake_mode = FakeTensorMode()
        self._steps: list[_Step] = []
        self._tensors: list[GraphTensor] = []
        self._read: set[int] = set()
        self._returned: set[int] = set()
        self._rehearsal = Rehearsal()
        self._given: list[int] = []
        self._constants: dict[int, torch.Tensor] = {}
        # Keeps the originals alive, so that their ids are not reused.
        self._known: dict[int, tuple[torch.Tensor, GraphTensor]] = {}

    @property
    def length(self) -> int:
        """Number of tensors so far, which shows whether the graph has grown."""
        return len(self._tensors)

    @property
    def parameters(self) -> list[GraphTensor]:
        """The inputs, in order of creation."""
        return [self._tensors[slot] for slot in self._given]

    def add_parameter(self, shape: Sequence[int], dtype: torch.dtype) -> GraphTensor:
        """Adds an input."""
        with self._fake_mode:
            made = self._add(torch.empty(tuple(shape), dtype=dtype, device="cpu"))
        self._given.append(made._slot)
        return made

    def add_constant(self, tensor: torch.Tensor) -> GraphTensor:
        """Adds a constant; a tensor is added only once."""
        if (known := self._known.get(id(tensor))) is not None:
            return known[1]
        try:
            held = tensor.detach().cpu()
            made = self._add(self._fake_mode.from_tensor(held))
        except RuntimeError as failure:
            raise GraphError(
                "GraphBuilder: a constant must be a dense tensor with values, got "
                f"{tuple(tensor.shape)}, {tensor.dtype}, on {tensor.device} ({find_place()}). "
                "Dequantize it, or give it values.",
                code="graph-parameter",
            ) from failure
        self._constants[made._slot] = held
        self._rehearsal.learn(made._slot, held)
        self._known[id(tensor)] = (tensor, made)
        return made

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Records a call and returns its result, with graph tensors for tensors.

        Raises:
            GraphError: [graph-op] if torch rejects the arguments, [graph-value] if the call needs
                values, [graph-mixed] for tensors of two graphs.
        """
        place = find_place()
        try:
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._own, (args, kwargs))
        except RecursionError:
            raise GraphError(
                "GraphBuilder: arguments must not be recursive, got a list that contains itself "
                f"({place}). Pass "
                "tensors and numbers.",
                code="graph-op",
            ) from None
        used = {x._slot: x for x in pytree.tree_leaves((args, kwargs)) if _is_ours(x)}
        name = getattr(function, "__name__", str(function))
        if name in _GIVES_VALUES:
            raise _needs_values(name, place)
        places, named = pytree.tree_map_only(
            GraphTensor, lambda tensor: _Slot(tensor._slot), (args, kwargs)
        )
        step = _Step(function, places, named, results=(), place=place)
        fakes = {slot: tensor._fake for slot, tensor in used.items()}
        versions = [fake._version for fake in fakes.values()]
        try:
            with _quiet(), self._fake_mode, torch.no_grad():
                result = step.run(fakes)
            value = self._rehearsal.try_call(step.run, fakes)
        except Exception as failure:  # torch's kernels raise errors of any class
            raise _refusal(step, list(fakes.values()), failure) from failure
        if versions != [fake._version for fake in fakes.values()]:
            self._rehearsal.forget()
        # Calls that write, and no-ops, may return their arguments.
        own = {id(fake): used[slot] for slot, fake in fakes.items()}
        slots: list[int] = []

        def kept(fake: torch.Tensor) -> GraphTensor:
            made = own[id(fake)] if id(fake) in own else self._add(fake)
            slots.append(made._slot)
            return made

        wrapped = pytree.tree_map_only(torch.Tensor, kept, result)
        if slots or name in _WRITES:
            self._steps.append(dataclasses.replace(step, results=tuple(slots)))
            self._read.update(used)
            self._read.difference_update(slots)
            self._returned.update(slots)
            real = [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
            for slot, tensor in zip(slots, real, strict=False):
                self._rehearsal.learn(slot, tensor)
        return wrapped

    def unread(self) -> list[GraphTensor]:
        """Returns the results that no call reads, in order of creation."""
        ends = self._returned - self._read
        return [tensor for tensor in self._tensors if tensor._slot in ends]

    def replay(self, outputs: Any) -> Replay:
        """Returns the graph as a module from inputs to outputs.

        Args:
            outputs: graph tensors, nested like the result.
        """
        places = pytree.tree_map_only(GraphTensor, lambda tensor: _Slot(tensor._slot), outputs)
        return Replay(list(self._given), dict(self._constants), list(self._steps), places)

    def _own(self, tensor: torch.Tensor) -> GraphTensor:
        if not isinstance(tensor, GraphTensor):
            return self.add_constant(tensor)
        if tensor._recording is not self:
            raise GraphError(
                "GraphBuilder: tensors of one call must belong to one graph, got two "
                f"({find_place()}). "
                "Build both parts with the same GraphBuilder.",
                code="graph-mixed",
            )
        return tensor

    def _add(self, fake: torch.Tensor) -> GraphTensor:
        made = self._tensor_class.wrap(self, len(self._tensors), fake)
        self._tensors.append(made)
        return made


class Replay(nn.Module):
    """Runs a recorded graph on tensors with values."""

    def __init__(
        self,
        given: Sequence[int],
        constants: Mapping[int, torch.Tensor],
        steps: Sequence[_Step],
        outputs: Any,
    ) -> None:
        """Takes the parts of a recording; see Recording.replay."""
        super().__init__()
        self._given, self._steps, self._outputs = given, steps, outputs
        self._constant_slots = tuple(constants)
        for slot, tensor in constants.items():
            self.register_buffer(f"constant_{slot}", tensor)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Returns the outputs for the inputs; does not write to the inputs."""
        values: dict[int, torch.Tensor] = {}
        for slot, tensor in zip(self._given, inputs, strict=True):
            values[slot] = tensor.clone()
        for slot in self._constant_slots:
            values[slot] = getattr(self, f"constant_{slot}").clone()

        def value(place: _Slot) -> torch.Tensor:
            return values[place.index]

        for step in self._steps:
            with at_place(step.place):
                result = step.run(values)
            tensors = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
            values.update(zip(step.results, tensors, strict=True))
        return pytree.tree_map_only(_Slot, value, self._outputs)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    was_disabled, _FAKE_LOGGER.disabled = _FAKE_LOGGER.disabled, True
    try:
        yield
    finally:
        _FAKE_LOGGER.disabled = was_disabled


def _is_ours(value: Any) -> bool:
    return isinstance(value, GraphTensor)


def _refusal(step: _Step, fakes: Sequence[torch.Tensor], failure: Exception) -> GraphError:
    if type(failure).__name__ in _VALUES_NEEDED:
        return _needs_values(getattr(step.function, "__name__", str(step.function)), step.place)
    dtypes = [str(fake.dtype).removeprefix("torch.") for fake in fakes]
    shapes = ", ".join(f"{tuple(f.shape)} {dtype}" for f, dtype in zip(fakes, dtypes, strict=True))
    lines = str(failure).strip().splitlines() or [type(failure).__name__]
    says = lines[0].rstrip(".")
    if "out of range" in says or "out of bounds" in says:
        advice = "Give indices and dims in range."
    elif len({fake.dtype for fake in fakes}) > 1:
        advice = "Cast them to one dtype, by GraphBuilder.to or x.to(dtype)."
    else:
        advice = "Change their shapes or dtypes."
    return GraphError(
        f"GraphBuilder: {step} must have arguments that torch accepts, got tensors of {shapes}: "
        f"{says}. {advice}",
        code="graph-op",
    )


def _needs_values(name: str, place: Place | None) -> GraphError:
    where = "" if place is None else f" ({place})"
    return GraphError(
        f"GraphBuilder: a graph tensor must not be read before the graph runs, got {name}"
        f"{where}. Make it an output, and use the result of run().",
        code="graph-value",
    )
