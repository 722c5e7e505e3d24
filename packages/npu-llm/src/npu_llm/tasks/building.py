"""Builds the entry of a one-step model: traces, lowers, compares with torch, and writes it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npu_compiler.errors import CompilerError, ExportError
from npu_compiler.errors import OptionError as MissingLibraryError
from npu_compiler.exported.capture import capture_module
from npu_compiler.exported.load import load
from npu_compiler.exported.manifest import PortSpec, read_manifest
from npu_compiler.exported.write import export
from npu_compiler.options import CompilerConfig
from npu_llm.checkpoint.loading import load_model, load_tokenizer
from npu_llm.checkpoint.processors import copy_processors
from npu_llm.checkpoint.saved import save_config
from npu_llm.checkpoint.source import ModelSource
from npu_llm.choices import check_group_size
from npu_llm.errors import CaptureError, OptionError
from npu_llm.gguf.file import open_gguf
from npu_llm.gguf.task import pooling_of
from npu_llm.models.load_options import LoadOptions
from npu_llm.precision import Precision
from npu_llm.progress import Progress
from npu_llm.tasks.inputs import TOKEN_INPUTS, Padding, bind_inputs
from npu_llm.tasks.results import describe_result

__all__ = [
    "PROGRAM",
    "Example",
    "Quantizing",
    "fill_task_entry",
    "make_example",
    "may_pad",
]

# All sizes differ, so that a trace does not unify two of them.
_BATCH, _TOKENS, _SAMPLES, _IMAGES, _SIDES = 3, 11, 8017, 2, (224, 288)
_LEAST_SEEN = 5  # for the second row of a mask; the first is all ones


@dataclass(frozen=True)
class Example:
    """Example inputs for tracing a model.

    Attributes:
        inputs: name of an argument of forward -> tensor.
        dynamic: name -> the dynamic dimensions.
    """

    inputs: dict[str, torch.Tensor]
    dynamic: dict[str, tuple[int, ...]]

    def smaller(self) -> dict[str, torch.Tensor]:
        """Returns the leading parts of the inputs, a third smaller in each dynamic dimension."""
        found = {}
        for name, tensor in self.inputs.items():
            for dim in self.dynamic.get(name, ()):
                size = tensor.shape[dim]
                tensor = tensor.narrow(dim, 0, size - max(size // 3, 1))
            found[name] = tensor.contiguous()
        return found


def make_example(model: Any, *, sizes: dict[str, Any] | None = None) -> Example:
    """Creates inputs of a model from its config and the signature of its forward.

    Args:
        model: the transformers model.
        sizes: image height and width from the image processors.

    Raises:
        CaptureError: [model-inputs] for a model of neither text, images nor audio.
    """
    taken = inspect.signature(model.forward).parameters
    inputs: dict[str, torch.Tensor] = {}
    dynamic: dict[str, tuple[int, ...]] = {}
    draws = torch.Generator().manual_seed(0)
    if "input_ids" in taken:
        _add_tokens(model, taken, draws, inputs, dynamic)
    if "pixel_values" in taken:
        _add_images(model, taken, draws, sizes or {}, inputs, dynamic)
    if "input_values" in taken or "input_features" in taken:
        _add_sound(model, taken, draws, inputs, dynamic)
    if not inputs:
        raise CaptureError(
            f"`{type(model).__name__}` must read input_ids, pixel_values, input_values or "
            f"input_features, as a model of one step, got one that reads {', '.join(taken)}. Such "
            "models are not supported.",
            code="model-inputs",
        )
    return Example(inputs, dynamic)


def _add_tokens(model: Any, taken: Any, draws: torch.Generator, inputs: Any, dynamic: Any) -> None:
    config = model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None) or _TOKENS
    shape = (_BATCH, min(_TOKENS, max(most - 3, 2)))
    inputs["input_ids"] = torch.randint(min(3, config.vocab_size - 1), config.vocab_size, shape,
                                        generator=draws)  # fmt: skip
    mask = torch.ones(shape, dtype=torch.int64)
    mask[1, _LEAST_SEEN:] = 0
    if "attention_mask" in taken:
        inputs["attention_mask"] = mask
    kinds: int = getattr(config, "type_vocab_size", 0)
    if "token_type_ids" in taken and kinds:
        inputs["token_type_ids"] = torch.zeros(shape, dtype=torch.int64)
        if kinds > 1:
            inputs["token_type_ids"][:, 4:] = 1
    dynamic.update(dict.fromkeys(set(TOKEN_INPUTS) & set(inputs), (0, 1)))


def _add_images(
    model: Any, taken: Any, draws: torch.Generator, sizes: Any, inputs: Any, dynamic: Any
) -> None:
    config = getattr(model.config, "vision_config", None) or model.config
    fixed = getattr(config, "image_size", None)
    if isinstance(fixed, int):
        fixed = (fixed, fixed)
    elif "height" in sizes:
        fixed = fixed or (sizes["height"], sizes["width"])
    height, width = fixed or _SIDES
    channels = getattr(config, "num_channels", 3)
    shape = (_IMAGES, channels, height, width)
    inputs["pixel_values"] = torch.randn(shape, generator=draws)
    varying = (0,) if fixed else (0, 2, 3)
    dynamic["pixel_values"] = varying
    if "pixel_mask" in taken:
        mask = torch.ones((_IMAGES, height, width), dtype=torch.int64)
        mask[1, height * 3 // 4 :] = 0
        inputs["pixel_mask"] = mask
        dynamic["pixel_mask"] = (0,) if fixed else (0, 1, 2)


def _add_sound(model: Any, taken: Any, draws: torch.Generator, inputs: Any, dynamic: Any) -> None:
    config = model.config
    if "input_features" in taken:
        shape: tuple[int, ...] = (_BATCH, config.num_mel_bins, 2 * config.max_source_positions)
        inputs["input_features"] = torch.randn(shape, generator=draws)
        dynamic["input_features"] = (0,)
        return
    bands = getattr(config, "num_mel_bins", None)
    if bands is not None:  # a spectrogram of fixed length, such as AST's
        shape = (_BATCH, config.max_length, bands)
        dynamic["input_values"] = (0,)
    else:
        shape = (_BATCH, _SAMPLES)
        dynamic["input_values"] = (0, 1)
    inputs["input_values"] = torch.randn(shape, generator=draws)
    if "attention_mask" in taken and bands is None:
        mask = torch.ones(shape, dtype=torch.int64)
        mask[1, _SAMPLES * 2 // 3 :] = 0
        inputs["attention_mask"] = mask
        dynamic["attention_mask"] = (0, 1)


@dataclass(frozen=True)
class Quantizing:
    """Quantization options for weights and, with example calls, for activations.

    Attributes:
        group_size: number of inputs of an int4 weight that share a scale: 32, 64 or 128.
        symmetric: whether to omit zero points.
        inputs: example calls by name. They calibrate int4 weights (GPTQ); with int8 weights, they
            determine the ranges of activations, which become int8 too.

    Raises:
        OptionError: [group-size].
    """

    group_size: int = 64
    symmetric: bool = False
    inputs: Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        check_group_size(self.group_size)

    def check(self, precision: Precision) -> None:
        """Raises OptionError [quantize-inputs] for example calls without effect."""
        if self.inputs is None:
            return
        if precision.weights not in ("int8", "int4") or not self.inputs:
            received = f"{len(self.inputs)} with {precision.name}"
            raise OptionError(
                '`inputs` must be at least one example call, with dtype "int8" or "int4", got '
                f"{received}. Omit them, or pass some with one of these dtypes.",
                code="quantize-inputs",
            )

    def options(self, model: Any, example: Example, precision: Precision) -> dict[str, Any]:
        """Returns the arguments of npu_compiler.export.

        Args:
            model: the transformers model.
            example: the inputs of its trace.
            precision: precision of the weights and the arithmetic.

        Raises:
            OptionError, ContextError: the errors of npu_llm.tasks.inputs.bind_inputs for an invalid
                call.
        """
        how: dict[str, Any] = {"dtype": precision.weights}
        if precision.weights != precision.compute:
            how["precision"] = precision.compute
        if precision.weights in ("int8", "int4"):
            how |= {"group_size": self.group_size, "symmetric": self.symmetric}
        if self.inputs is not None:
            how["calibration"] = [_whole(model, example, call) for call in self.inputs]
            if precision.weights == "int8":
                how["activations"] = "int8"
        return how


def _whole(model: Any, example: Example, call: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Returns a validated call with all inputs of the example."""
    text = model.config.get_text_config()
    ports = [
        PortSpec(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(
                f"{name}.{dim}" if dim in example.dynamic.get(name, ()) else int(size)
                for dim, size in enumerate(tensor.shape)
            ),
            None,
        )
        for name, tensor in example.inputs.items()
    ]
    values = bind_inputs(
        type(model).__name__,
        call,
        ports,
        vocabulary=getattr(text, "vocab_size", None),
        types=getattr(text, "type_vocab_size", None),
        limit=None,
    )
    return dict(zip(example.inputs, values, strict=True))


