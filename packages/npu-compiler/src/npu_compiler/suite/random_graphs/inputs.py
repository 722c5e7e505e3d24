"""What a graph is given: shapes, dtypes, contents that meet edges, and how they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["FLOAT_EDGES", "LAYOUTS", "InputSpec", "make_input"]

_QUARTERS = 65  # of -8 to 8
# Contents that arithmetic meets at its edges; each of them stands in about one place of six.
FLOAT_EDGES = {
    "nan": (float("nan"),),
    "infinite": (float("inf"), float("-inf")),
    "tiny": (-0.0, 1e-42, -1e-42),
    "edges": (float("nan"), float("inf"), float("-inf"), -0.0),
}
_WHOLE_EDGES = (2**63 - 1, -(2**63), 2**31 - 1, -(2**31), 2**31, -(2**31) - 1, 1 << 40, 0, 1, -1)
_ONE_IN = 6
LAYOUTS = ("sliced", "strided", "interleaved", "expanded", "offset")


@dataclass(frozen=True)
class InputSpec:
    """A tensor given to the graph.

    Attributes:
        shape: its sizes.
        dtype: for example "float32".
        fill: "quarters" (multiples of 1/4 from -8 to 8, which each dtype holds exactly), "normal",
            "small" (a fifth of that), "ones", "indices" (below `bound`), "outside" (likewise, with
            one that is not), a key of FLOAT_EDGES (quarters, with those between), or "extreme"
            (integers at the ends of 32 and 64 bits).
        seed: of its content.
        frozen: whether it is a buffer of the module, which may become a constant of the program.
        order: axes in the order in which they lie in memory; empty for the usual one.
        layout: empty, or a member of LAYOUTS.
        bound: of indices.
        names: a letter per axis whose size varies together with others of that letter, "-" for one
            that keeps its size; empty for none.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    fill: str = "quarters"
    seed: int = 0
    frozen: bool = False
    order: tuple[int, ...] = ()
    layout: str = ""
    bound: int = 2
    names: str = ""


def make_input(spec: InputSpec) -> torch.Tensor:
    """The tensor of a spec."""
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
    """The same numbers in other memory; "expanded" repeats those of the first axis' first entry."""
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
