"""The checks of a module and of a saved program in half precision, and the search for a mend."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from npu_compiler.errors import ExportError, OptionError
from npu_compiler.exported.capture import capture_program
from npu_compiler.exported.composites import without_composites
from npu_compiler.exported.saved_program import read_saved_program
from npu_compiler.graph.kept_float32 import keep_name
from npu_compiler.half_precision.report import HalfPrecision
from npu_compiler.half_precision.run import is_finding
from npu_compiler.half_precision.search import TOLERANCE, search_kept
from npu_runtime.public_calls import public_call

__all__ = ["check_half", "check_half_file"]


@public_call
def check_half(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    kwargs: Mapping[str, Any] | None = None,
    keep_float32: Sequence[str] = (),
    mend: bool = False,
    tolerance: float = TOLERANCE,
) -> HalfPrecision:
    """Says what half precision, in which an NPU computes, does to a model; no NPU is needed.

    Every call of the captured graph runs with float16 inputs and a float16 result, and sums in
    float32. What is found holds for these inputs.

    Args:
        model: a torch module in float32.
        example_inputs: positional arguments of a call, with values as the model will meet them.
        kwargs: arguments by name.
        keep_float32: modules to compute in float32; as of CompilerConfig.
        mend: look for modules to compute in float32 until the outputs keep to the tolerance, and
            leave out those without which they do so as well.
        tolerance: largest error of an output by its largest value.

    Returns:
        Every call, and which of them do harm. With `mend`, what must be kept, and the calls and the
        error of the run that keeps it; findings are always of the run before.

    Raises:
        ExportError: [export-capture] for a model that is no single graph; [half-dtype] for floats
            that are not float32.
        OptionError: [option-value] for a name in keep_float32 that no call has.
    """
    program = capture_program(model, example_inputs, kwargs or {})
    values = _values(program, example_inputs, kwargs or {})
    return _check(type(model).__name__, program, values, keep_float32, mend, tolerance)


def check_half_file(path: str | os.PathLike[str]) -> HalfPrecision:
    """Says the same of a program that torch.export.save wrote, with its own example inputs.

    What must be kept in float32 is looked for.

    Raises:
        ExportError: [saved-program] for another file; and as check_half.
    """
    saved = read_saved_program(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of its own trees of inputs
        program = without_composites(saved)
        values = _values(program, *saved.example_inputs)
    return _check(Path(path).name, program, values, (), True, TOLERANCE)


def _check(
    name: str,
    program: ExportedProgram,
    values: Mapping[str, Any],
    keep_float32: Sequence[str],
    mend: bool,
    tolerance: float,
) -> HalfPrecision:
    _check_dtypes(name, values)
    kept = tuple(keep_float32)
    _check_names(kept, program.graph_module.graph)
    found = search_kept(program.graph_module, values, kept=kept, tolerance=tolerance, mend=mend)
    findings = tuple(filter(is_finding, found.first.calls))
    return HalfPrecision(
        model=name,
        calls=found.last.calls,
        findings=findings,
        error=found.last.error,
        error_before=found.first.error,
        tolerance=tolerance,
        keep_float32=found.kept,
    )


def _values(
    program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The value of each input of the graph, weights and constants among them."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    given = program._graph_module_flat_inputs(args, dict(kwargs))
    return {node.name: value for node, value in zip(nodes, given, strict=True)}


def _check_dtypes(model: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        if is_float and value.dtype is not torch.float32:
            raise ExportError(
                f"{model}: half precision is compared with float32, so weights and inputs must be "
                f"float32; got {value.dtype} for {name}. Use model.float() and float inputs.",
                code="half-dtype",
            )


def _check_names(patterns: Sequence[str], graph: fx.Graph) -> None:
    names = sorted({keep_name(node) for node in graph.nodes if node.op == "call_function"})
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            close = difflib.get_close_matches(pattern, names, n=3) or names[:3]
            raise OptionError(
                f"keep_float32: each name is that of a module with calls of its own; got "
                f"{pattern!r}. Names of this model are like {', '.join(close)}.",
                code="option-value",
            )
