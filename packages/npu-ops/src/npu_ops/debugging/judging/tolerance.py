"""How far an op on the device may be off: by op, by dtype, by what served it.

Without a word from the user it is torch's own tolerance of the dtype. Where a program served the
call, npu_ops.tolerances says by what share of the largest value more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch.testing._comparison import default_tolerances

from npu_ops.names import first_match
from npu_ops.tolerances import NAMED, tolerance_of

__all__ = ["Tolerances"]


@dataclass(frozen=True)
class Tolerances:
    """Relative and absolute tolerances; the first that fits counts, ops before dtypes.

    Attributes:
        by_op: pattern of op names -> (rtol, atol).
        by_dtype: dtype of a result -> (rtol, atol).
    """

    by_op: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    by_dtype: Mapping[torch.dtype, tuple[float, float]] = field(default_factory=dict)

    def of(
        self, name: str, dtype: torch.dtype, *, largest: float, programs: int
    ) -> tuple[float, float]:
        """The relative and the absolute tolerance of one result.

        Args:
            name: of the op, such as `aten.mm.default`.
            dtype: of the result.
            largest: the largest finite value that is expected.
            programs: how many programs served the call.
        """
        pattern = first_match(name, self.by_op)
        if pattern is not None:
            return self.by_op[pattern]
        if dtype in self.by_dtype:
            return self.by_dtype[dtype]
        rtol, atol = default_tolerances(dtype)
        if programs:
            share = tolerance_of(_subject(name)).of(dtype)
            atol = max(atol, share * max(1.0, largest))
        return rtol, atol


def _subject(name: str) -> str:
    """An op's name in torch's database, as far as it is among those with a tolerance of their own.

    `aten._scaled_dot_product_attention_math.default` is what serves
    `nn_functional_scaled_dot_product_attention`.
    """
    op = name.split(".")[1].strip("_")
    return next(
        (subject for subject in NAMED if op.startswith(subject.removeprefix("nn_functional_"))), op
    )
