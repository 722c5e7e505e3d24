"""`npu-llm eval --data`: a model of another task than continuing text, measured by samples."""

from __future__ import annotations

import argparse
import gc
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_llm.checkpoint.processors import load_beside
from npu_llm.cli.arguments import positive
from npu_llm.cli.tasks.starting import start_task
from npu_llm.cli.tasks.translate import asked_languages
from npu_llm.errors import ModelError, OptionError

if TYPE_CHECKING:
    from npu_llm.evaluation import TaskResult

__all__ = ["add_data", "is_other_task", "measure_by_data", "print_task_results"]

_GENERATES, _TRANSLATES = "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
# Options that only mean something where text is continued.
_OF_TEXT = ("text", "window", "stride", "pipeline", "max_context", "kv_cache", "sparse_attention")


def add_data(parser: argparse.ArgumentParser) -> None:
    """Adds --data and what is said of the samples in it."""
    group = parser.add_argument_group("models of other tasks")
    group.add_argument(
        "--data",
        metavar="FILE",
        type=Path,
        help='samples of the task, one JSON object a line, such as {"audio": "a.wav", "text": '
        '"what is said"}; the guide on measuring has the form for each task',
    )
    group.add_argument("--batch-size", metavar="N", type=positive, default=8, help="default: 8")
    group.add_argument(
        "--from", dest="source", metavar="LANG", help="for translating models of many languages"
    )
    group.add_argument("--to", metavar="LANG", help="likewise")
    group.add_argument(
        "--max-new-tokens", metavar="N", type=positive, default=256, help="default: 256"
    )


def is_other_task(path: str | None) -> bool:
    """Whether a model is known to be for another task than continuing text."""
    if path is None:
        return False
    from npu_llm.tasks.auto_model import TASKS, find_task

    try:
        return find_task(path) != TASKS[_GENERATES]
    except ModelError:
        return False  # what loads it as a language model says what is wrong


def measure_by_data(options: argparse.Namespace, compared: Sequence[str]) -> list[TaskResult]:
    """Measures the model that the options name by the samples in --data.

    Args:
        options: of `npu-llm eval`.
        compared: the precisions to measure first.

    Returns:
        The results, the last one of the precision that was asked for.

    Raises:
        OptionError: [eval-data] for samples that do not fit the model's task, or options that do
            not go with them, [eval-task] for a task without a measure, [eval-compare] for vectors
            that are compared with nothing.
        NpuError: if the model cannot start.
    """
    _check_options(options)
    # Heavy: a mistyped command should not wait for these.
    from npu_llm.cli.session import be_quiet

    be_quiet()
    from npu_llm.cli.tasks.sample_file import read_samples
    from npu_llm.evaluation import form_of
    from npu_llm.tasks.auto_model import TASKS, find_task

    home, name = found = find_task(options.model)
    task = next(auto for auto, place in TASKS.items() if place == found)
    if task == _GENERATES:
        raise OptionError(
            f"--data: must be omitted for a model that continues text; got {options.data}. Pass "
            "--text FILE, on which perplexity is measured.",
            code="eval-data",
        )
    form = form_of(task)
    if "cosine" in form.measures and not compared:
        raise OptionError(
            "--compare: vectors must be compared with those of another precision; got none. Omit "
            "it for float32.",
            code="eval-compare",
        )
    samples = read_samples(options.data, form, options.model)
    asked = _languages(options, task)
    kind = getattr(importlib.import_module(home), name)
    original = options.original or options.model
    results: list[TaskResult] = []
    for dtype in compared:
        other = argparse.Namespace(**{**vars(options), "model": original, "dtype": dtype})
        results.append(_measure(kind, other, samples, asked, results))
    results.append(_measure(kind, options, samples, asked, results))
    return results


def print_task_results(results: Sequence[TaskResult], data: Path, *, has_exact: bool) -> None:
    """Prints the table of what `measure_by_data` returned.

    Args:
        results: one row each.
        data: the file of samples.
        has_exact: whether the first one is what others are compared with.
    """
    from rich.console import Console
    from rich.table import Table

    from npu_llm.evaluation.measures import MEASURES

    first = results[0]
    table = Table(pad_edge=False)
    table.add_column("precision")
    for name in first.figures:
        table.add_column(name, justify="right")
    if has_exact:
        table.add_column("loss, points", justify="right")
    for number, one in enumerate(results):
        cells = [one.precision]
        cells += [format(value, MEASURES[name].form) for name, value in one.figures.items()]
        if has_exact:
            cells.append(f"{one.loss(first):+.3f}" if number else "")
        table.add_row(*cells)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"{first.samples:,} samples of {data.name}")
    console.print(table)


def _check_options(options: argparse.Namespace) -> None:
    if options.model is None:
        raise OptionError(
            "--data: must come with --model, whose task says what samples are; got none. Add it.",
            code="eval-data",
        )
    for name in _OF_TEXT:
        if getattr(options, name) is not None:
            raise OptionError(
                f"--{name.replace('_', '-')}: is for models that continue text; got it beside "
                "--data. Omit one of them.",
                code="eval-data",
            )


def _languages(options: argparse.Namespace, task: str) -> dict[str, Any]:
    """Returns arguments of generate for a translating model."""
    if task != _TRANSLATES:
        if options.source is not None or options.to is not None:
            raise OptionError(
                "--from, --to: must be omitted for a model that does not translate; got "
                f"{options.source or options.to}. Omit them.",
                code="language-unknown",
            )
        return {}
    from transformers import AutoTokenizer

    tokenizer = load_beside(AutoTokenizer, options.model, "a tokenizer")
    return asked_languages(tokenizer, options) | {"max_new_tokens": options.max_new_tokens}


def _measure(
    kind: Any,
    options: argparse.Namespace,
    samples: Sequence[dict[str, Any]],
    asked: dict[str, Any],
    before: Sequence[TaskResult],
) -> TaskResult:
    from npu_llm.cli.display import Display
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
        )
    del model
    gc.collect()  # the next one needs the memory
    return result
