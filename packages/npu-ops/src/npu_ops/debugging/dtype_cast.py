"""`OpDtypeCast`: named ops compute in another dtype, and give results in their own.

Autocast decides by op which dtype is safe; this tool takes the dtype that it is given, to find the
op whose precision matters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from npu_ops.debugging.calls.call import Call
from npu_ops.debugging.report import Report
from npu_ops.debugging.tool import OpTool, aside
from npu_ops.errors import OperatorInputError
from npu_runtime.public_calls import public_call

__all__ = ["OpDtypeCast"]


class OpDtypeCast(OpTool):
    """Casts the floating-point tensors of a call, runs it, and casts what it gives back.

    In-place writes are written back in the tensor's own dtype. Views, copies between dtypes, calls
    without floating-point tensors, and calls that draw random numbers (which would be others in
    another dtype) are left alone.
    """

    tool_name = "DTYPE_CAST"

    @public_call
    def __init__(
        self,
        names: Sequence[str] | None = None,
        excluded: Sequence[str] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        of: Sequence[torch.dtype] = (torch.float16, torch.bfloat16, torch.float32, torch.float64),
    ) -> None:
        """Prepares the tool.

        Args:
            names: of the ops to cast; None for `OP_DTYPE_CAST_LIST`.
            excluded: of those to leave alone; None for `OP_DTYPE_CAST_DISABLE_LIST`.
            dtype: to compute in, a floating-point dtype.
            of: which dtypes are cast.

        Raises:
            OperatorInputError: [tool-option].
        """
        super().__init__(names, excluded)
        if not dtype.is_floating_point:
            raise OperatorInputError(
                f"dtype: a floating-point dtype; got {dtype}. Pass one such as torch.float32.",
                code="tool-option",
            )
        self._dtype = dtype
        self._of = frozenset(of) - {dtype}
        self.counts: Counter[str] = Counter()

    def take(self, call: Call) -> Any:
        """Runs the call in the other dtype, if it computes with one of those that are cast."""
        own = {tensor.dtype for tensor in call.tensors} & self._of
        if not own or _stays(call):
            return call.op(*call.args, **call.kwargs)
        with self._lock:
            self.counts[call.name] += 1
        back = own.pop() if len(own) == 1 else torch.promote_types(*sorted(own, key=str)[:2])
        twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def cast(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor) and leaf.dtype in self._of:
                if id(leaf) not in twins:
                    twins[id(leaf)] = (leaf, leaf.to(self._dtype))
                return twins[id(leaf)][1]
            return self._dtype if isinstance(leaf, torch.dtype) and leaf in self._of else leaf

        with aside():
            args, kwargs = tree_map(cast, (call.args, call.kwargs))
        results = call.op(*args, **kwargs)
        originals = {id(twin): leaf for leaf, twin in twins.values()}

        def uncast(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or leaf.dtype is not self._dtype:
                return leaf
            return originals[id(leaf)] if id(leaf) in originals else leaf.to(back)

        with aside():
            for written in call.written:
                if id(written) in twins:
                    written.copy_(twins[id(written)][1])
            return tree_map(uncast, results)

    def report(self) -> Report:
        """One row for each op that was cast."""
        return Report(
            f"Ops that computed in {str(self._dtype).removeprefix('torch.')}",
            ("op", "calls"),
            tuple(self.counts.most_common()),
            f"{self.counts.total():,} calls of {len(self.counts):,} ops were cast.",
        )


def _stays(call: Call) -> bool:
    """Whether a call's business is memory, the dtype itself, or random numbers."""
    return (
        call.op.is_view
        or bool({torch.Tag.inplace_view, torch.Tag.nondeterministic_seeded} & set(call.op.tags))
        or call.op._schema.name in ("aten::_to_copy", "aten::copy_", "aten::_copy_from")
    )
