"""`npu-llm describe`: answers a question about pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from npu_command.answers import add_json, give_answer
from npu_command.help.command_parser import CommandParser
from npu_llm.cli.arguments import check_model, check_text_argument, given_text, positive
from npu_llm.cli.display import Display
from npu_llm.cli.tasks.pictures import read_picture, start_looking
from npu_llm.cli.tasks.starting import add_task_model

__all__ = ["describe", "main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs `describe`."""
    parser = CommandParser(
        prog="npu-llm describe",
        description="Answers a question about pictures. Only that goes to standard output.",
        check=_check,
    )
    add_task_model(parser)
    parser.add_argument("--beams", metavar="N", type=positive, help="default: the model's")
    parser.add_argument("--seed", metavar="N", type=int, help="make sampling repeatable")
    parser.add_argument(
        "--max-new-tokens", metavar="N", type=positive, default=256, help="default: 256"
    )
    add_json(parser)
    parser.add_argument("images", metavar="IMAGE", type=Path, nargs="+", help="picture files")
    parser.add_argument(
        "question", metavar="QUESTION", help='the question; "-" reads standard input'
    )
    return describe(parser.parse_args(arguments))


def _check(options: argparse.Namespace) -> None:
    check_text_argument("QUESTION", options.question)
    for path in options.images:
        if not path.exists():
            read_picture(path)  # the reason
    check_model(options)


def describe(options: argparse.Namespace) -> int:
    """Writes the answer to standard output, the rest to standard error.

    Returns:
        The exit code.

    Raises:
        NpuError: if there can be no answer.
    """
    question = given_text("QUESTION", options.question)
    pictures = [read_picture(path) for path in options.images]
    display = Display()
    model, processor = start_looking(options, display)
    from npu_llm.cli.answer_text.streamer import AnswerStreamer
    from npu_llm.cli.answer_text.word_wrap import writer_beside_json
    from npu_llm.vision_language.prompting import prompt_inputs

    content = [{"type": "image", "image": one} for one in pictures]
    content.append({"type": "text", "text": question})
    inputs = prompt_inputs(processor, [{"role": "user", "content": content}])
    asked = {"max_new_tokens": options.max_new_tokens}
    if options.beams is not None:
        asked["num_beams"] = options.beams
    streamer = AnswerStreamer(processor.tokenizer, writer_beside_json(options.json))
    if asked.get("num_beams", model.generation_config.num_beams or 1) > 1:
        found = model.generate(**inputs, **asked)  # an answer is known at the end only
        streamer.put(inputs["input_ids"])
        streamer.put(found[0, inputs["input_ids"].shape[1] :])
        streamer.end()
    else:
        model.generate(**inputs, **asked, streamer=streamer)
    document = {
        "answer": streamer.text,
        "precision": model.precision.name,
        "device": model.report.device,
        "prompt_tokens": inputs["input_ids"].shape[1],
        "answer_tokens": len(streamer.tokens),
    }
    give_answer(options.json, document, lambda: print(flush=True))
    rows = {
        "device": model.report.device,
        "precision": model.precision.name,
        "program": str(model.verification),
        "prompt": f"{inputs['input_ids'].shape[1]:,} tokens, pictures included",
        "answer": f"{len(streamer.tokens):,} tokens",
    }
    if streamer.time_to_first_token_s is not None:
        rows["first token after"] = f"{streamer.time_to_first_token_s:.2f} s"
    if streamer.tokens_per_s is not None:
        rows["speed"] = f"{streamer.tokens_per_s:.1f} tokens/s"
    display.table(rows)
    return 0
