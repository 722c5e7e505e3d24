"""Captured graphs compiled whole by a vendor's compiler, for exported folders and for checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from npu_compiler.errors import ExportError
from npu_compiler.exported.capture import Captured
from npu_compiler.graph.nodes import is_symbolic, op_name
from npu_compiler.graph.origins import node_place
from npu_compiler.lowering.capability import refusal
from npu_compiler.options import CompilerConfig
from npu_compiler.programs.blobs import BLOB_FOLDER, AheadBlob, fingerprint
from npu_compiler.quantize import call_arguments
from npu_compiler.target_compiler import GraphProgram, Target, TargetReport, vendor_of

__all__ = ["compile_captured", "graph_program", "write_graph_blobs"]


def graph_program(
    name: str, captured: Captured, calibration: Iterable[Any] | None = None
) -> GraphProgram:
    """Returns a captured module as program for a vendor's compiler; errors as in tensors_of."""
    calls = [captured.tensors_of(*call_arguments(call)) for call in calibration or ()]
    constants = {key: tensor.detach().cpu() for key, tensor in captured.constants.items()}
    module = captured.program.graph_module
    return GraphProgram(name=name, module=module, constants=constants, calibration=calls)


def compile_captured(
    program: GraphProgram, target: Target
) -> tuple[TargetReport | None, list[str]]:
    """Returns the compiler's report, or None and the calls known to be refused."""
    config = CompilerConfig(target=target.number)
    refused = [
        f"{op_name(node.target)} ({node_place(node)}): {reason}"
        for node in program.module.graph.nodes
        if node.op == "call_function"
        and not is_symbolic(node)
        and (reason := refusal(node, config))
    ]
    if refused:
        return None, refused
    return vendor_of(target).compile(program, target).report, []


def write_graph_blobs(
    folder: Path,
    program: GraphProgram,
    targets: Sequence[Target],
    *,
    skip_refused: bool,
    tell: Callable[[float, str], None],
) -> tuple[AheadBlob, ...]:
    """Compiles a program for targets with compilers that accept graphs, like write_blobs.

    A page next to each blob explains how to run it on a board.
    """
    records = []
    for done, target in enumerate(targets):
        tell(done / len(targets), f"{program.name} for {target}")
        vendor = vendor_of(target)
        report, refused = compile_captured(program, target)
        reason = "; ".join(refused[:3]) if report is None else report.reason
        if reason and not skip_refused:
            raise ExportError(
                f"{program.name}: the compiler of {target} must accept the whole model; it refused "
                f"{reason}. Change the model there, leave out this target, or omit its blob with "
                "skip_refused=True (--skip-refused).",
                code="target-refused",
            )
        model = fingerprint(folder / "model.xml")
        record = AheadBlob(target.number, "model", "", model, refused=reason)
        if report is not None and report.blob is not None:
            place = folder / BLOB_FOLDER / target.number / f"model{vendor.blob_suffix}"
            place.parent.mkdir(parents=True)
            place.write_bytes(report.blob.read_bytes())
            file = str(place.relative_to(folder))
            place.with_name("README.md").write_text(vendor.describe_blob(program, target, file))
            record = dataclasses.replace(
                record, file=file, blob=fingerprint(place), compiler=report.compiler
            )
        records.append(record)
    return tuple(records)
