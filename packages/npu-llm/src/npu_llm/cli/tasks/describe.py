"""The command `npu-llm describe`: answers a question about images."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer
from npu_llm.cli.arguments import (
    add_max_new_tokens,
    check_model,
    check_text_argument,
    given_text,
    positive,
)
from npu_llm.cli.tasks.starting import add_task_model, start_task
from npu_llm.cli.terminal import Display, writer_beside_json
from npu_llm.errors import OptionError

if TYPE_CHECKING:
    from npu_llm.chat.reply import Draft, Finish

__all__ = ["finish_reason", "main", "read_image", "reads_images", "start_image_model"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and writes the answer; returns the exit code."""
    parser = CommandParser(
        prog="npu-llm describe",
        description="Answers a question about images with a vision-language model. Only the answer "
        "goes to standard output.",
        check=_check,
    )
    add_task_model(parser)
    parser.add_argument(
        "--beams", metavar="N", type=positive, help="beams of the search (default: the model's)"
    )
    parser.add_argument("--seed", metavar="N", type=int, help="make sampling repeatable")
    add_max_new_tokens(parser, 256)
    add_json(parser)
    parser.add_argument("images", metavar="IMAGE", type=Path, nargs="+", help="image files")
    parser.add_argument("question", metavar="QUESTION", help="the question; - for standard input")
    options = parser.parse_args(arguments)
    question = given_text("QUESTION", options.question)
    images = [read_image(path) for path in options.images]
    display = Display()
    model, processor = start_image_model(options, display)
    from npu_llm.chat.reply import Draft, generated
    from npu_llm.cli.turns import finish_of
    from npu_llm.engine.sampler import Token
    from npu_llm.tokenizer.detokenizer import Detokenizer
    from npu_llm.vision_language.prompting import prompt_inputs

    content = [{"type": "image", "image": one} for one in images]
    content.append({"type": "text", "text": question})
    inputs = prompt_inputs(processor, [{"role": "user", "content": content}])
    asked = {"max_new_tokens": options.max_new_tokens}
    if options.beams is not None:
        asked["num_beams"] = options.beams
    draft = Draft(Detokenizer(processor.tokenizer))
    prompt_tokens = inputs["input_ids"].shape[1]
    has_beams = asked.get("num_beams", model.generation_config.num_beams or 1) > 1
    tokens: Iterable[int]
    if has_beams:  # the answer is known only at the end
        tokens = model.generate(**inputs, **asked)[0, prompt_tokens:].tolist()
    else:
        tokens = generated(model.generate, **inputs, **asked)
    write = writer_beside_json(options.json)
    for token in tokens:
        write(draft.add(Token(token)))
    write(draft.text.end())
    draft.finish = finish_reason(model, draft, options.max_new_tokens)
    reply = draft.reply(prefilled=0, verification="")
    document = {
        "answer": reply.text,
        "precision": model.precision.name,
        "device": model.report.device,
        "prompt_tokens": prompt_tokens,
        "answer_tokens": reply.answer_tokens,
        "finish_reason": reply.finish,
    }
    give_answer(options.json, document, lambda: print(flush=True))
    rows = {
        "device": model.report.device,
        "precision": model.precision.name,
        "program": str(model.verification),
        "prompt": f"{prompt_tokens:,} tokens, images included",
        "answer": f"{reply.answer_tokens:,} tokens",
        "finish reason": finish_of(reply),
    }
    if reply.time_to_first_token_s is not None:
        rows["first token after"] = f"{reply.time_to_first_token_s:.2f} s"
    if reply.tokens_per_s is not None and not has_beams:
        rows["speed"] = f"{reply.tokens_per_s:.1f} tokens/s"
    display.table(rows)
    return 0


def _check(options: argparse.Namespace) -> None:
    check_text_argument("QUESTION", options.question)
    for path in options.images:
        if not path.exists():
            read_image(path)  # raises
    check_model(options)


_TASK = "AutoModelForImageTextToText"


def reads_images(name_or_path: str) -> bool:
    """Whether a model reads images and text and has a processor for them.

    Args:
        name_or_path: a checkpoint folder, an exported folder, a GGUF file or a name on the hub.

    Raises:
        ModelError: if there is no such model.
    """
    # Late imports: help and errors of usage need none of them.
    from npu_llm.checkpoint.facts import read_config
    from npu_llm.checkpoint.source import find_source
    from npu_llm.models.entry import MANIFEST

    path = Path(name_or_path).expanduser()
    if (path / MANIFEST).is_file():
        about = json.loads((path / MANIFEST).read_text()).get("about", {})
        return bool(about.get("task") == _TASK)
    source = find_source(name_or_path)
    if source.gguf_file is not None:
        return False
    has_processor = any(source.folder.glob("*processor_config.json"))
    return has_processor and "vision_config" in read_config(source.folder)


def finish_reason(model: Any, draft: Draft, max_new_tokens: int) -> Finish:
    """Returns "length" if an answer of transformers' generate was cut, else "stop"."""
    ends = model.generation_config.eos_token_id
    last = draft.tokens[-1].id if draft.tokens else None
    has_ended = last == ends or (isinstance(ends, list) and last in ends)
    return "stop" if has_ended or len(draft.tokens) < max_new_tokens else "length"


def read_image(path: Path, mode: str = "RGB") -> Any:
    """Reads an image file as a PIL image.

    Args:
        path: the file.
        mode: Pillow's name of the color mode, such as "L" for grayscale.

    Raises:
        OptionError: [image-unreadable] if the file is not an image, [missing-pillow].
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as failure:
        raise OptionError(
            "Pillow must be installed to read images, got no such package. Run `pip install "
            "'npu-llm[images]'`.",
            code="missing-pillow",
        ) from failure
    unreadable = (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError)
    try:
        with Image.open(path.expanduser()) as image:
            return image.convert(mode)
    except unreadable as failure:
        reason = getattr(failure, "strerror", None) or type(failure).__name__
        raise OptionError(
            f"`{path}` must be an image file, such as PNG or JPEG, got: {reason}. Check the path "
            "or convert the file.",
            code="image-unreadable",
        ) from failure


def start_image_model(options: argparse.Namespace, display: Display) -> tuple[Any, Any]:
    """Starts the model in the options; returns it and its processor.

    Raises:
        NpuError: if it cannot start, such as ModelError [missing-processor].
    """
    # Late imports: help and errors of usage need none of them.
    from npu_llm.cli.session import be_quiet

    be_quiet()
    from npu_llm.vision_language.prompting import load_processor

    path = str(Path(options.model).expanduser())
    processor = load_processor(path, trust_remote_code=options.trust_remote_code)
    model = start_task("NPUModelForImageTextToText", options, display)
    if getattr(options, "seed", None) is not None:
        import torch

        torch.manual_seed(options.seed)
    return model, processor
