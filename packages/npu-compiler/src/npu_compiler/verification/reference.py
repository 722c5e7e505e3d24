"""Reference results: the same graph computed by torch, with decompressed weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

import npu_compiler.graph.op_forms  # noqa: F401  # defines attention
from npu_compiler.quantize import CompressionReport
from npu_compiler.quantize.weights import quantize_weight
from npu_compiler.verification.comparison import ROUNDING, on_host

__all__ = [
    "REFUSALS",
    "SAMPLES",
    "Reference",
    "Rounding",
    "decompressed",
    "refusal_text",
    "standing_in",
]

_ATTENTION = frozenset(
    {
        torch.ops.aten.scaled_dot_product_attention.default,
        torch.ops.npu_compiler.attention.default,
    }
)

# Sums of products. Of float16 torch's kernels take up to 200 times as long as of float32 on a
# processor without instructions for it: 2.0 s against 0.01 s for a convolution of 256 to 256
# channels, 3 x 3, over 32 x 32 (2026-11-25).
_aten = torch.ops.aten
_PRODUCTS = frozenset(
    {
        _aten.addmm, _aten.baddbmm, _aten.bmm, _aten.conv1d, _aten.conv2d, _aten.conv3d,
        _aten.conv_transpose1d, _aten.conv_transpose2d, _aten.conv_transpose3d, _aten.convolution,
        _aten.linear, _aten.matmul, _aten.mm,
    }
)  # fmt: skip

# Errors of torch if a dtype has no host kernel, or values do not fit.
REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)

# Maximum number of runs with rounding errors, which show how a graph amplifies them.
SAMPLES = 3

# Errors are drawn once per sample and reused, because drawing takes longer than the graph. The
# count is prime, so that rows of a tensor get different errors.
_FACTORS = 1_048_573
_HEAD = 64


class Reference:
    """A graph and the values of its inputs."""

    def __init__(
        self, module: fx.GraphModule, inputs: Sequence[Any], *, precision: str = "float32"
    ) -> None:
        """Takes a graph; it writes to these inputs if it writes to its inputs.

        Args:
            module: of calls that have kernels on the host; its tensors may live on npu.
            inputs: one value for each placeholder. They are read, not copied.
            precision: of the program to compare; sets the rounding errors that `noisy` adds.
        """
        self._module = module
        self._inputs = [_host_value(value) for value in inputs]
        self._noise = ROUNDING[precision]

    def results(self) -> list[Any]:
        """Returns the elements of the graph's output, flattened, on the host."""
        return self._run(None)

    def noisy(self, *, also_inputs: Sequence[int] = ()) -> Iterator[list[Any]]:
        """Yields the results several times, with different rounding errors.

        Each run copies the inputs at positions `also_inputs`, and appends them to its results.
        """
        for seed in range(SAMPLES):
            yield self._run(seed, also_inputs)

    def values(self) -> dict[str, Any]:
        """Returns the value of each node, by name."""
        walk = _Walk(self._module, keep=True)
        with torch.no_grad(), _no_autocast():
            walk.run(*self._inputs)
        return walk.kept

    def _run(self, seed: int | None, also_inputs: Sequence[int] = ()) -> list[Any]:
        if seed is None:
            walk, inputs = _Walk(self._module), self._inputs
        else:
            rounding = Rounding(self._noise, seed)
            walk = _Walk(self._module, rounding=rounding)
            inputs = [rounding(value) for value in self._inputs]
            for position in also_inputs:
                inputs[position] = inputs[position].clone()
        with torch.no_grad(), _no_autocast():
            results = walk.run(*inputs)
        found = pytree.tree_leaves(results, is_leaf=lambda value: value is None)
        return [*found, *(inputs[position] for position in also_inputs)]


def refusal_text(failure: Exception) -> str:
    """Returns torch's error on one line."""
    first = (str(failure).splitlines() or [""])[0]
    return f"torch raises {type(failure).__name__}: {first[:160]}"


