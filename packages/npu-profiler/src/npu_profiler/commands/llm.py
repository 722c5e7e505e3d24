"""`npu-profiler llm`: a language model's speed over prompt lengths and dtypes."""

import argparse
from collections.abc import Sequence

from npu_command.answers import give_answer
from npu_command.help.command_parser import CommandParser
from npu_profiler.commands.messages import say
from npu_profiler.commands.sweep import add_outputs
from npu_profiler.errors import TraceError
from npu_profiler.program.platform_command import run_command
from npu_profiler.reports.pictures.picture_file import check_target, write_picture
from npu_profiler.reports.tables.text import format_table
from npu_profiler.sweeps.llm import draw, to_table

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Runs the command.

    Args:
        words: the arguments.

    Returns:
        0.

    Raises:
        TraceError: npu-llm is not installed, or refuses; an option cannot be met.
    """
    arguments = _parser().parse_args(words)
    prompts = _read_lengths(arguments.sizes)
    picture = check_target(arguments.plot) if arguments.plot else None
    given = ["--prompt", prompts, "--new", str(arguments.new), "--repeats", str(arguments.repeats)]
    if arguments.model is not None:
        given += ["--model", arguments.model]
    dtypes = arguments.dtypes.split(",") if arguments.dtypes else [None]
    benches = []
    for dtype in dtypes:
        chosen = [] if dtype is None else ["--dtype", dtype.strip()]
        say(f"npu-llm bench {' '.join([*given, *chosen])}")
        bench = ["bench", *given, *chosen]
        benches.append(run_command("npu-llm", bench, caller="llm"))
    lines = format_table(to_table(benches))
    document = {"command": "llm", "benches": benches}
    give_answer(arguments.json, document, lambda: print("\n".join(lines)))
    if picture is not None:
        title = f"{benches[0]['model']} on {benches[0]['device']}"
        write_picture(picture, draw(benches, title=title))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="npu-profiler llm",
        description="Measures a language model with npu-llm bench, once for each dtype.",
    )
    parser.add_argument(
        "--sizes", default="32,1024", metavar="N,N", help="tokens of the prompts (default: 32,1024)"
    )
    parser.add_argument(
        "--dtypes",
        metavar="D,D",
        help="float32, bfloat16, float16, int8, int4 (default: what npu-llm chooses)",
    )
    parser.add_argument(
        "--new", type=int, default=128, metavar="N", help="tokens of the answers (default: 128)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="answers of each size (default: 3)"
    )
    parser.add_argument(
        "--model", metavar="PATH", help="as for npu-llm (default: the weights that are installed)"
    )
    add_outputs(parser)
    return parser


def _read_lengths(text: str) -> str:
    parts = [part.strip() for part in text.split(",")]
    if all(part.isdecimal() and int(part) > 0 for part in parts):
        return ",".join(parts)
    raise TraceError(
        f"--sizes: must be whole numbers of tokens above 0; got {text!r}. Pass 32,1024, say.",
        code="sweep-option",
    )
