"""Makes aten.gelu of gelu written out, in its form with erf and in its form with tanh."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from npu_compiler.passes.base import Facts
from npu_compiler.passes.fuse_pattern import FusePattern, Replacement
from npu_compiler.passes.pattern import Match, Pattern, anything, call, either, number

__all__ = ["FuseGelu"]

aten = torch.ops.aten

_X = anything("x")
_MUL, _ADD = aten.mul.Tensor, aten.add.Tensor
_HALF_X = either(call(_MUL, _X, number("half")), call(aten.div.Tensor, _X, number("two")))


def _near(name: str, expected: float) -> Pattern:
    """A number that is `expected` but for the digits that authors write."""
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
