"""The command `npu-llm merge`: writes a model with LoRA adapters merged into its weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_command.output import add_json
from npu_llm.checkpoint.source import find_installed_weights
from npu_llm.cli.arguments import add_adapters, add_checkpoint, check_model, file_options
from npu_llm.cli.terminal import Display
from npu_llm.cli.writing.export import give_folder
from npu_llm.progress import MERGE_STAGES

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments, writes the folder and prints its path."""
    parser = CommandParser(
        prog="npu-llm merge",
        description="Writes a checkpoint with LoRA adapters merged into its weights; DoRA and "
        "changed embeddings are supported.",
        check=check_model,
    )
    add_checkpoint(parser)
    add_adapters(parser, is_needed=True)
    add_json(parser)
    parser.set_defaults(dtype="float32")
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, required=True, help="the folder to write"
    )
    options = parser.parse_args(arguments)
    # Late imports: help and errors of usage need none of them.
    from npu_llm.cli.session import be_quiet

    be_quiet()
    import transformers

    from npu_llm.adapters.merging import merge
    from npu_llm.tasks.auto_model import find_task

    model = find_installed_weights().path if options.model is None else options.model
    auto = getattr(transformers, find_task(model))
    display = Display()
    with display.progress(MERGE_STAGES) as listener:
        folder = merge(
            model,
            options.adapter,
            options.output,
            auto=auto,
            on_progress=listener,
            **file_options(options),
        )
    give_folder(folder, options, display)
    return 0
