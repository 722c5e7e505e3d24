"""One case: an op, its arguments as data, a dtype, a layout, what is checked."""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from npu_ops.op_conformance.cases.layouts import lay_out, restride
from npu_ops.op_conformance.cases.tensors import dtype_named, make_tensor, parse_tensor
from npu_ops.op_conformance.interface import Operator, operator_named

__all__ = ["CHECKS", "Case"]

CHECKS = ("forward", "backward", "in-place")
_OF_CASE = "torch.case"  # stands for the case's dtype
_DIGITS = 10


@dataclass(frozen=True)
class Case:
    """One call of one op.

    Attributes:
        suite: `interface` or `models`.
        op: name of the interface, or of aten with its overload.
        dtype: of the tensors that name no dtype of their own.
        layout: of the tensors; see layouts.py. `recorded` where each has its strides.
        arguments: by the signature's names. Tensors are lines as tensors.py reads them; dtypes and
            memory formats are text such as `torch.float32`.
        checks: of `CHECKS`; forward is always among them.
        tolerance: name in tolerances.toml; empty for the op's.
        models: networks that make this call.
    """

    suite: str
    op: str
    dtype: str
    layout: str
    arguments: Mapping[str, Any]
    checks: tuple[str, ...] = ("forward",)
    tolerance: str = ""
    models: tuple[str, ...] = ()

    @functools.cached_property
    def id(self) -> str:
        """A name that stays as long as the call does, wherever the case stands in its file."""
        content = json.dumps(
            [self.op, self.dtype, self.layout, self.arguments], sort_keys=True
        ).encode()
        digest = hashlib.blake2b(content, digest_size=_DIGITS // 2).hexdigest()
        return f"{self.op}:{self.dtype}:{self.layout}:{digest}"

    @property
    def operator(self) -> Operator:
        """The op that is called."""
        return operator_named(self.op)

    def make_arguments(self, *, requires_grad: bool = False) -> dict[str, Any]:
        """The arguments on the CPU, the same at each call and on each machine.

        Args:
            requires_grad: whether the tensors that may have a gradient ask for one.
        """
        seed = zlib.crc32(self.id.encode())
        generator = torch.Generator().manual_seed(seed)
        tensors = self.operator.tensors

        def make(text: str) -> torch.Tensor:
            spec = parse_tensor(text)
            tensor = make_tensor(spec, dtype_named(self.dtype), generator)
            if spec.strides is not None:
                tensor = restride(tensor, spec.strides)
            elif self.layout != "recorded":
                tensor = lay_out(tensor, self.layout)
            may_learn = tensor.is_floating_point() or tensor.is_complex()
            return tensor.requires_grad_(requires_grad and may_learn and not spec.is_constant)

        return {
            name: tree_map_only(str, make if name in tensors else self._word, value)
            for name, value in self.arguments.items()
        }

    def _word(self, text: str) -> Any:
        """A dtype, a memory format, or a text that means itself."""
        if text == _OF_CASE:
            return dtype_named(self.dtype)
        if text.startswith("torch."):
            return getattr(torch, text.removeprefix("torch."))
        return text
