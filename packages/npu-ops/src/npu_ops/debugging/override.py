"""`OpDtypeCast` and `OpFallback`: run ops in another dtype, or on the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from npu_ops.debugging.report import Report
from npu_ops.debugging.tool import Call, OpTool, aside
from npu_ops.debugging.trial import Outcome, Trial, is_plain, set_device_state
from npu_ops.errors import OperatorInputError
from npu_runtime.public_calls import public_call

__all__ = ["OpDtypeCast", "OpFallback"]


class OpDtypeCast(OpTool):
    """Casts the floating-point tensors of a call, runs it, and casts its results back.

    In-place writes are written back in the tensor's dtype. Views, copies between dtypes, calls
    without floating-point tensors, and calls that draw random numbers (which depend on the dtype)
    are not cast.
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
            names: ops to cast; None for `OP_DTYPE_CAST_LIST`.
            excluded: ops to exclude; None for `OP_DTYPE_CAST_DISABLE_LIST`.
            dtype: floating-point dtype to compute in.
            of: dtypes to cast.

        Raises:
            OperatorInputError: [tool-option].
        """
        super().__init__(names, excluded)
        if not dtype.is_floating_point:
            raise OperatorInputError(
                f"`dtype` must be a floating-point dtype, got {dtype}. Pass one such as "
                "torch.float32.",
                code="tool-option",
            )
        self._dtype = dtype
        self._of = frozenset(of) - {dtype}
        self.counts: Counter[str] = Counter()

    def take(self, call: Call) -> Any:
        """Runs the call in the other dtype, if it computes in one of the dtypes to cast."""
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
        """Returns one row per op that was cast."""
        return Report(
            f"Ops that computed in {str(self._dtype).removeprefix('torch.')}",
            ("op", "calls"),
            tuple(self.counts.most_common()),
            f"{self.counts.total():,} calls of {len(self.counts):,} ops were cast.",
        )


def _stays(call: Call) -> bool:
    """Whether a call is about memory, the dtype itself, or random numbers."""
    return (
        call.op.is_view
        or bool({torch.Tag.inplace_view, torch.Tag.nondeterministic_seeded} & set(call.op.tags))
        or call.op._schema.name in ("aten::_to_copy", "aten::copy_", "aten::_copy_from")
    )


class OpFallback(OpTool):
    """Runs calls on the CPU with copies of their arguments, and copies the results back.

    Writes are copied back, results that share memory with an argument still share it, and the
    device's random generator continues from the CPU's state. Views stay on the device.
    """

    tool_name = "FALLBACK"

    def __init__(
        self, names: Sequence[str] | None = None, excluded: Sequence[str] | None = None
    ) -> None:
        """Prepares the tool.

        Args:
            names: ops to run on the CPU; empty means all, None reads `OP_FALLBACK_LIST`.
            excluded: ops that stay on the device; None reads `OP_FALLBACK_DISABLE_LIST`.

        Raises:
            OperatorInputError: [tool-option].
        """
        super().__init__(names, excluded)
        self.counts: Counter[str] = Counter()

    def take(self, call: Call) -> Any:
        """Runs the call on the CPU, if it computes on the device."""
        is_view = call.op.is_view or torch.Tag.inplace_view in call.op.tags
        if call.device.type == "cpu" or is_view:
            return call.op(*call.args, **call.kwargs)
        with self._lock:
            self.counts[call.name] += 1
        with aside():
            trial = Trial(call)
            host = trial.on_host()
            if host.error is not None:
                raise host.error
            return _bring_back(trial, host)

    def report(self) -> Report:
        """Returns one row per op that ran on the CPU."""
        return Report(
            "Ops that ran on the CPU",
            ("op", "calls"),
            tuple(self.counts.most_common()),
            f"{self.counts.total():,} calls of {len(self.counts):,} ops ran on the CPU.",
        )


def _bring_back(trial: Trial, host: Outcome) -> Any:
    call = trial.call
    own = call.tensors
    for mine, its in zip(own, host.tensors, strict=True):
        if its.is_meta or mine.device.type == "cpu":
            continue
        if mine.shape != its.shape:
            mine.resize_(its.shape)
        if _is_changed(trial, host, mine, its):
            mine.copy_(its)
    if host.state is not None and trial.state is not None:
        set_device_state(call.device, host.state)
    homes = {storage._cdata: mine for storage, mine in _twins(host, own)}
    same = {id(its): mine for its, mine in zip(host.tensors, own, strict=True)}

    def bring(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.is_meta:
            return leaf
        if id(leaf) in same:
            return same[id(leaf)]
        home = homes.get(leaf.untyped_storage()._cdata) if is_plain(leaf) else None
        if home is None:
            return leaf.to(call.device)
        start = _start(trial, home)
        offset = leaf.storage_offset() + start // leaf.itemsize
        alias = torch.empty(0, dtype=leaf.dtype, device=home.device)
        return alias.set_(home.untyped_storage(), offset, leaf.shape, leaf.stride())

    return tree_map(bring, host.results)


def _is_changed(trial: Trial, host: Outcome, mine: torch.Tensor, its: torch.Tensor) -> bool:
    """Whether the CPU changed an argument, even if its schema omits the write."""
    if any(mine is tensor for tensor in trial.call.written):
        return True
    if not is_plain(its):
        return False
    place = [id(tensor) for tensor in host.tensors if is_plain(tensor)].index(id(its))
    image = trial.before.images[place]
    before = trial.before.storages[image.storage].data
    after = host.homes[place]
    return (
        not torch.empty(0, dtype=torch.uint8).set_(after, 0, (before.numel(),), (1,)).equal(before)
    )


def _twins(host: Outcome, own: list[torch.Tensor]) -> list[tuple[torch.UntypedStorage, Any]]:
    plain = [tensor for tensor in own if is_plain(tensor)]
    return list(zip(host.homes, plain, strict=True))


def _start(trial: Trial, home: torch.Tensor) -> int:
    """Returns the offset of the copied part of a tensor's storage, in bytes."""
    wanted = home.untyped_storage()._cdata
    return next(
        (
            storage.start
            for storage in trial.before.storages
            if storage.original is not None and storage.original._cdata == wanted
        ),
        0,
    )
