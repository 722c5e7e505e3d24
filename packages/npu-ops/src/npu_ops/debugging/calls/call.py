"""One call of an op as torch's dispatcher sees it, and how it is written for a reader."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

__all__ = ["Call", "describe", "describe_tensor"]

# Arguments that an op writes although its schema does not say so.
_WRITTEN_QUIETLY = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
}
_LONGEST = 60  # characters of a value that is no tensor


@dataclass(frozen=True)
class Call:
    """A call, before it ran.

    Attributes:
        op: with its overload.
        args: positional arguments.
        kwargs: arguments by name.
        number: its place among all calls that the tool met, from 1.
        phase: `forward` or `backward`.
        node: of autograd that called it, such as `MmBackward0`; empty going forward.
        sequence: number that a forward call shares with the calls of its gradient; None where
            autograd does not record.
        line: of the user's code, `file:line`; not known in a backward pass.
        is_grad_enabled: whether autograd records; some kernels ask.
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
        """The tensors among the arguments, in order."""
        leaves = tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    @functools.cached_property
    def device(self) -> torch.device:
        """Where it computes: the first device among its arguments that is not the CPU."""
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
    """An argument on a line: a tensor by its dtype, shape and layout, others by their value."""
    if isinstance(value, torch.Tensor):
        return describe_tensor(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(describe(member) for member in value)}]"
    if isinstance(value, torch.Generator):
        return f"generator({value.device})"
    return str(value).removeprefix("torch.")[:_LONGEST]


def describe_tensor(tensor: torch.Tensor) -> str:
    """Such as `float32[2,3]`, with strides if it is not contiguous, and its device if not npu."""
    text = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}".replace(" ", "")
    if tensor.layout is not torch.strided:
        text += f" {str(tensor.layout).removeprefix('torch.')}"
    elif not tensor.is_contiguous():
        text += f" strides {list(tensor.stride())}".replace(", ", ",")
    return text if tensor.device.type == "npu" else f"{text} {tensor.device.type}"
