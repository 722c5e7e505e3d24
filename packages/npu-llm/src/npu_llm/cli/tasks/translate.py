"""The command `npu-llm translate`: translates text, line by line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from npu_command.command_parser import CommandParser
from npu_command.output import OUTPUT, add_json, give_answer
from npu_llm.checkpoint.processors import load_beside
from npu_llm.cli.arguments import (
    add_max_new_tokens,
    check_model,
    check_text_argument,
    given_text,
    positive,
)
from npu_llm.cli.tasks.starting import add_task_model, start_task
from npu_llm.cli.terminal import Display
from npu_llm.errors import OptionError

__all__ = ["asked_languages", "main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and writes each line's translation; returns the exit code."""
    parser = CommandParser(
        prog="npu-llm translate",
        description="Translates text, line by line. Only the translation goes to standard output.",
        check=_check,
    )
    add_task_model(parser)
    parser.add_argument(
        "--from",
        dest="source",
        metavar="LANG",
        help="source language of a multilingual model, such as eng_Latn or en",
    )
    parser.add_argument("--to", metavar="LANG", help="target language of a multilingual model")
    parser.add_argument(
        "--prefix",
        metavar="TEXT",
        default="",
        help='text before each line, for T5: "translate English to German: "',
    )
    parser.add_argument(
        "--beams", metavar="N", type=positive, help="beams of the search (default: the model's)"
    )
    add_max_new_tokens(parser, 256)
    add_json(parser)
    parser.add_argument("text", metavar="TEXT", help="the text; - for standard input")
    options = parser.parse_args(arguments)
    text = given_text("TEXT", options.text)
    model = start_task("NPUModelForSeq2SeqLM", options, Display())
    from transformers import AutoTokenizer

    tokenizer = load_beside(
        AutoTokenizer,
        options.model,
        "a tokenizer",
        trust_remote_code=options.trust_remote_code,
    )
    asked = asked_languages(tokenizer, options) | {"max_new_tokens": options.max_new_tokens}
    if options.beams is not None:
        asked["num_beams"] = options.beams
    pairs: list[dict[str, str]] = []
    for source in text.splitlines():
        line = source
        if line.strip():
            inputs = tokenizer(options.prefix + line, return_tensors="pt")
            given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            found = model.generate(**given, **asked)
            line = tokenizer.decode(found[0], skip_special_tokens=True)
        pairs.append({"text": source, "translation": line})
        if options.json != OUTPUT:
            print(line, flush=True)
    give_answer(options.json, pairs, lambda: None)  # the lines were streamed
    return 0


def _check(options: argparse.Namespace) -> None:
    check_text_argument("TEXT", options.text)
    check_model(options)


def asked_languages(tokenizer: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Sets the tokenizer's languages; returns generate's argument for them.

    Raises:
        OptionError: [language-unknown] if the tokenizer does not have a language.
    """
    if options.source is None and options.to is None:
        return {}
    if not hasattr(tokenizer, "src_lang"):
        raise OptionError(
            "`--from` and `--to` must be omitted for a tokenizer without languages, got "
            f"{options.source or options.to}. Omit them; for T5, pass --prefix.",
            code="language-unknown",
        )
    asked: dict[str, Any] = {}
    for option, code in (("--from", options.source), ("--to", options.to)):
        if code is None:
            continue
        number = _number(tokenizer, code)
        if number in (None, tokenizer.unk_token_id):
            raise OptionError(
                f"`{option}` must be a language of the model's tokenizer, got {code}. See the "
                "model card for the codes.",
                code="language-unknown",
            )
        if option == "--from":
            tokenizer.src_lang = code
        else:
            asked["forced_bos_token_id"] = number
    return asked


def _number(tokenizer: Any, code: str) -> int | None:
    """Returns the token of a language; None or the unknown token if there is none."""
    if hasattr(tokenizer, "get_lang_id"):  # M2M100 writes en as __en__
        return int(tokenizer.get_lang_id(code)) if code in tokenizer.lang_code_to_token else None
    found: int | None = tokenizer.convert_tokens_to_ids(code)
    return found
