"""The command `npu-llm eval`: measures a model's perplexity, or its score on samples of a task."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_command.command_parser import CommandParser
from npu_command.output import add_json, give_answer, import_notice
from npu_llm.checkpoint.processors import load_beside
from npu_llm.choices import parse_dtype
from npu_llm.cli.arguments import add_model, check_model, positive
from npu_llm.cli.tasks.starting import start_task
from npu_llm.cli.tasks.translate import asked_languages
from npu_llm.errors import ModelError, OptionError

if TYPE_CHECKING:
    from npu_llm.evaluation import TaskResult

__all__ = ["main"]

_GENERATES, _TRANSLATES = "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
# Options of language models only.
_OF_TEXT = ("text", "window", "stride", "pipeline", "max_context", "kv_cache", "sparse_attention")


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments, measures, and prints a table.

    Returns:
        The exit code: 1 if --max-loss was given and the loss is above it, else 0.
    """
    parser = CommandParser(
        prog="npu-llm eval",
        description="Measures perplexity on a text; lower is better. With --data, scores a model "
        "of another task on samples: word error rate, chrF and BLEU, accuracy, F1 of answers, or "
        "cosine similarity of embeddings. The table goes to standard output.",
        check=_check,
    )
    add_model(parser)
    parser.add_argument(
        "--text",
        metavar="FILE",
        type=Path,
        help="a text in UTF-8 (default: the one in npu-llm)",
    )
    _add_data(parser)
    parser.add_argument(
        "--compare",
        metavar="DTYPE,DTYPE",
        default="float32",
        help="measure these precisions of the same model first, and show the loss relative to the "
        'first; "dense" for the model without sparse attention; "none" for no comparison '
        "(default: float32)",
    )
    parser.add_argument(
        "--original", metavar="PATH", help="the model to compare with, for an exported folder"
    )
    parser.add_argument(
        "--window", metavar="N", type=positive,
        help="tokens per window (default: 256; with --sparse-attention K twice K, of which the "
        "second half is scored)",
    )  # fmt: skip
    parser.add_argument(
        "--stride", metavar="N", type=positive,
        help="tokens between starts of windows (default: the window)",
    )  # fmt: skip
    parser.add_argument(
        "--max-loss",
        metavar="PERCENT",
        type=float,
        help="exit with code 1 if the loss is larger; with --data, in percentage points",
    )
    add_json(parser)
    options = parser.parse_args(arguments)
    return _by_text(options) if options.data is None else _by_data(options)


def _compared(options: argparse.Namespace) -> list[str]:
    """Returns the precisions to compare with, and "dense"."""
    return [] if options.compare == "none" else options.compare.split(",")


def _check(options: argparse.Namespace) -> None:
    compared = _compared(options)
    for name in compared:
        if name != "dense":
            parse_dtype(name)
        elif options.sparse_attention is None:
            raise OptionError(
                "`--compare dense` must be given with --sparse-attention, got none. Add it, or "
                "name a precision.",
                code="eval-compare",
            )
    if options.max_loss is not None and not compared:
        raise OptionError(
            "`--max-loss` must be given with a precision to compare with, got --compare none. Omit "
            "one of them.",
            code="eval-compare",
        )
    check_model(options)


def _add_data(parser: argparse.ArgumentParser) -> None:
    """Adds --data and the options of its samples."""
    group = parser.add_argument_group("models of other tasks")
    group.add_argument(
        "--data",
        metavar="FILE",
        type=Path,
        help='samples of the task, one JSON object per line, such as {"audio": "a.wav", "text": '
        '"the words"}; the guide on measuring shows the form for each task',
    )
    group.add_argument(
        "--batch-size", metavar="N", type=positive, default=8, help="samples per batch (default: 8)"
    )
    group.add_argument(
        "--from", dest="source", metavar="LANG", help="source language of a multilingual model"
    )
    group.add_argument("--to", metavar="LANG", help="target language of a multilingual model")
    group.add_argument(
        "-n",
        "--max-new-tokens",
        metavar="N",
        type=positive,
        default=256,
        help="maximum number of tokens of an answer (default: 256)",
    )


def _by_text(options: argparse.Namespace) -> int:
    """Measures perplexity on a text, first in the compared precisions."""
    if options.model is not None and _task_of(options.model) != _GENERATES:
        raise OptionError(
            f"`--data` must be given for {options.model}, which is not a language model, got none. "
            "Pass samples of its task; the guide on measuring shows their form.",
            code="eval-data",
        )
    # Late imports: help and errors of usage need none of them.
    from npu_llm.evaluation import default_text, read_text

    text = default_text() if options.text is None else read_text(options.text)
    results: list[Any] = []
    for name in [*_compared(options), None]:
        changed: dict[str, Any] = {}
        if name is not None:
            changed |= {"model": options.original or options.model, "sparse_attention": None}
        if name not in (None, "dense"):
            changed |= {"dtype": name, "kv_cache": None}
        one = argparse.Namespace(**{**vars(options), **changed})
        results.append(_perplexity(one, text, scored_from=options.sparse_attention))
    rows = [asdict(one) | {"loss": one.loss(results[0])} for one in results]

    def show() -> None:
        first, has_loss = results[0], len(results) > 1
        _print_table(
            f"{first.tokens:,} tokens in windows of {first.window:,}, stride {first.stride:,}"
            + (f", scored after {first.scored_from:,}" if first.scored_from else ""),
            ["precision", "perplexity", *(["loss"] if has_loss else [])],
            [
                [
                    one.precision
                    + (f", kv-cache {one.kv_cache}" if one.kv_cache else "")
                    + (
                        f", sparse attention {one.sparse_attention}" if one.sparse_attention else ""
                    ),
                    f"{one.perplexity:.3f}",
                    *([f"{one.loss(first):+.2%}" if number else ""] if has_loss else []),
                ]
                for number, one in enumerate(results)
            ],
        )

    give_answer(options.json, rows, show)
    return _end(options, points=100 * rows[-1]["loss"])


