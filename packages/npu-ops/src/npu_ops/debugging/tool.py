"""OpTool: the base of tools on dispatched ops, with their selection of calls.

A tool is a TorchDispatchMode. It is active on the thread that entered it and on autograd's threads
that work for it, because torch passes modes to these. Other threads must enter it themselves.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
    is_traceable_wrapper_subclass,
)
from torch.utils._pytree import tree_leaves

from npu_ops.config import read_tool_lists
from npu_ops.debugging.report import Report
from npu_ops.errors import OperatorInputError, OpsError
from npu_ops.fallback import calling_line
from npu_ops.names import check_patterns, first_match

__all__ = ["Call", "OpTool", "Selection", "aside", "describe", "describe_tensor"]


# Arguments that an op writes although its schema omits the write.
_WRITTEN_QUIETLY = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
}
_LONGEST = 60  # maximum length of the text of other values


@dataclass(frozen=True)
class Call:
    """A call before it runs.

    Attributes:
        op: the op's overload.
        args: positional arguments.
        kwargs: arguments by name.
        number: number among all calls that the tool saw, from 1.
        phase: `forward` or `backward`.
        node: calling autograd node, such as `MmBackward0`; empty in the forward pass.
        sequence: number shared by a forward call and the calls of its gradient; None if autograd
            does not record.
        line: call site in the user's code, `file:line`; unknown in a backward pass.
        is_grad_enabled: whether autograd records, which some kernels depend on.
    """

    op: OpOverload[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    number: int
    phase: str
    node: str
    sequence: int | None
    line: str
    is_grad_enabled: bool

    @property
    def name(self) -> str:
        """The exact name, such as `aten.add.Tensor`."""
        return str(self.op)

    @functools.cached_property
    def signature(self) -> str:
        """The name with dtypes, shapes, layouts and all other arguments."""
        words = [describe(value) for value in self.args]
        words += [f"{name}={describe(value)}" for name, value in self.kwargs.items()]
        return f"{self.name}({', '.join(words)})"

    @functools.cached_property
    def tensors(self) -> list[torch.Tensor]:
        """The tensor arguments, in order."""
        leaves = tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    @functools.cached_property
    def device(self) -> torch.device:
        """The device of the call: the first device of its arguments that is not the CPU."""
        found = torch.device("cpu")
        for leaf in tree_leaves((self.args, self.kwargs)):
            device = leaf.device if isinstance(leaf, torch.Tensor | torch.Generator) else leaf
            if isinstance(device, torch.device) and device.type not in ("cpu", "meta"):
                found = device
                break
        return found

    @functools.cached_property
    def written(self) -> tuple[torch.Tensor, ...]:
        """The arguments that the op writes."""
        found: list[torch.Tensor] = []
        quiet = _WRITTEN_QUIETLY.get(self.op._schema.name, ())
        for place, argument in enumerate(self.op._schema.arguments):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if not is_written and argument.name not in quiet:
                continue
            named = self.kwargs.get(argument.name)
            value = self.args[place] if place < len(self.args) else named
            found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        return tuple(found)


def describe(value: Any) -> str:
    """Describes an argument on one line: a tensor by dtype, shape and layout, others by value."""
    if isinstance(value, torch.Tensor):
        return describe_tensor(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(describe(member) for member in value)}]"
    if isinstance(value, torch.Generator):
        return f"generator({value.device})"
    return str(value).removeprefix("torch.")[:_LONGEST]


def describe_tensor(tensor: torch.Tensor) -> str:
    """Returns text like `float32[2,3]`, with strides and device unless contiguous on npu."""
    text = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}".replace(" ", "")
    if tensor.layout is not torch.strided:
        text += f" {str(tensor.layout).removeprefix('torch.')}"
    elif not tensor.is_contiguous():
        text += f" strides {list(tensor.stride())}".replace(", ", ",")
    return text if tensor.device.type == "npu" else f"{text} {tensor.device.type}"


class Selection:
    """Selects calls, and counts those left out. Threads may share it."""

    def __init__(
        self,
        tool: str,
        names: Sequence[str] | None,
        excluded: Sequence[str] | None,
        *,
        every: int,
        per_signature: int | None,
    ) -> None:
        """Sets the rules.

        Args:
            tool: tool whose environment variables replace arguments that are None.
            names: exact names or patterns of the ops to select; empty means all.
            excluded: ops to exclude; takes precedence over names.
            every: select one call of an op in this many.
            per_signature: maximum number of calls of one signature; None for all.

        Raises:
            OperatorInputError: [tool-option] for a number below 1, or one string for a list;
                [unknown-op] for a name that matches no operator.
        """
        for option, given in (("names", names), ("excluded", excluded)):
            if isinstance(given, str):
                raise OperatorInputError(
                    f"`{option}` must be a list of names or patterns, got the string {given!r}. "
                    f"Pass [{given!r}].",
                    code="tool-option",
                )
        for option, number in (("every", every), ("per_signature", per_signature)):
            if number is not None and not (isinstance(number, int) and number >= 1):
                raise OperatorInputError(
                    f"`{option}` must be an integer from 1, got {number!r}. Pass 1 or more.",
                    code="tool-option",
                )
        lists = read_tool_lists(tool)
        self.names = lists.names if names is None else tuple(names)
        self.excluded = lists.excluded if excluded is None else tuple(excluded)
        check_patterns(f"OP_{tool}_LIST" if names is None else "names", self.names)
        check_patterns(f"OP_{tool}_DISABLE_LIST" if excluded is None else "excluded", self.excluded)
        self._every = every
        self._per_signature = per_signature
        self._lock = threading.Lock()
        self._named: dict[str, bool] = {}
        self._calls: Counter[str] = Counter()
        self._signatures: Counter[str] = Counter()
        self.left_out = 0

    def names_op(self, name: str) -> bool:
        """Whether the lists select an op."""
        if name not in self._named:
            wanted = not self.names or first_match(name, self.names) is not None
            self._named[name] = wanted and first_match(name, self.excluded) is None
        return self._named[name]

    def takes(self, call: Call) -> bool:
        """Whether a call of a selected op is taken; each query counts as a call."""
        with self._lock:
            turn = self._calls[call.name]
            self._calls[call.name] += 1
            taken = turn % self._every == 0
            if taken and self._per_signature is not None:
                signature = call.signature
                taken = self._signatures[signature] < self._per_signature
                self._signatures[signature] += taken
            self.left_out += not taken
            return taken


_NO_SEQUENCE = 2**63  # larger than autograd's numbers: a node without one


class OpTool(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A tool on dispatched ops: a context manager, or `start()` and `stop()`.

    Tools nest: the tool entered last sees a call first.

    Attributes:
        tool_name: the name in `OP_<TOOL>_LIST`.
        selection: selection of calls.
        follows_all: whether `leave` also gets calls of ops outside the selection.
    """

    tool_name: ClassVar[str]
    follows_all: ClassVar[bool] = False
    supports_higher_order_operators = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    def __init__(
        self,
        names: Sequence[str] | None = None,
        excluded: Sequence[str] | None = None,
        *,
        every: int = 1,
        per_signature: int | None = None,
    ) -> None:
        """Prepares the tool.

        Args:
            names: exact names (`aten.add.Tensor`) or patterns (`add`, `aten.*norm*`) of the ops to
                select; empty means all, None reads `OP_<TOOL>_LIST`.
            excluded: ops to exclude; None reads `OP_<TOOL>_DISABLE_LIST`.
            every: take one call of an op in this many.
            per_signature: maximum number of calls of one signature; None for all.

        Raises:
            OperatorInputError: [tool-option].
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.selection = Selection(
            self.tool_name, names, excluded, every=every, per_signature=per_signature
        )
        self._numbers = itertools.count(1)
        # Guards the tool's state, because calls may come from several threads.
        self._lock = threading.RLock()

    def start(self) -> Self:
        """Activates the tool on this thread; returns it."""
        self.__enter__()  # type: ignore[no-untyped-call]
        return self

    def stop(self) -> None:
        """Deactivates the tool on this thread.

        Raises:
            OpsError: [tool-order] if this thread entered another tool later.
        """
        if _get_current_dispatch_mode() is not self:
            raise OpsError(
                f"{type(self).__name__}.stop: it must be the last tool started on this thread, "
                "got another order. Stop later tools first, or use `with`.",
                code="tool-order",
            )
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def take(self, call: Call) -> Any:
        """Runs a selected call; returns its results."""
        raise NotImplementedError

    def leave(self, call: Call) -> Any:
        """Runs a call that is not selected; returns its results."""
        return call.op(*call.args, **call.kwargs)

    def report(self) -> Report:
        """Returns the findings so far."""
        raise NotImplementedError

    @property
    def passed(self) -> bool:
        """Whether the tool found no error; always True for a tool that only observes."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if not isinstance(func, OpOverload) or func.namespace == "profiler":
            return func(*args, **named)
        tensors = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, torch.Tensor)]
        if any(is_traceable_wrapper_subclass(tensor) for tensor in tensors):
            return NotImplemented  # decomposes into ops that arrive here again
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return func(*args, **named)
        is_named = self.selection.names_op(str(func))
        if not is_named and not self.follows_all:
            return func(*args, **named)
        call = _call(func, args, named, next(self._numbers) if is_named else 0)
        if not is_named or not self.selection.takes(call):
            return self.leave(call)
        return self.take(call)


@contextmanager
def aside() -> Iterator[None]:
    """Hides a tool's own ops from other tools and from autograd."""
    with _disable_current_modes(), torch.no_grad():
        yield


def _call(
    func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], number: int
) -> Call:
    is_backward = torch._C._current_graph_task_id() != -1
    node = torch._C._current_autograd_node() if is_backward else None
    sequence: int | None = None
    if node is not None:
        sequence = node._sequence_nr()
    elif not is_backward and torch.is_grad_enabled():
        # Autograd created the node of this call right before.
        sequence = torch._C._autograd._get_sequence_nr() - 1
    if sequence is not None and not 0 <= sequence < _NO_SEQUENCE:
        sequence = None
    return Call(
        op=func,
        args=args,
        kwargs=kwargs,
        number=number,
        phase="backward" if is_backward else "forward",
        node="" if node is None else node.name(),
        sequence=sequence,
        line="" if is_backward else calling_line(),
        is_grad_enabled=torch.is_grad_enabled(),
    )
