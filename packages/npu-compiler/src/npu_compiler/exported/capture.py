"""Capture of a module as one graph for export, and programs that torch.export saved."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._export.utils import (
    _collect_all_valid_cia_ops_for_aten_namespace,
    _is_preservable_cia_op,
    _special_op_to_preserve_cia,
)
from torch.export import Dim, ExportedProgram, default_decompositions
from torch.export.exported_program import _decompose_exported_program
from torch.utils import _pytree as pytree

from npu_compiler.errors import ExportError, OptionError
from npu_compiler.graph.op_forms import decompositions
from npu_compiler.graph.origins import mark_kept_float32
from npu_compiler.lowering import find_converter
from npu_compiler.lowering.registry import functional_forms
from npu_compiler.options import AUTO, CompilerConfig
from npu_compiler.passes.infra.pass_base import Facts
from npu_compiler.passes.pipeline import run_passes
from npu_compiler.verification.graph_check import keep_original

__all__ = [
    "Captured",
    "capture_module",
    "capture_program",
    "read_saved_program",
    "without_composites",
]


def read_saved_program(path: str | os.PathLike[str]) -> ExportedProgram:
    """Returns the program of a file.

    Raises:
        ExportError: [saved-program] for another file, or a program without example inputs.
    """
    try:
        if not zipfile.is_zipfile(path):  # torch also logs a traceback
            raise ValueError(_kind(Path(path)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning of torch's reader
            program = torch.export.load(path)
        if program.example_inputs is None:
            raise ValueError("it has no example inputs")
    except Exception as failure:  # torch raises many classes for foreign files
        reason = (str(failure).strip().splitlines() or [type(failure).__name__])[0]
        raise ExportError(
            f"`{os.fspath(path)}` must be a file of torch.export.save with example inputs, got one "
            f"that cannot be read ({reason}). Save the exported program.",
            code="saved-program",
        ) from failure
    return program


def _kind(path: Path) -> str:
    """Describes a path without a saved program."""
    if path.is_dir():
        return "a folder, as npu_compiler.export makes it, holds none"
    return "another kind of file" if path.exists() else "there is no such file"


# `ExportedProgram.run_decompositions` overrides each of torch's 469 composite ops under 13 dispatch
# keys, and restores them, for every graph: 70 ms for a graph of three calls. Ops that decompose by
# torch's rule need no override, so this overrides only the ops that stay whole.

_Decomposition = Callable[..., Any]


def without_composites(program: ExportedProgram) -> ExportedProgram:
    """Returns a program in which torch has decomposed composite ops without a converter."""
    own = decompositions()
    kept = dict.fromkeys(_whole(program), _special_op_to_preserve_cia)
    kept |= {op: made for op, made in own.items() if op in _composites()}
    table = {op: made for op, made in _by_torch().items() if find_converter(op) is None} | own
    return _decompose_exported_program(  # type: ignore[no-any-return]
        program,
        cia_to_decomp=kept,
        python_decomp_table={op: made for op, made in table.items() if op not in kept},
        joint_loss_index=None,
        decompose_custom_triton_ops=False,
    )


def _whole(program: ExportedProgram) -> Iterator[Any]:
    """Yields composite ops with a converter: torch's, which others may call, and the graph's."""
    called = {node.target for node in program.graph.nodes if node.op == "call_function"}
    for op in _composites() | {op for op in called if isinstance(op, torch._ops.OpOverload)}:
        if find_converter(op) is not None and _is_preservable_cia_op(op):
            yield op


def _composites() -> set[Any]:
    return _collect_all_valid_cia_ops_for_aten_namespace()


@functools.cache
def _by_torch() -> dict[Any, _Decomposition]:
    """Returns torch's Python decompositions; composite ops need none."""
    every = default_decompositions().items()  # type: ignore[no-untyped-call]
    return {op: made for op, made in every if op not in _composites()}


# Python code cannot remain here, so torch.export captures and reports unsupported code.

# Passes that move work to the host between programs; an exported model is a single program.
_NOT_HERE = ("write_in_place", "separate_output_views")


@dataclass(frozen=True)
class Captured:
    """A captured module."""

    program: ExportedProgram  # torch's form: graph, signature and structure of the result
    # Placeholder name -> parameter, buffer or constant of the module.
    constants: Mapping[str, torch.Tensor]
    inputs: tuple[str, ...]  # placeholder names of a call's tensors, in order
    signature: inspect.Signature  # of the module's forward
    # Names of forward's parameters in the order in which their values became inputs.
    order: tuple[str, ...]
    # The graph before any pass, for verification; None if it cannot be computed twice.
    original: fx.GraphModule | None

    def tensors_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns a call's inputs; [export-input] if its structure differs from the example's."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as failure:
            raise self._other_call(str(failure)) from failure
        values = {**bound.arguments, **bound.kwargs}
        if missing := [name for name in self.order if name not in values]:
            raise self._other_call(f"none for {missing[0]!r}")
        leaves = pytree.tree_leaves([values[name] for name in self.order])
        names = self.program.graph_signature.user_inputs
        if len(leaves) != len(names):
            raise self._other_call(f"{len(leaves)} values, not {len(names)}")
        given = dict(zip(map(str, names), leaves, strict=True))
        return [given[name] for name in self.inputs]

    def _other_call(self, received: str) -> ExportError:
        return ExportError(
            f"`calibration` calls must have the example's arguments, {', '.join(self.order)}, "
            f"got {received}. Give them in order in a tuple, or by name in a dict.",
            code="export-input",
        )