PROGRAM = "program"


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
        options: load options; verify, trust_remote_code and ignore_unexpected are used.
        progress: receives the stages.
        auto: transformers' auto class for the task.
        precision: precision of the weights and the arithmetic.
        quantizing: quantization options for an integer precision.

    Raises:
        OptionError: the errors of Quantizing.check.
        ModelError: the errors of npu_llm.checkpoint.loading.load_model.
        CaptureError: [capture-failed] if it is not one graph, [model-inputs] for another kind,
            [fixed-size] if sizes other than those of the trace give wrong results.
        WrongResultError: [wrong-result] if the program's results differ from torch's.
    """
    quantizing.check(precision)
    with progress.stage("weights"):
        model, weights = load_model(
            source,
            auto=auto,
            trust_remote_code=options.trust_remote_code,
            ignore_unexpected=options.ignore_unexpected,
        )
        weights.fill()
    if getattr(model.config, "use_cache", False):  # a language model used for embeddings
        model.config.use_cache = False
    is_gguf = source.gguf_file is not None
    example = make_example(model, sizes={} if is_gguf else _image_sizes(source.folder))
    with progress.stage("capture"), torch.no_grad():
        _write_program(model, example, folder / PROGRAM, options, precision, quantizing)
        described = describe_result(model(**example.inputs))
        if options.verified != "off":
            _check_smaller(
                model, example, folder / PROGRAM, is_exact=precision.weights == "float32"
            )
        pads = may_pad(model, example, folder / PROGRAM)
    with progress.stage("save"):
        save_config(model.config, folder)
        if is_gguf:
            _save_processors(source, folder)
        else:
            copy_processors(source.folder, folder)
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


def _save_processors(source: ModelSource, target: Path) -> None:
    """Writes a GGUF file's tokenizer and pooling options in checkpoint format."""
    tokenizer = load_tokenizer(source)
    if tokenizer is not None:
        tokenizer.save_pretrained(target)
    pooling = pooling_of(open_gguf(source.path))
    if pooling is not None:
        (target / "1_Pooling").mkdir()
        (target / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": pooling}))


def may_pad(model: Any, example: Example, program: Path) -> bool:
    """Returns whether a model computes the same for padded inputs: some mix masked positions.

    Args:
        model: the transformers model.
        example: the inputs of its trace.
        program: folder of its program.
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
            # The model checks tokens against its own ranges before each run.
            check_indices=False,
            verify="off" if options.verified == "off" else "first",
            **how,
        )
    except MissingLibraryError:
        raise  # the error names the missing requirement of calibration
    except CompilerError as failure:
        if isinstance(failure, ExportError) and failure.code == "wrong-result":
            raise
        raise CaptureError(
            f"`{type(model).__name__}` must be one graph with dynamic shapes, got: "
            f"{str(failure).rstrip('.')}. Such models are not supported yet.",
            code="capture-failed",
        ) from failure


def _check_smaller(model: Any, example: Example, program: Path, *, is_exact: bool) -> None:
    """Compares with torch at other sizes, because code may branch on one, such as on its parity.

    Quantized programs differ from torch in any case; instead the graph is run in torch.
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
            f"`{type(model).__name__}` must compute the same for all sizes, got results that "
            f"differ from torch's for {shapes}, where the model's code takes another branch. Such "
            "models are not supported yet.",
            code="fixed-size",
        )


def _are_equal(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    # Tolerance for the order of summation and the precision of the arithmetic.
    return all(
        one.shape == right.shape
        and torch.allclose(one, right, rtol=0.0, atol=2e-4 * float(right.abs().max()))
        for one, right in zip(found, expected, strict=True)
        if isinstance(right, torch.Tensor)
    )


def _as_captured(
    model: Any, example: Example, given: Mapping[str, torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Returns the results of the model's graph, traced for a program, for other inputs."""
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
    # RoBERTa-style models count positions from the padding token's id.
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
