"""Runs every decoder of the table and compares its tokens with transformers'; `nox -s decoders`.

Each is made small, with seeded random weights, saved as safetensors and loaded by
NPUModelForCausalLM as a user does, in float32. A model is *equal* if its greedy tokens after a
prompt of one row, and of a batch with a padded row, equal transformers'. Any other outcome than
tokens or an error with a code is a crash; each crash affects only one model.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from decoder_table import DECODERS

__all__ = ["Finding", "first_line", "in_processes", "make", "page", "survey"]

_PROMPT, _NEW, _PADDING = 21, 24, 5
_NOISE = 0.1
_VERDICTS = ("equal", "refused", "differs", "crash")


@dataclass(frozen=True)
class Finding:
    """The result of one decoder.

    Attributes:
        name: transformers' model_type.
        verdict: "equal", "refused", "differs" or "crash".
        pipeline: its execution mode; empty if it did not run.
        detail: code and reason of a refusal, the first differing token, or the exception.
        time_s: seconds for loading and generating.
    """

    name: str
    verdict: str
    pipeline: str
    detail: str
    time_s: float


def make(name: str) -> Any:
    """Returns a small model of transformers with seeded random weights, in evaluation mode.

    Biases and the scales of norms get noise, since equal values would hide errors.
    """
    import torch
    import transformers

    prefix, settings = DECODERS[name]
    torch.manual_seed(5)
    config = getattr(transformers, f"{prefix}Config")(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=_NOISE)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def run(name: str) -> Finding:
    """Compares one decoder's tokens with transformers'; does not raise."""
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    pipeline = ""

    def found(verdict: str, detail: str = "") -> Finding:
        return Finding(name, verdict, pipeline, detail, time.perf_counter() - started)

    try:
        from npu_llm import NPUModelForCausalLM
        from npu_runtime.errors import NpuError

        with tempfile.TemporaryDirectory() as folder:
            reference = make(name)
            reference.save_pretrained(folder)
            started = time.perf_counter()
            try:
                model = NPUModelForCausalLM.from_pretrained(
                    folder, dtype="float32", cache_dir=Path(folder) / "cache"
                )
                pipeline = model.pipeline
                for kind, difference in _differences(reference, model):
                    if difference is not None:
                        return found("differs", f"{kind}: {difference}")
            except NpuError as refusal:
                return found("refused", first_line(refusal))
        return found("equal")
    except Exception as failure:  # noqa: BLE001 - whatever a model's code raises is the finding
        return found("crash", f"{type(failure).__name__}: {first_line(failure)}")


def _differences(reference: Any, model: Any) -> Iterable[tuple[str, str | None]]:
    """Yields each kind of prompt, and the first differing token; None if there is none."""
    import torch

    torch.manual_seed(1)
    ids = torch.randint(3, 97, (2, _PROMPT))
    yield "one row", _first_difference(_answer(reference, ids[:1]), _answer(model, ids[:1]))
    # A single row is the reference of a padded one: padding must not change it.
    short = ids[1:, _PADDING:]
    mask = torch.ones_like(ids)
    mask[1, :_PADDING] = 0
    padded = torch.where(mask.bool(), ids, 0)
    rows = _answer(model, padded, mask)
    expected = torch.cat([_answer(reference, ids[:1]), _answer(reference, short)])
    yield "a padded batch", _first_difference(expected, rows)


def _answer(model: Any, ids: Any, mask: Any = None) -> Any:
    import torch

    mask = torch.ones_like(ids) if mask is None else mask
    with torch.no_grad():
        tokens = model.generate(
            ids, attention_mask=mask, max_new_tokens=_NEW, do_sample=False, eos_token_id=None
        )
    return tokens[:, ids.shape[1] :]


def _first_difference(expected: Any, got: Any) -> str | None:
    if expected.tolist() == got.tolist():
        return None
    row, token = (int(place) for place in (expected != got).nonzero()[0])
    wanted, received = int(expected[row, token]), int(got[row, token])
    return f"token {token} of row {row} must be {wanted}, got {received}"


def first_line(failure: BaseException) -> str:
    """Returns the first line of an exception's text."""
    return (str(failure).strip().splitlines() or [""])[0]


def survey(names: Sequence[str]) -> Iterable[Finding]:
    """Yields the finding of each decoder, in order."""
    for name, found, time_s in in_processes(run, names):
        yield found or Finding(name, "crash", "", "its process died", time_s)


def in_processes(
    work: Callable[[Any], Any], items: Iterable[Any]
) -> Iterator[tuple[Any, Any | None, float]]:
    """Yields each item with its result, in order; a process handles items until one crashes it.

    The result of an item is None if its process crashed; the last number is its seconds.
    """
    with contextlib.ExitStack() as stack:
        pool: ProcessPoolExecutor | None = None
        for item in items:
            if pool is None:
                pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
                stack.callback(pool.shutdown)
            started = time.perf_counter()
            found = None
            try:
                found = pool.submit(work, item).result()
            except BrokenProcessPool:
                pool = None
            yield item, found, time.perf_counter() - started


def page(findings: Sequence[Finding]) -> str:
    """Returns the page docs/reference/decoders.md of a run."""
    lines = [
        "# Supported decoders",
        "",
        f"Generated by `nox -s decoders` on {datetime.date.today()}.",
        "",
        f"- Versions: {versions()}",
        f"- {len(findings)} decoders of transformers: {counted(findings)}.",
        "",
        (
            "Each is built from transformers' classes with random weights, small enough to run in "
            "seconds, saved as safetensors, and loaded by `NPUModelForCausalLM` in float32. "
            f"*Equal* means that {_NEW} greedy tokens after a prompt of {_PROMPT} tokens, and "
            "after a batch with a padded row, are those of transformers. *Refused* means an error "
            "with a code, which [Errors](errors.md) explains. *Pipeline* is how the steps run: by "
            "npu-ops' kernels, or as one OpenVINO program for all sizes."
        ),
        "",
        "| Model | Verdict | Pipeline | Seconds |",
        "|---|---|---|---|",
    ]
    for one in findings:
        verdict = f"{one.verdict}: {one.detail}" if one.detail else one.verdict
        cells = (one.name, verdict.replace("|", "\\|"), one.pipeline, f"{one.time_s:.1f}")
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def versions() -> str:
    """Returns the versions in a run, for its page."""
    packages = ("torch", "transformers", "openvino", "npu-compiler", "npu-llm")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)


def counted(findings: Sequence[Any]) -> str:
    """Returns the number of results with each verdict."""
    counts = Counter(one.verdict for one in findings)
    return ", ".join(f"{counts[name]} {name}" for name in _VERDICTS if counts[name])


def main(arguments: Sequence[str]) -> int:
    """Runs the named decoders, or all; returns 1 if one differs or crashes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="transformers' model types; all by default")
    parser.add_argument("--page", type=Path, help="write the findings to this page")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(DECODERS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(sorted(DECODERS))}")
    findings = []
    for one in survey(options.names or sorted(DECODERS)):
        findings.append(one)
        print(f"{one.name:22} {one.verdict:8} {one.pipeline:8} {one.time_s:6.1f} s  {one.detail}")
        sys.stdout.flush()
    print(f"{len(findings)} decoders: {counted(findings)}")
    if options.page is not None:
        options.page.write_text(page(findings))
    return int(any(one.verdict in ("differs", "crash") for one in findings))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
