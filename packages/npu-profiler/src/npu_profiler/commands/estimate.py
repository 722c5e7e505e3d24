"""`npu-profiler estimate`: writes a vendor compiler's schedule of a model as a trace."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from npu_command.command_parser import CommandParser
from npu_command.output import add_json
from npu_profiler.commands.options import add_top, check_top, say
from npu_profiler.commands.platform_command import run_command
from npu_profiler.commands.summary import give_summary
from npu_profiler.output_file import check_writable, unwritable
from npu_profiler.reading import load_trace
from npu_profiler.recording.schedule import read_schedules, write_schedule

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Runs the command; returns 0."""
    arguments = _parser().parse_args(words)
    check_top(arguments.top)
    output = check_writable(arguments.output, "trace")
    given = ["check", str(arguments.path), "--target", arguments.target]
    package = _package(arguments.path)
    if package == "npu-compiler":
        given += ["--half-budget", "0"]  # half precision does not change the schedule
    checks = run_command(package, given, caller="estimate")
    programs = read_schedules(checks if isinstance(checks, list) else [checks])
    try:
        write_schedule(programs, output)
    except OSError as failure:
        raise unwritable(output, "trace", failure) from None
    say(f"wrote {output}: npu-profiler view {output} shows it")
    give_summary(load_trace(output), ("type", "layer"), top=arguments.top, json=arguments.json)
    return 0


def _package(path: Path) -> str:
    """Returns the package that compiles a path: a language model's folder has its config."""
    is_language_model = path.suffix == ".gguf" or (path / "config.json").is_file()
    return "npu-llm" if is_language_model else "npu-compiler"


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="npu-profiler estimate",
        description="Compiles an exported model for an NPU, which need not be in this machine, and "
        "writes the compiler's schedule as a trace: the work of each engine over time, by "
        "layer, torch module and Python line. All times are the compiler's estimate, not a "
        "measurement.",
    )
    parser.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="output folder of npu_compiler.export or npu-llm export",
    )
    parser.add_argument(
        "--target", required=True, metavar="NAME", help="target NPU, such as lunar-lake, or 4000"
    )
    parser.add_argument(
        "-o",
        "--output",
        default="estimate.json",
        metavar="FILE",
        help="output file; .json.gz compresses (default: %(default)s)",
    )
    add_top(parser)
    add_json(parser)
    return parser
