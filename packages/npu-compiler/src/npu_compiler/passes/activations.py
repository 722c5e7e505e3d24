"""Fusions of activations, norms and rotary embeddings that models spell out in single calls."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

import npu_ops  # noqa: F401  (defines torch.ops.npu)
from npu_compiler.graph.nodes import add_call, is_call, sizes_of, value_of
from npu_compiler.passes.infra.pass_base import Facts
from npu_compiler.passes.infra.pattern import (
    FusePattern,
    Match,
    Pattern,
    Replacement,
    anything,
    call,
    either,
    number,
    optional,
)

__all__ = ["FoldBatchNorm", "FuseConvBnRelu", "FuseGelu", "FuseRmsNorm", "FuseRotaryEmbedding"]

aten = torch.ops.aten

_X = anything("x")
_MUL, _ADD = aten.mul.Tensor, aten.add.Tensor
_HALF_X = either(call(_MUL, _X, number("half")), call(aten.div.Tensor, _X, number("two")))


def _near(name: str, expected: float) -> Pattern:
    """Matches a number close to `expected`, within the digits that authors write."""
    return anything(
        name,
        check=lambda v: isinstance(v, (int, float)) and math.isclose(v, expected, rel_tol=1e-6),
    )


def _cube() -> Pattern:
    square = call(_MUL, _X, _X)
    return either(
        call(aten.pow.Tensor_Scalar, _X, number("exponent")),
        call(_MUL, square, _X, commutes=True),
    )


def _tanh_form() -> Pattern:
    inner = call(_ADD, _X, call(_MUL, _cube(), _near("cubic", 0.044715)), commutes=True)
    scaled = call(_MUL, inner, _near("scale", math.sqrt(2 / math.pi)))
    return call(_ADD, call(aten.tanh.default, scaled), number("one"))


def _erf_form() -> Pattern:
    scaled = either(
        call(aten.div.Tensor, _X, _near("root", math.sqrt(2))),
        call(_MUL, _X, _near("inverse", math.sqrt(0.5))),
    )
    return call(_ADD, call(aten.erf.default, scaled), number("one"))


def _gelu(form: Pattern) -> tuple[Pattern, ...]:
    return (
        call(_MUL, _HALF_X, form, commutes=True),
        call(_MUL, call(_MUL, _X, form, commutes=True), number("half")),
    )


@dataclass(frozen=True)
class FuseGelu(FusePattern):
    """0.5 x (1 + erf(x / sqrt 2)), or with tanh, -> aten.gelu.

    Source: Hendrycks and Gimpel, Gaussian Error Linear Units, arXiv 1606.08415.
    """

    name = "fuse_gelu"
    patterns = (*_gelu(_tanh_form()), *_gelu(_erf_form()))

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        expected: dict[str, Any] = {"half": 0.5, "two": 2, "one": 1, "exponent": 3}
        if any(match.named.get(name, value) != value for name, value in expected.items()):
            return None
        form = "tanh" if "scale" in match.named else "none"
        return Replacement(aten.gelu.default, (match["x"],), {"approximate": form})


# In half precision, models compute in float32 between two casts, as the fused op does.

_CAST = aten._to_copy.default
_PRODUCT = aten.mul.Tensor


def _norm() -> Pattern:
    x = anything("wide")
    square = either(call(aten.pow.Tensor_Scalar, x, number("two")), call(_PRODUCT, x, x))
    mean = call(aten.mean.dim, square, anything("axes"), True)
    root = call(aten.rsqrt.default, call(aten.add.Tensor, mean, number("eps")))
    return call(_PRODUCT, x, root, commutes=True)


@dataclass(frozen=True)
class FuseRmsNorm(FusePattern):
    """x * rsqrt(mean(x^2) + eps) * weight over the last axis -> npu.rms_norm.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv 1910.07467.
    """

    name = "fuse_rms_norm"
    patterns = (
        call(_PRODUCT, optional(_CAST, _norm()), anything("weight"), commutes=True),
        call(_CAST, call(_PRODUCT, _norm(), anything("weight"), commutes=True), keywords=True),
    )

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        wide, weight = match["wide"], match["weight"]
        if not isinstance(weight, torch.fx.Node) or match.named.get("two", 2) != 2:
            return None
        if tuple(match["axes"]) not in ((-1,), (value_of(wide).dim() - 1,)):
            return None
        if sizes_of(weight) != sizes_of(wide)[-1:]:
            return None
        dtype = value_of(match.root).dtype
        narrow = wide.args[0] if wide.target is _CAST else wide
        x = next((part for part in (wide, narrow) if value_of(part).dtype is dtype), None)
        if x is None or not value_of(weight).dtype.is_floating_point:
            return None
        return Replacement(torch.ops.npu.rms_norm.default, (x, weight, match["eps"]))


# Only in inference: in training the norm uses the statistics of the batch.

_CONVOLUTION = call(aten.convolution.default, anything(), name="convolution")
_NORM = call(
    aten._native_batch_norm_legit_no_training.default, _CONVOLUTION, anything(), name="norm"
)


@dataclass(frozen=True)
class FoldBatchNorm(FusePattern):
    """Convolution with weights cast to half precision, batch norm -> convolution.

    The weights are folded in float32 and rounded once. A device would fold rounded weights and
    round again, which is less exact than eager's autocast.
    """

    name = "fold_batch_norm"
    kinds = frozenset({"inference"})
    patterns = (call(operator.getitem, _NORM, 0),)

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        x, weight, bias, *form = match["convolution"].args
        is_transposed = form[3]
        before, dtype = _uncast(weight), value_of(match.root).dtype
        if is_transposed or before is None or value_of(weight).dtype is not dtype:
            return None
        bias = None if bias is None else _uncast(bias) or bias
        _, *parts, _, eps = match["norm"].args
        given = [part for part in (before, bias, *parts) if part is not None]
        if not all(isinstance(part, fx.Node) and part.name in facts.constants for part in given):
            return None
        folded = _folded(match.root, before, bias, parts, eps)
        rounded = [_added(match.root, _CAST, part, dtype=dtype) for part in folded]
        origin = match["convolution"]
        return Replacement(aten.convolution.default, (x, *rounded, *form), origin=origin)


def _uncast(node: Any) -> fx.Node | None:
    """Returns the float32 source of a cast to half precision."""
    if not is_call(node, _CAST) or not isinstance(node.args[0], fx.Node):
        return None
    return node.args[0] if value_of(node.args[0]).dtype is torch.float32 else None


def _folded(
    root: fx.Node, weight: fx.Node, bias: fx.Node | None, parts: list[Any], eps: float
) -> tuple[fx.Node, fx.Node]:
    """Returns weight and bias of a convolution with a folded batch norm; `parts` as in torch."""
    norm_weight, norm_bias, mean, variance = parts
    scale = _added(root, aten.rsqrt.default, _added(root, _ADD, variance, eps))
    if norm_weight is not None:
        scale = _added(root, _MUL, scale, norm_weight)
    sizes = [-1] + [1] * (value_of(weight).dim() - 1)
    by_channel = _added(root, aten.view.default, scale, sizes)
    shift = _added(root, aten.neg.default, mean)
    if bias is not None:
        shift = _added(root, _ADD, shift, bias)
    shift = _added(root, _MUL, shift, scale)
    if norm_bias is not None:
        shift = _added(root, _ADD, shift, norm_bias)
    return _added(root, _MUL, weight, by_channel), shift


def _added(root: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    return add_call(root.graph, root, target, args, origin=root, **kwargs)


@dataclass(frozen=True)
class FuseConvBnRelu(FusePattern):
    """convolution, batch norm with running statistics, relu -> npu.conv_bn_relu."""

    name = "fuse_conv_bn_relu"
    kinds = frozenset({"inference"})
    patterns = (call(aten.relu.default, call(operator.getitem, _NORM, 0)),)

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        x, weight, bias, stride, padding, dilation, transposed, _, groups = match[
            "convolution"
        ].args
        if transposed:
            return None
        _, bn_weight, bn_bias, mean, variance, _, eps = match["norm"].args
        args = (x, weight, bias, mean, variance, bn_weight, bn_bias)
        form = {"stride": stride, "padding": padding, "dilation": dilation}
        form |= {"groups": groups, "eps": eps}
        target, origin = torch.ops.npu.conv_bn_relu.default, match["convolution"]
        return Replacement(target, args, form, origin=origin)


_TURNED = call(
    aten.cat.default,
    [
        call(aten.neg.default, call(aten.slice.Tensor, _X, anything("axis"), anything("middle"))),
        call(aten.slice.Tensor, _X, anything("axis"), 0, anything("middle")),
    ],
    anything(),
)
_PATTERN = call(
    aten.add.Tensor,
    call(aten.mul.Tensor, _X, anything("cos"), commutes=True),
    call(aten.mul.Tensor, _TURNED, anything("sin"), commutes=True),
    commutes=True,
)


@dataclass(frozen=True)
class FuseRotaryEmbedding(FusePattern):
    """x cos + rotated(x) sin with tables that hold each angle twice -> npu.rotary_embedding.

    Source: Su et al., RoFormer, arXiv 2104.09864.
    """

    name = "fuse_rotary_embedding"
    patterns = (_PATTERN,)

    def replacement(self, match: Match, facts: Facts) -> Replacement | None:
        x, root = match["x"], match.root
        sizes = sizes_of(x)
        if len(sizes) != 4 or not isinstance(sizes[-1], int) or sizes[-1] % 2:
            return None
        half = sizes[-1] // 2
        if match["axis"] not in (-1, 3) or match["middle"] != half:
            return None
        whole = [_doubled_table(match[name]) for name in ("cos", "sin")]
        if not all(whole):
            return None
        tables = [
            add_call(root.graph, root, aten.slice.Tensor, (table, 2, 0, half), origin=root)
            for table in whole
        ]
        return Replacement(torch.ops.npu.rotary_embedding.default, (x, *tables))


def _doubled_table(table: object) -> fx.Node | None:
    """Returns the table (batch, sequence, width) of a view (batch, 1, sequence, width).

    Its halves must be known to be equal: the table is a concatenation of a tensor with itself.
    """
    if not is_call(table, aten.unsqueeze.default) or table.args[1] != 1:
        return None
    inner = table.args[0]
    if not isinstance(inner, fx.Node) or value_of(inner).dim() != 3 or not _is_doubled(inner):
        return None
    return inner


def _is_doubled(node: fx.Node) -> bool:
    """Whether a tensor's last axis has the same values twice."""
    pointwise = (
        aten.cos.default,
        aten.sin.default,
        aten._to_copy.default,
        aten.mul.Tensor,
        aten.mul.Scalar,
    )
    while is_call(node, *pointwise):
        if len(node.all_input_nodes) != 1 or not isinstance(node.args[0], fx.Node):
            return False
        node = node.args[0]
    if node.op == "get_attr":
        return _holds_twice(getattr(node.graph.owning_module, str(node.target), None))
    if not is_call(node, aten.cat.default):
        return False
    parts = node.args[0]
    is_pair = isinstance(parts, (list, tuple)) and len(parts) == 2 and parts[0] is parts[1]
    return is_pair and len(node.args) > 1 and node.args[1] in (-1, value_of(node).dim() - 1)


def _holds_twice(table: object) -> bool:
    if not isinstance(table, torch.Tensor):
        return False
    with unset_fake_temporarily():
        first, second = table.cpu().chunk(2, -1)
        return torch.equal(first, second)
