"""The command `npu-llm generate`: answers one prompt."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer, import_notice
from npu_llm.cli.arguments import (
    add_adapters,
    add_generation,
    add_model,
    check_model,
    check_text_argument,
    given_text,
)
from npu_llm.errors import OptionError, check_text

__all__ = ["generate", "main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs `generate`."""

    def check(options: argparse.Namespace) -> None:
        _sort_words(options, parser)
        check_text_argument("PROMPT", options.prompt)
        if options.system:
            check_text("--system", options.system)
        if options.json_schema is not None and not options.json_schema.exists():
            _schema(options.json_schema)  # raises; a pipe would be readable only once
        check_model(options)

    parser = CommandParser(
        prog="npu-llm generate",
        description="Answers one prompt. Only the answer goes to standard output.",
        check=check,
        is_intermixed=True,
    )
    for metavar, summary in (
        ("MODEL", "the model, as for --model"),
        ("PROMPT", "the prompt; - for standard input"),
    ):
        parser.add_argument(
            "words",
            metavar=metavar,
            nargs="?",
            action="append",
            default=argparse.SUPPRESS,
            help=summary,
        )
    parser.add_argument("-p", "--prompt", metavar="PROMPT", help="PROMPT as an option")
    add_model(parser, is_positional=False)
    add_generation(parser, max_new_tokens=256)
    parser.add_argument(
        "--json-schema",
        metavar="FILE",
        type=Path,
        help="constrain the answer to the JSON schema in FILE (structured output)",
    )
    add_adapters(parser)
    add_json(parser)
    return generate(parser.parse_args(arguments))


def _sort_words(options: argparse.Namespace, parser: CommandParser) -> None:
    """Sets model and prompt from the positional words: [MODEL] PROMPT, or MODEL after --prompt."""
    words: list[str] = vars(options).pop("words", [])
    if options.prompt is None:
        if not words:
            parser.error("PROMPT is required")
        options.prompt = words.pop()
    if words and options.model is None:
        options.model = words.pop(0)
    if words:
        parser.error(f"MODEL and PROMPT must be given once, got {words[0]!r} as well")


def generate(options: argparse.Namespace) -> int:
    """Writes the answer to standard output and the rest to standard error.

    Returns:
        The exit code.

    Raises:
        NpuError: if generation fails.
    """
    prompt = given_text("PROMPT", options.prompt)
    schema = None if options.json_schema is None else _schema(options.json_schema)
    # Late imports: help and errors of usage need none of them.
    from npu_llm.tokenizer.chat_template import start_early

    start_early()  # takes 0.1 s on an idle core
    from npu_llm.cli.terminal import Display

    display = Display()
    with import_notice():
        from npu_llm.chat.chat_session import ChatSession
        from npu_llm.cli.session import figures, generation_options, start_plain
        from npu_llm.cli.terminal import writer_beside_json
        from npu_llm.cli.turns import show_deltas
    model = start_plain(options, display)
    if options.adapter:
        names = [model.load_adapter(path) for path, _ in options.adapter]
        model.set_adapter(dict(zip(names, (scale for _, scale in options.adapter), strict=True)))
        display.line(f"adapters: {', '.join(names)}")
    asked = generation_options(options, model)
    if options.seed is not None:
        asked["seed"] = options.seed
    session = ChatSession(model, options.system, **asked)
    stream = session.stream(prompt, schema=schema)
    show_deltas(stream, writer_beside_json(options.json), display)
    reply = stream.reply
    assert reply is not None, "the stream has ended"
    give_answer(
        options.json,
        {
            "answer": reply.text,
            "reasoning": reply.reasoning or None,
            "model": model.name,
            "precision": model.precision.name,
            "pipeline": str(model.pipeline),
            "device": model.report.device,
            "prompt_tokens": reply.prompt_tokens,
            "answer_tokens": reply.answer_tokens,
            "finish_reason": reply.finish,
            "time_to_first_token_s": reply.time_to_first_token_s,
            "tokens_per_s": reply.tokens_per_s,
        },
        lambda: print(flush=True),  # the answer was streamed
    )
    display.table(figures(model, reply))
    if reply.finish == "length":
        display.line(f"The answer was cut after {reply.answer_tokens:,} tokens; -n N allows more.")
    return 0


def _schema(file: Path) -> Any:
    """Returns the schema in a file.

    Raises:
        OptionError: [schema-file] if the file cannot be read or is not a JSON object.
    """
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as failure:
        raise OptionError(
            f"`{file}` must be a file with a JSON schema, got {failure}. Name another.",
            code="schema-file",
        ) from failure
    if not isinstance(found, dict):
        raise OptionError(
            f"`{file}` must contain a JSON object, got a {type(found).__name__}. Write the schema "
            "as an object.",
            code="schema-file",
        )
    return found