def standing_in(right: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
    """Returns torch's result on the device of a program's wrong one, with its strides.

    A wrong result may have another shape; the strides are torch's then.
    """
    if right.shape != wrong.shape:
        return right.to(wrong.device, copy=True)
    return torch.empty_like(wrong, memory_format=torch.preserve_format).copy_(right)


class Rounding:
    """Adds one rounding error to each number of a tensor."""

    def __init__(self, size: float, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._factors = torch.empty(_FACTORS).uniform_(1 - size, 1 + size, generator=generator)
        self._place = 0  # of the next factor

    def __call__(self, value: Any) -> Any:
        """Returns a new tensor; tensors of whole numbers, such as positions, stay unchanged."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if value.numel() == 0 or _is_whole(value):
            return value
        # Dense, so that its elements are contiguous in memory in some order.
        wide = torch.empty_like(value, dtype=_wider(value.dtype)).copy_(value)
        flat = wide.as_strided((wide.numel(),), (1,))
        done = 0
        while done < flat.numel():
            count = min(flat.numel() - done, _FACTORS - self._place)
            flat[done : done + count] *= self._factors[self._place : self._place + count]
            done += count
            self._place = (self._place + count) % _FACTORS
        return wide.to(value.dtype)


def _wider(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _is_whole(value: torch.Tensor) -> bool:
    """Whether all elements are whole numbers; usually a few elements decide."""
    head = value[(0,) * (value.dim() - 1)][:_HEAD] if value.dim() else value
    return bool((head == head.round()).all()) and bool((value == value.round()).all())


class _Walk(fx.Interpreter):
    """Runs a graph on the host, whatever devices its calls name."""

    def __init__(
        self, module: fx.GraphModule, *, rounding: Rounding | None = None, keep: bool = False
    ) -> None:
        super().__init__(module)
        self._rounding = rounding
        self._keep = keep
        self.kept: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Runs one node."""
        result = super().run_node(n)
        if self._rounding is not None and n.op in ("call_function", "get_attr"):
            result = pytree.tree_map(self._rounding, result)
        if self._keep and n.op != "output":
            self.kept[n.name] = result
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls with the host in place of any other device."""
        args, kwargs = pytree.tree_map(_host_device, (args, kwargs))
        if target is torch.ops.aten.view.default:
            # A kernel may return other strides than the traced one.
            target = torch.ops.aten.reshape.default
        if target is torch.ops.aten.sort.default:
            # torch's faster sort of one row mixes equals, which programs keep in order.
            target, kwargs = torch.ops.aten.sort.stable, {**kwargs, "stable": True}
        if target in _ATTENTION and not _is_finite(args):
            # On some processors torch's faster kernels drop NaN of the query.
            with sdpa_kernel(SDPBackend.MATH):
                return super().call_function(target, args, kwargs)
        if getattr(target, "overloadpacket", None) in _PRODUCTS and any(map(_is_half, args)):
            args, kwargs = pytree.tree_map(_wide, (args, kwargs))
            # Rounded once, as in kernels that accumulate in float32.
            return super().call_function(target, args, kwargs).to(torch.float16)
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Reads a tensor of the graph."""
        return _host_value(super().get_attr(target, args, kwargs))


def _is_finite(args: tuple[Any, ...]) -> bool:
    """Whether the query, the key and the value hold neither NaN nor infinities."""
    return all(bool(part.isfinite().all()) for part in args[:3])


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float16


def _wide(value: Any) -> Any:
    return value.float() if _is_half(value) else value


def _host_device(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _host_value(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return on_host(value) if not value.is_complex() else value.detach().cpu()


def _no_autocast() -> Any:
    # A traced graph contains its casts.
    return torch.autocast("cpu", enabled=False)


def decompressed(
    weights: Mapping[str, torch.Tensor], report: CompressionReport, *, symmetric: bool
) -> dict[str, torch.Tensor] | str:
    """Returns weights by name, with compressed ones dequantized.

    Returns the reason instead if a compressed weight is not rounded to nearest as reported.
    """
    found = {name: on_host(weight) for name, weight in weights.items()}
    uses = Counter(weight.name for weight in report.weights)
    for weight in report.weights:
        exact = weights.get(weight.name)
        if exact is None or uses[weight.name] > 1:
            return f"{weight.name} was compressed in a form that no weight of the model has"
        matrix = on_host(exact)
        matrix = matrix if weight.is_transposed else matrix.t()
        if tuple(matrix.shape) != weight.shape:
            return f"{weight.name} was compressed in another shape than the model has"
        bits = int(weight.mode.removeprefix("int"))
        integers = quantize_weight(
            matrix, bits=bits, group_size=weight.group_size, symmetric=symmetric
        )
        values = integers.dequantize().to(exact.dtype)
        found[weight.name] = values if weight.is_transposed else values.t()
    return found
