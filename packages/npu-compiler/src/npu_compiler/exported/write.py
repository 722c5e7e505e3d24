"""npu_compiler.export: writes a model as a folder with IR, weights and a manifest."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from npu_command.interrupt import removed_at_interrupt
from npu_compiler.errors import ExportError, LoweringError, OptionError
from npu_compiler.exported.ahead import (
    BlobProgress,
    check_program,
    find_targets,
    rewrite_program,
    write_blobs,
)
from npu_compiler.exported.calibration import check_calibration, compressed
from npu_compiler.exported.capture import Captured, capture_module
from npu_compiler.exported.manifest import PROGRAM, Manifest, PortSpec
from npu_compiler.exported.trial import verified
from npu_compiler.exported.vendor_graphs import graph_program, write_graph_blobs
from npu_compiler.graph.kept_origins import keep_origins
from npu_compiler.graph.nodes import is_symbolic, op_name
from npu_compiler.graph.origins import node_origins, node_place
from npu_compiler.graph_compiler.building import own_precision
from npu_compiler.graph_compiler.targets import is_for_npu
from npu_compiler.known_defects.table import avoid_defects
from npu_compiler.lowering import LoweredModel, lower
from npu_compiler.lowering.capability import refusal
from npu_compiler.options import CompilerConfig, resolve_config
from npu_compiler.programs.blobs import fingerprint
from npu_compiler.programs.device_options import PRECISIONS
from npu_compiler.programs.load import write_model
from npu_compiler.target_compiler.compile import TargetJob
from npu_compiler.target_compiler.sources import find_source
from npu_compiler.target_compiler.targets import Target, vendor_of
from npu_runtime import device_info
from npu_runtime.public_calls import public_call

__all__ = ["export"]

_NO_BOUND = 1 << 62


@public_call
def export(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Mapping[str, Iterable[int]] | None = None,
    config: CompilerConfig | None = None,
    calibration: Iterable[Any] | None = None,
    overwrite: bool = False,
    targets: Sequence[str] = (),
    skip_refused: bool = False,
    on_progress: BlobProgress | None = None,
    **options: Any,
) -> Path:
    """Writes a model to a folder that npu_compiler.load runs without torch and without its class.

    The whole model becomes one program for inference. Arguments that are not tensors become
    constants with the example's values. The folder contains no pickles.

    Args:
        model: any module, on cpu or npu.
        example_inputs: positional arguments of a call.
        path: the folder to make.
        kwargs: arguments by name.
        dynamic: name of a tensor argument -> dims with variable sizes, as {"input_ids": (0, 1)}.
        config: dtype, activations, precision, group_size, symmetric, rounding and target "NPU"
            apply here. With target "NPU" operations that an NPU refuses are replaced by equal
            forms, and a model that still breaks a rule of npu_compiler.check is an error. On the
            device NPU the equal forms are the default.
        calibration: example calls, each a tensor, a tuple of arguments or a dict of arguments by
            name. With dtype "int4" they guide the rounding of weights, see the option rounding;
            with dtype "int8" and activations "int8" they set the activations' ranges. That, and
            rounding "awq", need NNCF: pip install 'nncf>=3.4,<3.5'.
        overwrite: replace an existing file or folder at the path.
        targets: NPUs by name or number, as ("lunar-lake", "5010"), for which the program is
            compiled ahead of time. Such a folder has an NPU's equal forms, and sizes must be
            static. The vendor's compiler must be installed: npu-compiler target install. The blobs
            of other wheels' targets have a page with the lines that a board runs.
        skip_refused: omit the blob of a target if its compiler refuses the program.
        on_progress: called with the finished share of the blobs, and the current step.
        options: the options by name, instead of config.

    Returns:
        The folder.

    Raises:
        ExportError: [export-capture], [export-writes] or [export-dynamic] for a model that cannot
            be one program with dynamic sizes, [export-output] for a result that JSON cannot
            describe, [export-exists] if the path exists, [export-npu] for operations that an NPU
            refuses with target "NPU", [target-refused] when a target's compiler refuses the
            program, [wrong-result] for a model with results other than torch's.
        LoweringError: [no-converter] or [cannot-lower] naming the call and its source line.
        TargetError: [target-absent], [target-wine], [target-compiler] when there is no compiler for
            targets that runs here.
        OptionError: as CompilerConfig; [unknown-target]; [option-conflict] when dynamic and
            targets, or calibration and the options, do not go together; [quantize-data] or
            [quantize-library] when calibration cannot be used.
    """
    folder = Path(path)
    if folder.exists() and not overwrite:
        raise ExportError(
            f"npu_compiler.export: the path must not exist, got {str(folder)!r}. Choose another, "
            "or pass overwrite=True.",
            code="export-exists",
        )
    chosen = resolve_config("npu_compiler.export", config, options, is_calibrated=True)
    asked = find_targets(targets)
    by_graph = [target for target in asked if vendor_of(target).takes_graphs]
    compiled_for = [target for target in asked if target not in by_graph]
    _check_targets(asked, dynamic)
    if compiled_for:
        find_source().version()  # raises now instead of after the capture
    if calibration is not None and by_graph:
        calibration = list(calibration)
    for_npu = bool(compiled_for) or is_for_npu(chosen, device_info().device)
    # The folder holds one program of the device's compiler, even if the host's kernels are faster.
    chosen = chosen if chosen.target == "NPU" else replace(chosen, target="openvino")
    check_calibration(chosen, is_given=calibration is not None)
    captured = capture_module(model, tuple(example_inputs), kwargs or {}, dynamic or {}, chosen)
    module = captured.program.graph_module
    for node in module.graph.nodes:
        _check_call(node, chosen)
    lowered = lower(
        module,
        constants=captured.constants,
        name=type(model).__name__,
        nan=chosen.nan,
        check_indices=chosen.check_indices,
        fixed_sizes=for_npu,
        disabled_passes=chosen.disabled_passes,
    )
    keep_origins(lowered.model, node_origins(module.graph))
    precision = chosen.computed_in or own_precision(module.graph)
    described = _describe(model, captured, lowered, precision, chosen.compression)
    program = compressed(
        lowered.model, chosen, calibration=calibration, captured=captured, manifest=described
    )
    if for_npu:
        rewrite_program(program)
    needed = avoid_defects(program, device="CPU", hint=PRECISIONS[precision])
    described = dataclasses.replace(described, device_options=needed)
    if chosen.target == "NPU":
        check_program(program, name=described.name)

    def judge(place: Path, manifest: Manifest) -> Manifest:
        example = captured.tensors_of(tuple(example_inputs), kwargs or {})
        return verified(
            place,
            manifest,
            model=program,
            captured=captured,
            example=example,
            outputs=lowered.outputs,
            config=chosen,
        )

    def compile_ahead(place: Path, manifest: Manifest) -> Manifest:
        jobs = [TargetJob(PROGRAM, place / "model.xml", target) for target in compiled_for]
        blobs = write_blobs(
            place, jobs, name=manifest.name, skip_refused=skip_refused, on_progress=on_progress
        )
        return dataclasses.replace(manifest, blobs=(*manifest.blobs, *blobs))

    def compile_graph(place: Path, manifest: Manifest) -> Manifest:
        calls = calibration if chosen.activations is not None else None
        blobs = write_graph_blobs(
            place,
            graph_program(manifest.name, captured, calls),
            by_graph,
            skip_refused=skip_refused,
            tell=on_progress or (lambda share, doing: None),
        )
        return dataclasses.replace(manifest, blobs=(*manifest.blobs, *blobs))

    steps = [judge, *[compile_graph] * bool(by_graph), *[compile_ahead] * bool(compiled_for)]
    return _write(folder, program, described, steps)


def _check_targets(targets: Sequence[Target], dynamic: Mapping[str, Iterable[int]] | None) -> None:
    if not targets:
        return
    if dynamic:
        raise OptionError(
            "npu_compiler.export: `dynamic` must be left out with `targets`, whose programs have "
            f"one shape each, got {sorted(dynamic)}. Leave one of them out.",
            code="option-conflict",
        )


def _check_call(node: fx.Node, config: CompilerConfig) -> None:
    if node.op != "call_function" or is_symbolic(node):
        return
    reason = refusal(node, config)
    if reason is None:
        return
    code = "no-converter" if reason.startswith("no converter") else "cannot-lower"
    raise LoweringError(
        f"Cannot lower {op_name(node.target)} ({node_place(node)}): {reason}, and an exported "
        "model is one program. Register a converter, or use npu_compiler.compile, which runs the "
        "call eagerly.",
        code,
        node.name,
        reason,
    )


def _describe(
    model: nn.Module,
    captured: Captured,
    lowered: LoweredModel,
    precision: str,
    compression: str | None,
) -> Manifest:
    sizes = _Sizes(captured)
    nodes = {node.name: node for node in captured.program.graph.nodes}
    ports = {name: index for index, name in enumerate(lowered.input_names)}
    inputs = tuple(
        PortSpec(name, _dtype(meta), sizes.shape(name, meta), ports.get(name))
        for name in captured.inputs
        for meta in [nodes[name].meta["val"]]
    )
    outputs = tuple(
        PortSpec(f"output_{index}", _dtype(meta), sizes.shape("", meta), index)
        for index, name in enumerate(lowered.output_names)
        for meta in [nodes[name].meta["val"]]
    )
    return Manifest(
        name=type(model).__name__,
        precision=precision,
        compression=compression,
        inputs=inputs,
        outputs=outputs,
        structure=_structure(model, captured, lowered),
        sizes=sizes.bounds(),
        versions={name: version(name) for name in ("torch", "openvino", "npu-compiler")},
        files={},
        index_checks=tuple(dataclasses.asdict(check) for check in lowered.index_checks),
    )


class _Sizes:
    """Names of dynamic sizes: the first input and dim with each size."""

    def __init__(self, captured: Captured) -> None:
        self._ranges = captured.program.range_constraints
        self._names: dict[Any, str] = {}

    def shape(self, name: str, meta: torch.Tensor) -> tuple[int | str | None, ...]:
        """Returns a shape for the manifest; a named input may name its sizes."""
        shape: list[int | str | None] = []
        for dim, size in enumerate(meta.shape):
            if isinstance(size, int):
                shape.append(size)
                continue
            symbol = size.node.expr
            if name and symbol.is_symbol:
                self._names.setdefault(symbol, f"{name}.{dim}")
            shape.append(self._names.get(symbol))
        return tuple(shape)

    def bounds(self) -> dict[str, tuple[int, int | None]]:
        """Returns least and greatest value of each size."""
        found = {}
        for symbol, name in self._names.items():
            bounds = self._ranges.get(symbol)
            # torch reports 2 if it did not examine sizes 0 and 1. Programs broadcast by the actual
            # sizes, and take no empty tensors.
            lower = int(bounds.lower) if bounds is not None else 1
            upper = bounds.upper if bounds is not None else None
            most = int(upper) if upper is not None and upper.is_Integer else _NO_BOUND
            found[name] = (1 if lower <= 2 else lower, most if most < _NO_BOUND else None)
        return found


def _dtype(meta: torch.Tensor) -> str:
    return str(meta.dtype).removeprefix("torch.")


def _structure(model: nn.Module, captured: Captured, lowered: LoweredModel) -> dict[str, Any]:
    spec = captured.program.call_spec.out_spec
    assert spec is not None
    output = next(node for node in captured.program.graph.nodes if node.op == "output")
    leaves = [
        _Leaf({"tensor": index} if index is not None else {"value": value})
        for value, index in zip(pytree.tree_leaves(output.args[0]), lowered.outputs, strict=True)
    ]
    return _as_json(type(model).__name__, pytree.tree_unflatten(leaves, spec))


class _Leaf:
    """A place in the result: an output, or a plain value."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content


