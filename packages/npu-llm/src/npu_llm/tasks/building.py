"""Makes the entry of a model of one step: traced, lowered, compared with torch, written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npu_compiler.errors import CompilerError, ExportError, OptionError
from npu_compiler.exported.capture import capture_module
from npu_compiler.exported.load import load
from npu_compiler.exported.manifest import read_manifest
from npu_compiler.exported.write import export
from npu_compiler.options import CompilerConfig
from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import ModelSource
from npu_llm.errors import CaptureError
from npu_llm.models.load_options import LoadOptions
from npu_llm.precision import Precision
from npu_llm.progress import Progress
from npu_llm.tasks.examples import Example, make_example
from npu_llm.tasks.padding import Padding
from npu_llm.tasks.quantizing import Quantizing
from npu_llm.tasks.results import describe_result

__all__ = ["PROGRAM", "fill_task_entry", "may_pad"]

PROGRAM = "program"
# What prepares a model's inputs, and says how its vectors are pooled.
_BESIDE = ("*token*", "vocab*", "merges.txt", "*.model", "*processor_config.json", "spm.*",
           "modules.json", "sentence_*.json", "config_sentence_transformers.json")  # fmt: skip
_MODEL_FILES = {".safetensors", ".bin", ".gguf"}


def fill_task_entry(
    folder: Path,
    source: ModelSource,
    options: LoadOptions,
    progress: Progress,
    *,
    auto: Any,
    precision: Precision,
    quantizing: Quantizing,
) -> None:
    """Writes an entry without its compiled form, which the first load adds.

    Args:
        folder: an empty folder.
        source: the checkpoint.
        options: verify and trust_remote_code count.
        progress: hears of the stages.
        auto: transformers' class for models of the task.
        precision: of weights and arithmetic.
        quantizing: how numbers become integers, for a precision that has some.

    Raises:
        OptionError: as npu_llm.tasks.quantizing.
        ModelError: as npu_llm.checkpoint.loading.load_model.
        CaptureError: [capture-failed] if it is not one graph, [model-inputs] for another kind,
            [fixed-size] if other sizes than those of the capture give wrong results.
        WrongResultError: [wrong-result] if the program's results differ from torch's.
    """
    quantizing.check(precision)
    with progress.stage("weights"):
        model, weights = load_model(
            source, auto=auto, trust_remote_code=options.trust_remote_code,
            on_progress=progress.advance,
        )  # fmt: skip
        weights.fill()
    example = make_example(model, sizes=_image_sizes(source.folder))
    with progress.stage("capture"), torch.no_grad():
        _write_program(model, example, folder / PROGRAM, options, precision, quantizing)
        described = describe_result(model(**example.inputs))
        if options.verified != "off":
            _check_smaller(
                model, example, folder / PROGRAM, is_exact=precision.weights == "float32"
            )
        pads = may_pad(model, example, folder / PROGRAM)
    with progress.stage("save"):
        model.config.save_pretrained(folder)
        _copy_beside(source.folder, folder)
        about = {
            "name": source.name,
            "precision": precision.name,
            "task": auto.__name__,
            "architecture": type(model).__name__,
            "inputs": list(example.inputs),
            "result": described,
            "context_length": _context_length(model),
            "may_pad": pads,
        }
        (folder / "about.json").write_text(json.dumps(about))


def may_pad(model: Any, example: Example, program: Path) -> bool:
    """Returns whether a model computes the same for padded inputs: some mix what a mask hides.

    Args:
        model: of transformers.
        example: what it was traced with.
        program: the folder of its program.
    """
    manifest = read_manifest(program)
    padding = Padding(manifest, model.config, limit=_context_length(model))
    given = example.inputs
    names = [port.name for port in manifest.inputs]
    values = [given[name] for name in names]
    padded = dict(zip(names, padding.pad(values), strict=True))
    found = padding.cut(dict(model(**padded)), values)
    return _are_equal(pytree.tree_leaves(found), pytree.tree_leaves(dict(model(**given))))


def _write_program(
    model: Any,
    example: Example,
    target: Path,
    options: LoadOptions,
    precision: Precision,
    quantizing: Quantizing,
) -> None:
    how = quantizing.options(model, example, precision)
    try:
        export(
            model,
            (),
            target,
            kwargs=example.inputs,
            dynamic=example.dynamic,
            # Tokens are checked by the model's own ranges before each run.
            check_indices=False,
            verify="off" if options.verified == "off" else "first",
            **how,
        )
    except OptionError:
        raise  # says what is missing for quantizing by data
    except CompilerError as failure:
        if isinstance(failure, ExportError) and failure.code == "wrong-result":
            raise
        raise CaptureError(
            f"{type(model).__name__}: must be one graph whose sizes vary; got: "
            f"{str(failure).rstrip('.')}. Such models are not supported yet.",
            code="capture-failed",
        ) from failure


def _check_smaller(model: Any, example: Example, program: Path, *, is_exact: bool) -> None:
    """Compares with torch at other sizes: code may branch on one, such as on whether it is even.

    A program of few bits gives other numbers anyway: in its place the graph computes in torch.
    """
    given = example.smaller()
    expected = pytree.tree_leaves(dict(model(**given)))
    found: Sequence[Any]
    if is_exact:
        found = pytree.tree_leaves(dict(load(program)(**given)))
    else:
        found = _as_captured(model, example, given)
    if not _are_equal(found, expected):
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in given.items())
        raise CaptureError(
            f"{type(model).__name__}: must compute the same for all sizes; got other results "
            f"than torch's for {shapes}, since the model's code takes another way there. Such "
            "models are not supported yet.",
            code="fixed-size",
        )


def _are_equal(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    # What the order of summation and the precision of the arithmetic may change, and no more.
    return all(
        one.shape == right.shape
        and torch.allclose(one, right, rtol=0.0, atol=2e-4 * float(right.abs().max()))
        for one, right in zip(found, expected, strict=True)
        if isinstance(right, torch.Tensor)
    )


def _as_captured(
    model: Any, example: Example, given: Mapping[str, torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Returns what the model's graph, as it is captured for a program, gives for other inputs."""
    captured = capture_module(model, (), example.inputs, example.dynamic, CompilerConfig())
    graph = captured.program.graph_module if captured.original is None else captured.original
    values = captured.tensors_of((), given)
    named = {**captured.constants, **dict(zip(captured.inputs, values, strict=True))}
    names = [str(node.target) for node in graph.graph.find_nodes(op="placeholder")]
    found: Sequence[torch.Tensor] = graph(*(named[name] for name in names))
    return found


def _context_length(model: Any) -> int | None:
    config = model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int) or most <= 0:
        return None
    # RoBERTa and its kin count positions from the padding token's id on.
    table = next(
        (
            module
            for name, module in model.named_modules()
            if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding)
        ),
        None,
    )
    start = 0 if table is None or table.padding_idx is None else table.padding_idx + 1
    return most - start


def _image_sizes(folder: Path) -> dict[str, Any]:
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return {}
    config = json.loads(path.read_text())
    size = config.get("crop_size") if config.get("do_center_crop") else config.get("size")
    return size if isinstance(size, dict) else {}


def _copy_beside(source: Path, target: Path) -> None:
    for pattern in _BESIDE:
        for file in source.glob(pattern):
            if file.is_file() and file.suffix not in _MODEL_FILES:
                shutil.copyfile(file, target / file.name)
    for file in source.glob("*_Pooling/config.json"):
        (target / file.parent.name).mkdir(exist_ok=True)
        shutil.copyfile(file, target / file.parent.name / file.name)
