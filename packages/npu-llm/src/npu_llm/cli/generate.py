"""`npu-llm generate`: answers one prompt."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from npu_llm.chat.unicode_text import check_text, read_text
from npu_llm.cli.arguments import add_generation, add_model
from npu_llm.cli.display import Display
from npu_llm.errors import OptionError

__all__ = ["generate", "main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs `generate`."""
    parser = argparse.ArgumentParser(
        prog="npu-llm generate",
        description="Answers one prompt. Only the answer goes to standard output.",
    )
    add_model(parser)
    add_generation(parser)
    parser.add_argument("prompt", metavar="PROMPT", help='the prompt; "-" reads standard input')
    return generate(parser.parse_args(arguments))


def generate(options: argparse.Namespace) -> int:
    """Writes the answer to standard output, and everything else to standard error.

    Returns:
        The exit code.

    Raises:
        NpuError: if there can be no answer.
    """
    if options.prompt == "-":
        prompt = read_text("standard input", sys.stdin.read)
    else:
        prompt = check_text("PROMPT", options.prompt)
    if options.system:
        check_text("--system", options.system)
    if not prompt.strip():
        raise OptionError(
            f"PROMPT: must contain some text; got {prompt!r}. Pass a prompt, or - to read it from "
            "standard input.",
            code="empty-prompt",
        )
    # Heavy: a mistyped command should not wait for these.
    from npu_llm.chat.chat_prompt import encode_chat
    from npu_llm.cli.session import figures, generation_options, start
    from npu_llm.cli.streamer import AnswerStreamer

    display = Display()
    model = start(options, display)
    messages = [{"role": "user", "content": prompt}]
    if options.system:
        messages.insert(0, {"role": "system", "content": options.system})
    inputs = encode_chat(model.tokenizer, messages)
    streamer = AnswerStreamer(model.tokenizer)
    model.generate(**inputs, streamer=streamer, **generation_options(options, model))
    sys.stdout.write("\n")
    sys.stdout.flush()
    display.table(figures(model, inputs["input_ids"].shape[1], streamer))
    return 0