def _as_json(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, _Leaf):
        plain = value.content.get("value")
        if plain is None or isinstance(plain, (bool, int, float, str)):
            return value.content
    elif isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {"dict": {key: _as_json(name, part) for key, part in value.items()}}
    elif hasattr(value, "_asdict"):
        return {"dict": {key: _as_json(name, part) for key, part in value._asdict().items()}}
    elif isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_as_json(name, part) for part in value]}
    raise ExportError(
        f"{name}: results must consist of tensors, numbers, lists, tuples and dicts with names, "
        "got "
        f"{type(value).__name__}. Return one of these.",
        code="export-output",
    )


def _write(
    folder: Path,
    model: ov.Model,
    manifest: Manifest,
    steps: Sequence[Callable[[Path, Manifest], Manifest]],
) -> Path:
    """Writes to a sibling folder and renames it, so that readers never see a partial one.

    The steps complete the files and their manifest.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with removed_at_interrupt(place):
            place.chmod(0o755)
            write_model(model, place / "model.xml")
            files = {file.name: fingerprint(file) for file in sorted(place.iterdir())}
            manifest = dataclasses.replace(manifest, files=files)
            for step in steps:
                manifest = step(place, manifest)
            manifest.write(place)
            if folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder)
            else:
                folder.unlink(missing_ok=True)
            place.rename(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return folder
