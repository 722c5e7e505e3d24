"""A graph computed twice at once: in float32, and with every result rounded to float16.

Within a call sums are kept in float32, as an NPU's array of multipliers has it. A call's numbers
that are operands, such as the 1e-8 of `x + 1e-8`, are rounded too, its attributes are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from npu_compiler.graph.calls import op_name, written_inputs
from npu_compiler.graph.kept_float32 import keep_name
from npu_compiler.graph.origins import python_line
from npu_compiler.half_precision.report import HalfCall

__all__ = ["HalfRun", "is_finding", "is_lossy", "run_both"]

# Rounding takes away some 2e-4 of a result; above this, values are near the smallest of float16.
_LOSS = 1e-2
# Ops whose numbers are constants of a program, as tensors are.
_OPERANDS = frozenset(
    {"add", "sub", "rsub", "mul", "div", "where", "masked_fill", "full", "full_like",
     "scalar_tensor", "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "fill"}
)  # fmt: skip


@dataclass(frozen=True)
class HalfRun:
    """Of one run: what became of each call, and the error of the worst output."""

    calls: tuple[HalfCall, ...]
    error: float


def is_finding(call: HalfCall) -> bool:
    """Whether a call did more than round."""
    return call.overflowed > 0 or call.invalid > 0 or is_lossy(call)


def is_lossy(call: HalfCall) -> bool:
    """Whether a call's result is too small for float16."""
    return call.loss > _LOSS


def run_both(
    module: fx.GraphModule, inputs: Mapping[str, Any], is_kept: Callable[[fx.Node], bool]
) -> HalfRun:
    """Runs a graph in both precisions.

    Args:
        module: a functional graph of aten calls; floats are float32.
        inputs: value by placeholder name.
        is_kept: whether a call is computed in float32, from inputs as they come.
    """
    wide: dict[fx.Node, Any] = {}
    half: dict[fx.Node, Any] = {}
    calls: list[HalfCall] = []
    last_use = _last_uses(module.graph)
    written = {found for node in module.graph.nodes for found in written_inputs(node)}
    written_error = 0.0
    with torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "output":
                error = max(written_error, _outputs_error(node, wide, half))
                return HalfRun(tuple(calls), error)
            if node.op in ("placeholder", "get_attr"):
                value = inputs[node.name] if node.op == "placeholder" else _held(module, node)
                wide[node] = half[node] = value
                if node in written:  # the caller's stays as it is
                    wide[node], half[node] = value.clone(), value.clone()
                continue
            wide[node] = _call(node, *_arguments(node, wide))
            half[node], call = _half_call(node, half, wide[node], is_kept=is_kept(node))
            if call is not None:
                calls.append(call)
                if any(True for _ in written_inputs(node)):
                    written_error = max(written_error, call.error)
            for dead in last_use.get(node, ()):
                del wide[dead], half[dead]
    raise AssertionError("a graph ends with its output")


def _half_call(
    node: fx.Node, half: Mapping[fx.Node, Any], wide: Any, *, is_kept: bool
) -> tuple[Any, HalfCall | None]:
    given = _arguments(node, half)
    taken = given if is_kept else _half_arguments(node, given)
    exact = _call(node, *taken)
    result = exact if is_kept else pytree.tree_map_only(torch.Tensor, _rounded, exact)
    parts = list(_floats(exact, result, wide))
    if not parts:
        return result, None
    infinite, is_number = _new_infinities(given, taken)
    has_nan = any(_has_nan(value) for value in pytree.tree_leaves(taken))
    away = sum(float((full - kept)[kept.isfinite()].square().sum()) for full, kept, _ in parts)
    size = sum(float(full[kept.isfinite()].square().sum()) for full, kept, _ in parts)
    # A number that overflows is told where it reaches the result, which a mask's seldom does.
    infinite += sum(
        _count(kept.isinf() & (full.isfinite() | (right.isfinite() & is_number)))
        for full, kept, right in parts
    )
    call = HalfCall(
        name=node.name,
        op=op_name(node.target),
        line=python_line(node),
        module=keep_name(node),
        overflowed=infinite,
        invalid=0 if has_nan else sum(_count(e.isnan() & ~w.isnan()) for _, e, w in parts),
        lost=sum(_count((f != 0) & (e == 0)) for f, e, _ in parts),
        loss=(away / size) ** 0.5 if size else 0.0,
        error=max(_error(e, w) for _, e, w in parts),
    )
    return result, call


def _half_arguments(node: fx.Node, given: tuple[Any, Any]) -> tuple[Any, Any]:
    taken = pytree.tree_map_only(torch.Tensor, _rounded, given)
    if _plain_name(node) in _OPERANDS:
        taken = pytree.tree_map_only(float, _rounded_number, taken)
    return taken[0], taken[1]


def _arguments(node: fx.Node, values: Mapping[fx.Node, Any]) -> tuple[Any, Any]:
    return fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)


def _call(node: fx.Node, args: Any, kwargs: Any) -> Any:
    args, kwargs = pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), (args, kwargs))
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _held(module: fx.GraphModule, node: fx.Node) -> Any:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _plain_name(node: fx.Node) -> str:
    return op_name(node.target).split(".")[1] if "." in op_name(node.target) else ""


def _rounded(value: torch.Tensor) -> torch.Tensor:
    return value.half().to(value.dtype) if value.is_floating_point() else value


def _rounded_number(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).half())


def _new_infinities(given: Any, taken: Any) -> tuple[int, bool]:
    """How many values of tensors overflow as operands, and whether a number does."""
    count, is_number = 0, False
    for before, after in zip(pytree.tree_leaves(given), pytree.tree_leaves(taken), strict=True):
        if isinstance(before, torch.Tensor):
            count += _count(before.isfinite() & after.isinf())
        elif isinstance(before, float):
            is_number = is_number or (math.isfinite(before) and math.isinf(after))
    return count, is_number


def _floats(*values: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The float tensors of a call's results, side by side, in float64."""
    for parts in zip(*map(pytree.tree_leaves, values), strict=True):
        if isinstance(parts[0], torch.Tensor) and parts[0].is_floating_point():
            full, kept, wide = (part.double() for part in parts)
            if full.numel():
                yield full, kept, wide


def _count(mask: torch.Tensor) -> int:
    return int(mask.sum())


def _has_nan(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.isnan().any())


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    is_finite = expected.isfinite()
    others = torch.equal(found[~is_finite].nan_to_num(), expected[~is_finite].nan_to_num())
    if not others or not found[is_finite].isfinite().all():
        return float("inf")
    if not is_finite.any():
        return 0.0
    scale = max(float(expected[is_finite].abs().max()), 1e-6)
    return float((found - expected)[is_finite].abs().max()) / scale


def _outputs_error(
    node: fx.Node, wide: Mapping[fx.Node, Any], half: Mapping[fx.Node, Any]
) -> float:
    expected, found = _arguments(node, wide)[0], _arguments(node, half)[0]
    return max((_error(e, w) for e, _, w in _floats(found, found, expected)), default=0.0)


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Node -> the calls and inputs that nothing after it reads."""
    seen: set[fx.Node] = set()
    last: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        for source in (*node.all_input_nodes, node):
            if source not in seen:
                seen.add(source)
                if node.op == "call_function":
                    last.setdefault(node, []).append(source)
    return last
