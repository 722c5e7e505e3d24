"""The stages of a kernel program as the layers of a trace, with what products read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from npu_ops.kernel_programs.instructions import Keep, Linear
from npu_ops.kernel_programs.program import KernelProgram
from npu_ops.kernel_programs.weights import PackedLinear
from npu_runtime import observe

__all__ = ["StageLayers"]

# As traces write arrays: "f32[35,576]".
_KINDS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "int8": "i8", "int4": "u4"}
_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.uint8: "u8"}


class StageLayers:
    """A program's stages, each of which is one layer.

    Attributes:
        names: of the stages: their instructions and module.
    """

    def __init__(
        self,
        program: KernelProgram,
        stages: Sequence[tuple[int, int]],
        weights: Mapping[str, PackedLinear | torch.Tensor],
        *,
        kernel_set: str,
    ) -> None:
        """Describes the stages.

        Args:
            program: whose they are.
            stages: the first and the last instruction of each.
            weights: each weight that the program names.
            kernel_set: which kernels run them.
        """
        instructions = program.instructions
        modules = program.modules or ("",) * len(instructions)
        keep = next((at for at, one in enumerate(instructions) if isinstance(one, Keep)), None)
        self._stages = []
        for first, last in stages:
            inner = instructions[first : last + 1]
            kinds = [type(one).__name__ for one in inner]
            products = [one for one in inner if isinstance(one, Linear)]
            packed = [weights[one.weight] for one in products]
            is_known = len(products) == len(inner)
            self._stages.append(
                _Stage(
                    name=f"{'+'.join(kinds)} {modules[first]}".strip(),
                    kind="Linear" if is_known else "+".join(kinds),
                    module=modules[first],
                    kernels=f"{kernel_set}_{_kind(packed[0])}" if is_known else kernel_set,
                    weights=" ".join(map(_arrays, packed)) if is_known else "",
                    width=products[0].input.width if is_known else 0,
                    results=tuple(one.out.width for one in products),
                    is_kept=keep is not None and first > keep,
                )
            )
        self.names = [stage.name for stage in self._stages]

    def emit(
        self, times_ns: Sequence[int], start_ns: int, *, rows: int, kept: int, **place: int
    ) -> None:
        """Emits the spans of a run's layers, which ran one after the other.

        Args:
            times_ns: nanoseconds of each stage.
            start_ns: when the first began.
            rows: how many the run had.
            kept: how many there were after the program's Keep.
            place: device and stream.
        """
        for stage, duration_ns in zip(self._stages, times_ns, strict=True):
            if stage.weights:
                count = kept if stage.is_kept else rows
                outputs = " ".join(f"f32[{count},{width}]" for width in stage.results)
                inputs = f"f32[{count},{stage.width}] {stage.weights}"
                arrays = {"inputs": inputs, "outputs": outputs}
                observe.span_between("layer_shapes", stage.name, start_ns, start_ns, **arrays)
            how = {"type": stage.kind, "implementation": stage.kernels, "module": stage.module}
            end_ns = start_ns + duration_ns
            observe.span_between("layer", stage.name, start_ns, end_ns, **place, **how)
            start_ns = end_ns


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """One stage; of products alone also their weights as arrays, and how wide rows are."""

    name: str
    kind: str
    module: str
    kernels: str
    weights: str
    width: int
    results: tuple[int, ...]
    is_kept: bool


def _kind(weight: PackedLinear | torch.Tensor) -> str:
    return _KINDS[weight.kind] if isinstance(weight, PackedLinear) else _DTYPES[weight.dtype]


def _arrays(weight: PackedLinear | torch.Tensor) -> str:
    """Returns a weight as arrays: its elements, then scales and zeros as one dimension each."""
    if isinstance(weight, torch.Tensor):
        return f"{_kind(weight)}[{','.join(map(str, weight.shape))}]"
    beside = [part for part in (weight.scales, weight.zeros) if part is not None]
    parts = [f"{_DTYPES[part.dtype]}[{part.numel()}]" for part in beside]
    return " ".join([f"{_kind(weight)}[{weight.outputs},{weight.inputs}]", *parts])
