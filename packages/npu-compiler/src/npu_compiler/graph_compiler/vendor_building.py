"""One piece of a graph becomes a program of a vendor's compiler."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import fx

import npu_runtime
from npu_compiler.graph.nodes import plain_tensor
from npu_compiler.graph_compiler.building import BuiltProgram, Piece, RefusedNode, count_calls
from npu_compiler.graph_compiler.records import ProgramRecord
from npu_compiler.options import CompilerConfig
from npu_compiler.programs.execution import ProgramCall
from npu_compiler.target_compiler import GraphProgram, TargetProgram, find_target, vendor_of
from npu_compiler.verification.program_check import ProgramTrial, Subject, wrong_part
from npu_runtime import observe
from npu_runtime.npu import as_cpu

__all__ = ["build_vendor_program"]


class _Program:
    """A vendor's program with the calls of npu_runtime.Program that ProgramCall makes."""

    def __init__(self, run: Callable[..., Sequence[torch.Tensor]], outputs: Sequence[Any]) -> None:
        self._run = run
        self._metas = [node.meta["val"] for node in outputs]

    def run(self, inputs: Sequence[Any], *, output_device: torch.device) -> list[torch.Tensor]:
        """Runs it on the CPU's view of the inputs; results have the graph's dtypes and strides."""
        results = []
        for result, meta in zip(self._run([_on_cpu(x) for x in inputs]), self._metas, strict=True):
            # One element of an expanded dimension, which is expanded again.
            own = result.reshape(meta.shape)[
                tuple(slice(1 if step == 0 else None) for step in meta.stride())
            ]
            kept = torch.empty_strided(own.shape, meta.stride(), dtype=meta.dtype).copy_(own)
            results.append(kept.expand(meta.shape).to(output_device))
        return results


def build_vendor_program(
    piece: Piece,
    *,
    constants: Mapping[str, torch.Tensor],
    config: CompilerConfig,
    home: str,
    name: str,
    kind: str,
) -> BuiltProgram:
    """Returns the program of a piece that `config.target` compiles; as build_program.

    Raises RefusedNode for the calls with which a refusal begins, and [target-absent] or
    [target-compiler] without a toolkit that starts.
    """
    target = find_target(str(config.target), graphs=True)
    vendor = vendor_of(target)
    calls = [node for node in piece.module.graph.nodes if node.op == "call_function"]
    if kind != "inference":
        raise RefusedNode(dict.fromkeys(calls, f"{target} takes no graph of training"))
    weights = {key: _on_cpu(tensor) for key, tensor in constants.items()}

    def compiled(part: fx.GraphModule, own: Mapping[str, torch.Tensor]) -> TargetProgram:
        with observe.span("compile", "target", program=name, target=target.number):
            return vendor.compile(GraphProgram(name=name, module=part, constants=own), target)

    started = time.perf_counter()
    made = compiled(piece.module, weights)
    if not made.report.is_accepted:
        named = [node for node in calls if node.name == made.report.operation]

        def is_refused(part: fx.GraphModule, sources: Sequence[fx.Node]) -> bool:
            own = {node.name: weights[node.name] for node in sources if node.name in weights}
            return not compiled(part, own).report.is_accepted

        found = named or wrong_part(piece.module, is_refused)
        raise RefusedNode(dict.fromkeys(found, f"{target} refuses it: {made.report.reason}"))
    if made.run is None:
        raise RefusedNode(dict.fromkeys(calls, f"nothing here runs a program of {target}"))

    def call_of(part: fx.GraphModule, program: TargetProgram, own: Mapping[str, Any]) -> Any:
        outputs: Any = part.graph.output_node().args[0]
        orders = [None] * len(outputs)
        placeholders = [node.name for node in part.graph.find_nodes(op="placeholder")]
        names = tuple(one for one in placeholders if one not in own)
        call = ProgramCall(
            _Program(program.run, outputs),  # type: ignore[arg-type]
            input_orders=[None] * len(names), output_orders=orders, home=home,
        )  # fmt: skip
        call.input_names = names
        return call

    def build_part(part: fx.GraphModule, own: Mapping[str, torch.Tensor]) -> Any:
        made = compiled(part, {key: _on_cpu(tensor) for key, tensor in own.items()})
        if made.run is None:
            _no_other_way({})
        return call_of(part, made, own)

    def _no_other_way(_: Mapping[str, str]) -> NoReturn:
        raise npu_runtime.ProgramError(
            f"{name}: {target} compiles in one way, got other options. Run it eagerly.",
            code="target-refused",
        )

    call = call_of(piece.module, made, weights)
    subject = Subject(
        name=name,
        module=piece.module,
        weights=lambda: weights,
        precision=vendor.precision,
        drops_nan=True,
        with_options=_no_other_way,
        build_part=build_part,
        keep=lambda verdict: None,
    )
    record = ProgramRecord(
        name=name,
        node_count=count_calls(piece.module.graph.nodes),
        input_count=len(call.input_names),
        output_count=len(piece.outputs),
        constant_bytes=sum(tensor.nbytes for tensor in weights.values()),
        precision=vendor.precision,
        lower_time_s=time.perf_counter() - started - made.report.duration_s,
        compile_time_s=made.report.duration_s,
        target=target.number,
        target_reason="as asked for",
    )
    return BuiltProgram(
        call=call,
        record=record,
        content=None,
        input_orders=(None,) * record.input_count,
        output_orders=(None,) * record.output_count,
        home=home,
        device_options={},
        trial=None if config.verify == "off" else ProgramTrial(call, subject),
    )


def _on_cpu(value: Any) -> Any:
    tensor = plain_tensor(value) if isinstance(value, torch.Tensor) else torch.tensor(value)
    return as_cpu(tensor) if tensor.device.type == "npu" else tensor
