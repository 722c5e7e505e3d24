"""What all op tools share: they see each op below autograd, forward and backward.

A tool is a TorchDispatchMode. It holds for the thread that entered it and for autograd's threads
that work for it, since torch hands modes on to those; another thread enters the tool itself.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

from npu_ops.debugging.calls.call import Call
from npu_ops.debugging.calls.selection import Selection
from npu_ops.debugging.report import Report
from npu_ops.errors import OpsError
from npu_ops.fallback import calling_line

__all__ = ["OpTool", "aside"]

_NO_SEQUENCE = 2**63  # autograd's number for nodes that have none is larger


class OpTool(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A tool over ops: a context manager, or `start()` and `stop()`.

    Tools nest: the one that was entered last sees a call first.

    Attributes:
        tool_name: as in `OP_<TOOL>_LIST`.
        selection: which calls it takes.
        follows_all: whether `leave` gets calls that the selection does not name, too.
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
                look at; empty for all, None for `OP_<TOOL>_LIST`.
            excluded: of those to leave alone; None for `OP_<TOOL>_DISABLE_LIST`.
            every: of the calls of one op, take the first of so many.
            per_signature: how many calls of one signature to take; None for all.

        Raises:
            OperatorInputError: [tool-option].
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.selection = Selection(
            self.tool_name, names, excluded, every=every, per_signature=per_signature
        )
        self._numbers = itertools.count(1)
        # Calls may come from several threads; what a tool keeps is changed under this lock.
        self._lock = threading.RLock()

    def start(self) -> Self:
        """Enters the tool in this thread; returns it."""
        self.__enter__()  # type: ignore[no-untyped-call]
        return self

    def stop(self) -> None:
        """Leaves the tool in this thread.

        Raises:
            OpsError: [tool-order] when it is not the one that this thread entered last.
        """
        if _get_current_dispatch_mode() is not self:
            raise OpsError(
                f"{type(self).__name__}.stop: a tool ends in the thread that started it, after "
                "those that started later; this one is not the innermost here. Stop the others "
                "first, or use with-blocks.",
                code="tool-order",
            )
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def take(self, call: Call) -> Any:
        """Runs a call that the tool looks at; returns what the op gives."""
        raise NotImplementedError

    def leave(self, call: Call) -> Any:
        """Runs a call that the tool does not look at; returns what the op gives."""
        return call.op(*call.args, **call.kwargs)

    def report(self) -> Report:
        """What the tool found so far."""
        raise NotImplementedError

    @property
    def passed(self) -> bool:
        """Whether the tool found nothing wrong; one that does not judge finds nothing."""
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
            return NotImplemented  # it takes itself apart, and its parts come back here
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
    """Within it a tool's own ops are seen by no other tool, and not by autograd."""
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
        # The node of this call was made just before it came here.
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