def capture_module(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic: Mapping[str, Iterable[int]],
    config: CompilerConfig,
) -> Captured:
    """Captures a module for inference.

    Args:
        model: any module; its training flags are restored afterwards.
        args: example arguments.
        kwargs: by name.
        dynamic: name of a parameter of forward -> dims with sizes that may vary.
        config: has the passes to leave out.

    Raises:
        ExportError: [export-dynamic] for an unknown name or dim, or a size that the model requires
            to be fixed; [export-capture] for models that cannot be captured; [export-writes] for a
            model that changes a buffer or an input.
        OptionError: [option-place] for keep_float32="auto".
    """
    if config.keep_float32 == AUTO:
        raise OptionError(
            f"{type(model).__name__}: `keep_float32` must be names of modules for a model that "
            "becomes one program, got 'auto'. Take the names from npu_compiler.check_half(..., "
            "mend=True), or use torch.compile.",
            code="option-place",
        )
    program = capture_program(model, args, kwargs, _dynamic_shapes(model, args, kwargs, dynamic))
    signature = program.graph_signature
    written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if written:
        raise ExportError(
            f"{type(model).__name__}: an exported model must not change buffers or inputs, got "
            f"writes to {', '.join(map(str, written))}. Return the new values instead.",
            code="export-writes",
        )
    inputs = tuple(name for name in signature.user_inputs if isinstance(name, str))
    constants = _constants(program)
    _drop_shape_checks(program.graph_module.graph)
    mark_kept_float32(program.graph_module.graph, tuple(config.keep_float32))
    original = keep_original(program.graph_module)
    facts = Facts(
        kind="inference",
        constants=frozenset(constants),
        for_device=True,
        functional_forms=functional_forms(),
    )
    run_passes(
        program.graph_module.graph,
        facts,
        enabled=config.enabled_passes,
        disabled=(*config.disabled_passes, *_NOT_HERE),
    )
    called = inspect.signature(model.forward)
    order = (*called.bind_partial(*args).arguments, *kwargs)
    return Captured(program, constants, inputs, called, order, original)


def capture_program(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    shapes: dict[str, Any] | None = None,
) -> ExportedProgram:
    """Captures a module in torch's form, before any pass.

    Args:
        model: any module; its training flags are restored afterwards.
        args: example arguments.
        kwargs: by name.
        shapes: which sizes vary, in torch.export's form.

    Raises:
        ExportError: [export-capture], [export-dynamic] as capture_module.
    """
    flags = {module: module.training for module in model.modules()}
    try:
        with contextlib.suppress(
            NotImplementedError
        ):  # a program of torch.export has a single mode
            model.eval()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(
                model, args, dict(kwargs), dynamic_shapes=shapes, strict=False
            )
            return without_composites(program)
    except Exception as failure:  # torch.export raises a dozen classes for unsupported code
        raise _refusal(model, failure, bool(shapes)) from failure
    finally:
        for module, training in flags.items():
            module.training = training


def _drop_shape_checks(graph: fx.Graph) -> None:
    """Removes torch.export's assertions on shapes and dtypes, which each call checks anyway."""
    aten = torch.ops.aten
    checks = {
        aten._assert_tensor_metadata.default,
        aten._assert_scalar.default,
        aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
    }
    for node in reversed(graph.nodes):
        if node.target in checks and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _constants(program: ExportedProgram) -> dict[str, torch.Tensor]:
    signature = program.graph_signature
    named = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    held = {**program.constants, **program.state_dict}
    return {placeholder: held[target].detach() for placeholder, target in named.items()}


def _dynamic_shapes(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic: Mapping[str, Iterable[int]],
) -> dict[str, Any] | None:
    if not dynamic:
        return None
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    unknown = [name for name in dynamic if not isinstance(bound.get(name), torch.Tensor)]
    if unknown:
        tensors = [name for name, value in bound.items() if isinstance(value, torch.Tensor)]
        raise ExportError(
            f"{type(model).__name__}: `dynamic` must name tensors among the arguments "
            f"({', '.join(tensors) or 'none'}), got {unknown[0]!r}. Name one of these.",
            code="export-dynamic",
        )
    shapes: dict[str, Any] = {}
    for name, value in bound.items():
        if name not in dynamic:
            shapes[name] = pytree.tree_map(lambda _: None, value)
            continue
        dims = tuple(dynamic[name])
        wrong = [dim for dim in dims if not -value.dim() <= dim < value.dim()]
        if wrong:
            raise ExportError(
                f"{type(model).__name__}: `dynamic` dims of {name!r} must be below {value.dim()}, "
                "got "
                f"{wrong[0]}. Give dims of its shape {tuple(value.shape)}.",
                code="export-dynamic",
            )
        shapes[name] = {dim % value.dim(): Dim.DYNAMIC for dim in dims}
    return shapes


def _refusal(model: nn.Module, failure: Exception, is_dynamic: bool) -> ExportError:
    lines: Sequence[str] = str(failure).strip().splitlines() or [type(failure).__name__]
    text = " ".join(line.strip() for line in lines[:3])
    if is_dynamic and ("specializ" in str(failure) or "Constraints violated" in str(failure)):
        return ExportError(
            f"{type(model).__name__}: a dynamic size must not be fixed by the model; {text} Omit "
            "that dim from `dynamic`, or give examples with sizes above 1.",
            code="export-dynamic",
        )
    return ExportError(
        f"{type(model).__name__} must be one graph without Python code that depends on values; "
        f"{text} Use npu_compiler.compile, which splits such models.",
        code="export-capture",
    )