def _by_data(options: argparse.Namespace) -> int:
    """Scores a model on the samples in --data, first in the compared precisions.

    Raises:
        OptionError: [eval-data] for samples or options that do not fit the model's task,
            [eval-task] for a task without a measure, [eval-compare] for embeddings without a
            precision to compare with.
    """
    _check_options(options)
    # Late imports: help and errors of usage need none of them.
    from npu_llm.cli.session import be_quiet

    be_quiet()
    from npu_llm.cli.tasks.samples import read_samples
    from npu_llm.evaluation import form_of
    from npu_llm.evaluation.measures import MEASURES
    from npu_llm.tasks.auto_model import class_name, find_task

    task = find_task(options.model)
    if task == _GENERATES:
        raise OptionError(
            f"`--data` must be omitted for a language model, got {options.data}. Pass --text FILE "
            "to measure perplexity.",
            code="eval-data",
        )
    form, compared = form_of(task), _compared(options)
    if "cosine" in form.measures and not compared:
        raise OptionError(
            "`--compare` must name a precision for embeddings, got none. Omit it for float32.",
            code="eval-compare",
        )
    samples = read_samples(
        options.data, form, options.model, trust_remote_code=options.trust_remote_code
    )
    asked = _languages(options, task)
    results: list[TaskResult] = []
    for dtype in compared:
        changed = {"model": options.original or options.model, "dtype": dtype}
        one = argparse.Namespace(**{**vars(options), **changed})
        results.append(_measures(class_name(task), one, samples, asked, results))
    results.append(_measures(class_name(task), options, samples, asked, results))
    rows: list[dict[str, Any]] = [
        {"precision": one.precision, "task": one.task, "samples": one.samples, **one.figures}
        | {"loss": one.loss(results[0])}
        for one in results
    ]

    def show() -> None:
        first = results[0]
        _print_table(
            f"{first.samples:,} samples of {options.data.name}",
            ["precision", *first.figures, *(["loss, points"] if compared else [])],
            [
                [
                    one.precision,
                    *(format(value, MEASURES[name].form) for name, value in one.figures.items()),
                    *([f"{one.loss(first):+.3f}" if number else ""] if compared else []),
                ]
                for number, one in enumerate(results)
            ],
        )

    give_answer(options.json, rows, show)
    return _end(options, points=rows[-1]["loss"])


def _end(options: argparse.Namespace, *, points: float) -> int:
    """Returns the exit code for the loss in percentage points."""
    return int(options.max_loss is not None and not points <= options.max_loss)


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(title)
    console.print(table)


def _task_of(path: str) -> str:
    """Returns the task of a model; that of language models if it is unknown."""
    from npu_llm.tasks.auto_model import find_task

    try:
        return find_task(path)
    except ModelError:
        return _GENERATES  # its loading reports the reason


def _perplexity(options: argparse.Namespace, text: str, *, scored_from: int | None) -> Any:
    from npu_llm.cli.terminal import Display

    display = Display()
    with import_notice():
        from npu_llm.cli.session import start
        from npu_llm.evaluation import evaluate
    model = start(options, display)
    window = options.window
    if window is None and scored_from is not None:
        window = min(2 * scored_from, model.context_length or 2 * scored_from)
    with display.counting(f"measuring {model.precision.name}", "tokens") as counter:
        result = evaluate(
            model,
            text,
            window=window or 256,
            stride=options.stride,
            scored_from=scored_from,
            on_tokens=counter,
        )
    del model
    gc.collect()  # frees memory for the next one
    return result


def _check_options(options: argparse.Namespace) -> None:
    if options.model is None:
        raise OptionError(
            "`--model` must be given with --data, got none. Add it.",
            code="eval-data",
        )
    for name in _OF_TEXT:
        if getattr(options, name) is not None:
            raise OptionError(
                f"`--{name.replace('_', '-')}` must be used without --data, got both. Omit one of "
                "them.",
                code="eval-data",
            )


def _languages(options: argparse.Namespace, task: str) -> dict[str, Any]:
    """Returns arguments of generate for a translation model."""
    if task != _TRANSLATES:
        if options.source is not None or options.to is not None:
            raise OptionError(
                "`--from` and `--to` must be omitted for a model that does not translate, got "
                f"{options.source or options.to}. Omit them.",
                code="language-unknown",
            )
        return {}
    from transformers import AutoTokenizer

    tokenizer = load_beside(
        AutoTokenizer,
        options.model,
        "a tokenizer",
        trust_remote_code=options.trust_remote_code,
    )
    return asked_languages(tokenizer, options) | {"max_new_tokens": options.max_new_tokens}


def _measures(
    kind: str,
    options: argparse.Namespace,
    samples: Sequence[dict[str, Any]],
    asked: dict[str, Any],
    before: Sequence[TaskResult],
) -> TaskResult:
    from npu_llm.cli.terminal import Display
    from npu_llm.evaluation import evaluate_task

    display = Display()
    model = start_task(kind, options, display)
    with display.counting(f"measuring {model.precision.name}", "samples") as counter:
        result = evaluate_task(
            model,
            samples,
            processors=options.model,
            exact=before[0] if before else None,
            batch_size=options.batch_size,
            generate=asked,
            source_language=options.source,
            on_samples=counter,
            trust_remote_code=options.trust_remote_code,
        )
    del model
    gc.collect()  # frees memory for the next one
    return result
