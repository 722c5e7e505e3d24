"""Builds a program of npu-ops' kernels from a piece of a graph."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import fx

import npu_runtime
from npu_compiler.errors import LoweringError
from npu_compiler.graph.nodes import axis_order
from npu_compiler.graph.origins import graph_title
from npu_compiler.graph_compiler.building import BuiltProgram, Piece, count_calls
from npu_compiler.graph_compiler.records import ProgramRecord
from npu_compiler.graph_compiler.targets import ProgramContent, TargetChoice, program_content
from npu_compiler.kernel_programs.evaluation import no_kernel
from npu_compiler.kernel_programs.tensor_graphs import lower_tensors_to_kernels
from npu_compiler.options import CompilerConfig
from npu_compiler.programs import ProgramCache
from npu_compiler.programs.cache import kernel_options, store_kernels
from npu_compiler.programs.execution import KernelCall, KernelForm, ProgramCall
from npu_compiler.verification.program_check import ProgramTrial, Subject
from npu_compiler.verification.result import Verdict
from npu_ops.kernel_programs.weights import PackedLinear
from npu_runtime import observe

__all__ = ["build_kernel_program"]


def build_kernel_program(
    piece: Piece,
    *,
    constants: Mapping[str, torch.Tensor],
    config: CompilerConfig,
    home: str,
    name: str,
    choice: TargetChoice,
) -> BuiltProgram:
    """Returns the kernel program of a piece, ready to call; as build_program.

    Raises [no-kernel] for a call without a kernel.
    """
    for node in piece.outputs:
        if axis_order(node.meta["val"]) is not None:
            raise no_kernel(node, "has a result with permuted dimensions")
    started = time.perf_counter()
    content = program_content(piece.module, weights=constants, orders=[], config=config)
    kept = _Kept(content, constants, home, config)
    model = graph_title(piece.module.graph)
    verdict = None if config.verify == "off" else kept.verdict()
    if verdict is not None and verdict.status == "wrong":
        raise no_kernel(next(iter(piece.module.graph.nodes)), str(verdict))
    with observe.span("compile", "lower", program=name):
        lowered = lower_tensors_to_kernels(piece.module, constants)
    form = KernelForm(
        program=lowered.program,
        rows=lowered.rows,
        inputs=tuple(tuple(node.meta["val"].shape) for node in lowered.inputs),
        results=tuple(tuple(node.meta["val"].shape) for node in piece.outputs),
        home=home,
        is_alone=choice.is_alone,
    )
    kept.store(form, lowered.weights, name=f"{model}, {name}")
    names = [node.name for node in lowered.inputs]
    call = KernelCall(form, lowered.weights, input_names=names, name=name)
    is_judged = verdict is not None and config.verify == "first"
    record = ProgramRecord(
        name=name,
        node_count=count_calls(piece.module.graph.nodes),
        input_count=len(names),
        output_count=len(piece.outputs),
        constant_bytes=sum(tensor.nbytes for tensor in constants.values()),
        precision="float32",
        lower_time_s=time.perf_counter() - started,
        compile_time_s=0.0,
        verdict=verdict,
        target="kernels",
        target_reason=choice.reason,
    )
    return BuiltProgram(
        call=call,
        record=record,
        content=content,
        input_orders=(None,) * len(names),
        output_orders=(None,) * len(piece.outputs),
        home=home,
        device_options={},
        trial=None if config.verify == "off" else _trial(call, piece, constants, kept, name),
        is_judged=is_judged,
    )


class _Kept:
    """The cache entry of a kernel program, if it has a unique key."""

    def __init__(
        self,
        content: ProgramContent | None,
        constants: Mapping[str, torch.Tensor],
        home: str,
        config: CompilerConfig,
    ) -> None:
        self._cache = ProgramCache(config.cache_dir)
        self._key: str | None = None
        if content is not None and self._cache.max_bytes > 0:
            self._key = content.key(constants, options=kernel_options(home))

    def verdict(self) -> Verdict | None:
        if self._key is None:
            return None
        return Verdict.from_json(self._cache.verdict(self._key))

    def keep_verdict(self, verdict: Verdict) -> None:
        if self._key is not None:
            self._cache.record_verdict(self._key, verdict.as_json(), amendments={})

    def store(
        self,
        form: KernelForm,
        weights: Mapping[str, PackedLinear | torch.Tensor],
        *,
        name: str,
    ) -> None:
        if self._key is not None:
            store_kernels(self._cache, self._key, form, weights, name=name)


def _trial(
    call: KernelCall,
    piece: Piece,
    constants: Mapping[str, torch.Tensor],
    kept: _Kept,
    name: str,
) -> ProgramTrial:
    """Returns the verification of the first run. Wrong programs are replaced by OpenVINO's."""

    def with_options(further: Mapping[str, str]) -> npu_runtime.Program:
        raise npu_runtime.ProgramError(
            f"{name} must be compiled for kernels without options, got {dict(further)}. Compile it "
            "for OpenVINO.",
            code="no-kernel",
        )

    def build_part(part: fx.GraphModule, weights: Mapping[str, torch.Tensor]) -> ProgramCall:
        raise LoweringError(
            f"{name} must be verified as a whole, got a part of it. Compile it for OpenVINO.",
            code="no-kernel",
        )

    subject = Subject(
        name=name,
        module=piece.module,
        weights=lambda: constants,
        precision="float32",
        drops_nan=False,
        with_options=with_options,
        build_part=build_part,
        keep=kept.keep_verdict,
    )
    return ProgramTrial(call, subject)
