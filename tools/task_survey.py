"""Runs every model of the table of tasks and compares it with transformers'; `nox -s tasks`.

Each is made small, with seeded random weights, saved as safetensors and loaded by the class for its
task as a user does, in float32. A model is *equal* if its results, for other sizes than the traced
ones, agree with transformers within 1e-4 of the largest; a generating model, if its greedy tokens
are the same.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoder_survey import counted, first_line, in_processes, versions
from task_table import CONFIGS, TASKS, WRITING

__all__ = ["Finding", "make", "page", "run"]

_NOISE, _NEW, _MOST = 0.05, 16, 1e-4
_SITE = re.compile(r"/\S*/site-packages/")  # where packages are, here


@dataclass(frozen=True)
class Finding:
    """The result of a family in a task.

    Attributes:
        task: the name of our class without NPUModelFor.
        family: transformers' model_type.
        verdict: "equal", "refused", "differs" or "crash".
        detail: code and reason of a refusal, the difference, or the exception.
        time_s: seconds for loading and running.
    """

    task: str
    family: str
    verdict: str
    detail: str
    time_s: float


def make(task: str, family: str) -> Any:
    """Returns a small model of transformers with seeded random weights, in evaluation mode."""
    import torch
    import transformers

    prefix, settings = CONFIGS[family]
    if settings.get("backbone_config") == "resnet":
        backbone = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[1] * 4,
            out_features=["stage4"],
        )  # fmt: skip
        settings = {**settings, "backbone_config": backbone}
    config = getattr(transformers, f"{prefix}Config")(**settings)
    config.num_labels = 2 if task == "QuestionAnswering" else 3
    torch.manual_seed(3)
    model = _auto(task).from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Makes results differ by more than rounding.
            if task in WRITING:
                parameter.mul_(4 if parameter.dim() > 1 else 1)
            else:
                parameter.add_(torch.randn_like(parameter) * _NOISE)
    return model


def run(key: tuple[str, str]) -> Finding:
    """Compares a task's model with transformers'; does not raise."""
    warnings.simplefilter("ignore")
    task, family = key
    started = time.perf_counter()

    def found(verdict: str, detail: str = "") -> Finding:
        return Finding(task, family, verdict, detail, time.perf_counter() - started)

    try:
        import npu_llm
        from npu_runtime.errors import NpuError

        with tempfile.TemporaryDirectory() as folder:
            make(task, family).save_pretrained(folder)
            # Loaded again: computed positions have not been scaled.
            reference = _auto(task).from_pretrained(folder).eval()
            started = time.perf_counter()
            kind = getattr(npu_llm, f"NPUModelFor{task}")
            try:
                model = kind.from_pretrained(
                    folder, dtype="float32", cache_dir=Path(folder) / "cache"
                )
                compare = _compare_tokens if task in WRITING else _compare_results
                difference = compare(reference, model)
            except NpuError as refusal:
                return found("refused", _SITE.sub("", first_line(refusal)))
        return found("equal") if difference is None else found("differs", difference)
    except Exception as failure:  # noqa: BLE001 - whatever a model's code raises is the finding
        return found("crash", f"{type(failure).__name__}: {first_line(failure)}")


def _auto(task: str) -> Any:
    import transformers

    name = "AutoModel" if task == "FeatureExtraction" else f"AutoModelFor{task}"
    return getattr(transformers, name)


def _compare_results(reference: Any, model: Any) -> str | None:
    import torch
    from torch.utils import _pytree as pytree

    for given in _calls(reference):
        with torch.no_grad():
            expected = pytree.tree_leaves(dict(reference(**given)))
        for number, (one, right) in enumerate(
            zip(pytree.tree_leaves(dict(model(**given))), expected, strict=True)
        ):
            if not isinstance(right, torch.Tensor):
                continue
            scale = float(right.abs().max())
            error = float((one - right).abs().max())
            if not error <= _MOST * scale:
                return f"result {number} differs by {error / scale:.1e} of the largest"
    return None


def _calls(reference: Any) -> Iterator[dict[str, Any]]:
    """Yields inputs of other sizes than the traced ones."""
    import torch

    from npu_llm.tasks.building import make_example

    example = make_example(reference)
    draws = torch.Generator().manual_seed(9)
    for batch, change in ((1, -1), (4, 1)):
        given = {}
        for name, tensor in example.inputs.items():
            varying = example.dynamic.get(name, ())
            shape = [
                _other_size(size, batch, change, dim) if dim in varying else size
                for dim, size in enumerate(tensor.shape)
            ]
            if tensor.is_floating_point():
                given[name] = torch.randn(shape, generator=draws)
            elif name == "input_ids":
                given[name] = torch.randint(5, 90, shape, generator=draws)
            elif "mask" in name:
                given[name] = torch.ones(shape, dtype=tensor.dtype)
                if batch > 1:
                    given[name][-1, shape[1] * 2 // 3 :] = 0
            else:
                given[name] = torch.zeros(shape, dtype=tensor.dtype)
        yield given


def _other_size(size: int, batch: int, change: int, dim: int) -> int:
    if dim == 0:
        return batch
    # The sides of images remain multiples of the convolutions' divisors.
    return size + change * (64 if size >= 200 and size % 32 == 0 else size // 3)


def _compare_tokens(reference: Any, model: Any) -> str | None:
    import torch

    torch.manual_seed(2)
    if reference.main_input_name == "input_ids":
        ids = torch.randint(3, 97, (3, 11))
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        ids[1, -4:] = reference.config.pad_token_id
        given["attention_mask"][1, -4:] = 0
    elif reference.main_input_name == "input_features":
        config = reference.config
        shape = (2, config.num_mel_bins, 2 * config.max_source_positions)
        given = {"input_features": torch.randn(shape)}
    else:
        given = {"input_values": torch.randn(2, 8000)}
    asked = {"max_new_tokens": _NEW, "do_sample": False, "num_beams": 1}
    with torch.no_grad():
        expected = reference.generate(**given, **asked)
    got = model.generate(**given, **asked)
    if expected.tolist() == got.tolist():
        return None
    return f"tokens: {expected.tolist()[0][:6]} must be first, got {got.tolist()[0][:6]}"


def page(findings: Sequence[Finding]) -> str:
    """Returns the page docs/reference/tasks.md of a run."""
    lines = [
        "# Supported tasks",
        "",
        f"Generated by `nox -s tasks` on {datetime.date.today()}.",
        "",
        f"- Versions: {versions()}",
        f"- {len(findings)} models of transformers: {counted(findings)}.",
        "",
        (
            "Each is built from transformers' classes with random weights, small enough to run in "
            "seconds, saved as safetensors, and loaded by the class for its task in float32. "
            "*Equal* means that results for calls of two other sizes, one with padding, are those "
            f"of transformers within {_MOST:.0e} of the largest number; for a model that generates "
            f"text, that {_NEW} greedy tokens are the same. *Refused* means an error with a code, "
            "which [Errors](errors.md) explains. For models that continue text, see [Supported "
            "decoders](decoders.md)."
        ),
    ]
    for task in dict.fromkeys(one.task for one in findings):
        lines += [
            "",
            f"## NPUModelFor{task}",
            "",
            "| Model | Verdict | Seconds | Reason |",
            "|---|---|---|---|",
        ]
        for one in findings:
            if one.task == task:
                cells = (one.family, one.verdict, f"{one.time_s:.1f}", one.detail)
                row = " | ".join(cell.replace("|", "\\|") for cell in cells)
                lines.append(f"| {row} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Runs the named tasks or families, or all; returns 1 if one differs or crashes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="tasks such as CTC, or transformers' model types; all by default"
    )
    parser.add_argument("--page", type=Path, help="write the findings to this page")
    options = parser.parse_args(arguments)
    keys = [(task, family) for task, families in TASKS.items() for family in families]
    unknown = sorted(set(options.names) - {name for key in keys for name in key})
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(sorted(TASKS))}")
    chosen = [key for key in keys if not options.names or set(key) & set(options.names)]
    findings = []
    for key, one, time_s in in_processes(run, chosen):
        finding = one or Finding(*key, "crash", "its process died", time_s)
        findings.append(finding)
        print(
            f"{finding.task:28} {finding.family:24} {finding.verdict:8} {finding.time_s:6.1f} s  "
            f"{finding.detail}"
        )
        sys.stdout.flush()
    print(f"{len(findings)} models: {counted(findings)}")
    if options.page is not None:
        options.page.write_text(page(findings))
    return int(any(one.verdict in ("differs", "crash") for one in findings))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
