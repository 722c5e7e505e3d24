"""The command `npu-llm export`: writes a model to a folder that starts without building."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_command.command_parser import CommandParser, offer
from npu_command.output import add_json, give_answer
from npu_compiler.programs.blobs import AheadBlob
from npu_llm.checkpoint.source import find_installed_weights
from npu_llm.choices import BLOB_CONTEXT, DEFAULT_PRECISION, DTYPE_HELP, PRECISION_NAMES
from npu_llm.cli.arguments import add_checkpoint, add_verify, check_model, file_options, positive
from npu_llm.errors import ModelError, OptionError
from npu_llm.progress import STAGES, TARGET_STAGES

__all__ = ["add_export", "check_export", "give_folder", "main", "write_folder"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments, writes the folder and prints its path."""
    parser = CommandParser(
        prog="npu-llm export",
        description="Writes a model to a folder, in a precision and compiled for this device. "
        "--model FOLDER starts it without transformers' model code.",
        check=check_export,
    )
    add_export(parser)
    dtype = parser.add_argument(
        "--dtype",
        "--weights",
        metavar="DTYPE",
        help=DTYPE_HELP,
    )
    offer(dtype, PRECISION_NAMES)
    options = parser.parse_args(arguments)
    return write_folder(options)


def add_export(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, -o, --pipeline, --verify and the other options of exports."""
    add_checkpoint(parser)
    add_json(parser)
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, required=True, help="the folder to write"
    )
    parser.add_argument(
        "--pipeline",
        metavar="NAME",
        help="kernels, dynamic, or static for programs of fixed sizes (default: the one that suits "
        "device and model)",
    )
    parser.add_argument(
        "--max-context",
        type=positive,
        metavar="N",
        help="maximum number of tokens of prompt and answer, for a model with other rotary factors "
        "for long texts, such as Phi-3 with 128k (default: the range of the short factors)",
    )
    add_verify(parser)
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NPU",
        help="compile ahead of time for an NPU, such as lunar-lake or 5010; repeatable. No NPU is "
        "needed; `npu-compiler target list` shows all",
    )
    parser.add_argument(
        "--blob-context",
        type=int,
        default=BLOB_CONTEXT,
        metavar="N",
        help="with --target: number of tokens of prompt and answer that the blobs cover (default: "
        f"{BLOB_CONTEXT})",
    )
    parser.add_argument(
        "--skip-refused",
        action="store_true",
        help="with --target: skip the blob of a program that the compiler rejects",
    )


def check_export(options: argparse.Namespace) -> None:
    """Checks the model and the targets of an export before slow imports."""
    check_model(options)
    if options.target:
        from npu_compiler.target_compiler.targets import find_target

        for name in options.target:
            find_target(name)


def write_folder(options: argparse.Namespace, **how: Any) -> int:
    """Exports the model in the options, with progress on standard error.

    Args:
        options: the parsed options, with model, output, dtype, pipeline and verify.
        how: further arguments of npu_llm.export: group_size, symmetric and data.

    Returns:
        The exit code.

    Raises:
        OptionError: [quantize-text] for data with int8 weights of a language model, [export-option]
            for an option that the model's task does not support.
        NpuError: as npu_llm.export, or the export of the task's class.
    """
    from npu_llm.cli.session import be_quiet
    from npu_llm.cli.terminal import Display

    be_quiet()
    display = Display()
    kind = None if options.model is None else _class_of(options.model)
    if kind is None and how.get("data") is not None and options.dtype != "int4":
        raise OptionError(
            f"`--data` must be given with --dtype int4 for a language model, got {options.dtype}. "
            "Omit it, or pass --dtype int4.",
            code="quantize-text",
        )
    with display.progress(TARGET_STAGES if options.target else STAGES) as listener:
        asked = {"verify": options.verify, "on_progress": listener, **file_options(options)}
        if kind is None:
            from npu_llm.models.entry import open_exported
            from npu_llm.models.export import export

            model = find_installed_weights().path if options.model is None else options.model
            folder = export(
                model,
                options.output,
                dtype=options.dtype,
                pipeline=options.pipeline,
                max_context=options.max_context,
                targets=options.target,
                blob_context=options.blob_context,
                skip_refused=options.skip_refused,
                **asked,
                **how,
            )
            options.dtype = open_exported(folder).precision.name
        else:
            options.dtype = options.dtype or DEFAULT_PRECISION
            asked["dtype"] = options.dtype
            folder = kind.export(
                options.model, options.output, **asked, **_fitting(kind, options, how)
            )
    give_folder(folder, options, display)
    return 0


def give_folder(folder: Path, options: argparse.Namespace, display: Any) -> None:
    """Prints the path of a written folder as the answer, and its size on standard error."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    blobs: tuple[AheadBlob, ...] = ()
    if getattr(options, "target", []):
        from npu_llm.models.entry import open_exported

        blobs = open_exported(folder).blobs
    for blob in blobs:
        display.line(str(blob))
    display.line(f"{size / 1e6:,.0f} MB in {options.dtype}; start it with --model {folder}")
    about = {
        "folder": folder,
        "dtype": options.dtype,
        "size_bytes": size,
        "blobs": [dataclasses.asdict(blob) for blob in blobs],
    }
    give_answer(options.json, about, lambda: print(folder))


def _class_of(path: str) -> Any | None:
    """Returns the class of a checkpoint's task; None for a language model."""
    import npu_llm
    from npu_llm.tasks.auto_model import class_name, find_task

    try:
        task = find_task(path)
    except ModelError:
        return None  # loading it as a language model reports the error
    return None if task == "AutoModelForCausalLM" else getattr(npu_llm, class_name(task))


def _fitting(kind: Any, options: argparse.Namespace, how: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a task class's export for the options of npu_llm.export."""
    from npu_llm.tasks.model import TaskModel

    is_one_step = issubclass(kind, TaskModel)
    data = how.pop("data", None)
    usual = {"group_size": None, "symmetric": False}
    changed = [name for name, value in how.items() if value != usual[name]]
    refused = ["target"] if options.target else []
    refused += ["max_context"] if options.max_context is not None else []
    refused += ["pipeline"] if is_one_step and options.pipeline is not None else []
    if not is_one_step:
        refused += [*changed, *(["data"] if data is not None else [])]
    if refused:
        raise OptionError(
            f"`--{refused[0].replace('_', '-')}` must be omitted for "
            f"{'a model of one step' if is_one_step else 'an encoder-decoder model'}, got it for "
            f"{options.model}. Omit it.",
            code="export-option",
        )
    if not is_one_step:
        return {"pipeline": options.pipeline}
    if how.get("group_size", 64) is None:
        how["group_size"] = 64
    if data is not None:
        from npu_llm.cli.tasks.samples import read_calls

        how["inputs"] = read_calls(
            data,
            options.model,
            kind.input_modalities,
            trust_remote_code=options.trust_remote_code,
        )
    return how
