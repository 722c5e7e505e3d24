"""`npu-llm info`: what a model is, how much memory it needs, and what would run it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import npu_runtime
from npu_compiler.verification.verdict import Verdict
from npu_llm.checkpoint.facts import ModelFacts, context_length, read_facts
from npu_llm.checkpoint.requirements import (
    available_bytes,
    cache_bytes_per_token,
    estimate,
    weights_bytes,
)
from npu_llm.checkpoint.source import (
    DEFAULT_WEIGHTS,
    ModelSource,
    find_installed_weights,
    find_source,
)
from npu_llm.cli.session import be_quiet
from npu_llm.entries.build import find_entry
from npu_llm.entries.entry import KERNEL_PROGRAM, Entry
from npu_llm.entries.exported import is_exported, open_exported
from npu_llm.entries.verified_loading import read_verdict
from npu_llm.precision import PRECISIONS, cache_dtype
from npu_llm.steps.pipelines import PipelineName, choose_pipeline
from npu_ops.kernel_programs.program import KernelProgram
from npu_ops.kernel_programs.sparse_attention import why_not_sparse

__all__ = ["describe", "main"]

_CONTEXTS = (1024, 4096, 32768)


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and prints what is known about the model; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="npu-llm info",
        description="Shows what a model is, how much memory it needs in each precision, and "
        "whether that is available. No weights are read, and nothing is traced.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="GGUF file, checkpoint folder, exported folder, or name on the hub; by default the "
        f"weights of the installed {DEFAULT_WEIGHTS}",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="trace the model, which takes some seconds, to say whether it runs as kernels, and "
        "which call keeps it from that (default: what the compile cache knows)",
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    options = parser.parse_args(arguments)
    said = describe(options.model, trace=options.trace)
    if options.json:
        print(json.dumps(said, indent=2))
    else:
        _print(said)
    return 0


def describe(name_or_path: str | Path | None, *, trace: bool = False) -> dict[str, Any]:
    """Returns what `npu-llm info --json` prints.

    Args:
        name_or_path: a model; None for the installed weights.
        trace: whether to trace the model for its pipeline.

    Raises:
        ModelError: for a damaged model, or something that is not a model.
        CaptureError: for a model that is traced and cannot be.
    """
    model = _identify(name_or_path)
    facts = model.facts
    device = npu_runtime.device_info()
    known = _known_pipeline(model, device.device, trace=trace)
    kernels = known["pipeline"] == "kernels"
    available = available_bytes()
    contexts = _contexts(facts)
    rows = []
    for name in model.precisions:
        precision = PRECISIONS[name]
        needs = {
            context: estimate(facts, precision, max_context=context, kernels=kernels)
            for context in contexts
        }
        weights, per_token = (
            weights_bytes(facts, precision, kernels=kernels),
            cache_bytes_per_token(facts, precision, kernels=kernels),
        )
        spare = available - weights - needs[contexts[0]].working_bytes
        rows.append(
            {
                "precision": name,
                "computed_in": str(cache_dtype(precision)).removeprefix("torch."),
                "weights_bytes": weights,
                "cache_bytes_per_token": per_token,
                "total_bytes": {
                    str(context): need.running_bytes for context, need in needs.items()
                },
                "first_start_bytes": needs[contexts[0]].first_start_bytes,
                "max_context_that_fits": max(spare // per_token, 0) if per_token else None,
            }
        )
    return {
        "model": model.name,
        "path": str(model.path),
        "kind": model.kind,
        "verification": None if model.verdict is None else str(model.verdict),
        "facts": facts.as_dict(),
        "memory": {"available_bytes": available, "precisions": rows},
        "device": {
            "device": device.device,
            "full_name": device.full_name,
            "reason": device.reason,
            **known,
        },
    }


# Only tracing the model tells.
_EITHER = "kernels, or dynamic if the model has a call without a kernel, which --trace tells"


@dataclass(frozen=True)
class _Model:
    name: str
    path: Path
    kind: str
    facts: ModelFacts
    precisions: tuple[str, ...]
    pipeline: PipelineName | None  # an exported folder's
    verdict: Verdict | None  # on its program
    source: ModelSource | None  # of a model that is not exported
    why_not_kernels: str | None  # of an exported folder
    entry: Entry | None = None  # with its program, if there is one


def _identify(name_or_path: str | Path | None) -> _Model:
    if name_or_path is not None and is_exported(Path(name_or_path).expanduser()):
        entry = open_exported(Path(name_or_path).expanduser())
        facts = ModelFacts(**entry.about["facts"])
        kind = f"exported folder, {entry.precision.name}"
        precisions = (entry.precision.name,)
        verdict = read_verdict(entry)
        return _Model(
            entry.name, entry.folder, kind, facts, precisions, entry.pipeline, verdict,
            None, entry.why_not_kernels, entry,
        )  # fmt: skip
    source = find_installed_weights() if name_or_path is None else find_source(name_or_path)
    kind = "transformers checkpoint" if source.gguf_file is None else "GGUF file"
    facts = read_facts(source)
    names = tuple(PRECISIONS)
    return _Model(source.name, source.path, kind, facts, names, None, None, source, None)


def _known_pipeline(model: _Model, device: str, *, trace: bool) -> dict[str, Any]:
    """Returns which pipeline runs a model here, if that is known, and why not that of kernels."""
    chosen = choose_pipeline(model.pipeline, device)
    reason, is_known = model.why_not_kernels, True
    if model.source is not None and chosen == "kernels":
        if trace:
            reason = _traced(model.source, model.facts)
        else:
            found = (find_entry(model.source, PRECISIONS[name], chosen) for name in PRECISIONS)
            entry = next((one for one in found if one is not None), None)
            is_known = entry is not None
            reason = None if entry is None else entry.why_not_kernels
            model = replace(model, entry=entry)
        chosen = "kernels" if reason is None else "dynamic"
    return {
        "pipeline": chosen,
        "pipeline_is_known": is_known,
        "why_not_kernels": reason,
        "sparse_attention": _sparse_attention(chosen, model.entry),
    }


def _sparse_attention(pipeline: PipelineName, entry: Entry | None) -> str:
    """Returns whether --sparse-attention may be asked for."""
    if pipeline != "kernels":
        return f"no, as the pipeline is {pipeline}"
    if entry is None:
        return "unknown before the first start"
    program = KernelProgram.from_dict(json.loads((entry.folder / KERNEL_PROGRAM).read_text()))
    broken = why_not_sparse(program)
    return "with --sparse-attention K" if broken is None else f"no, as the model {broken}"


def _traced(source: ModelSource, facts: ModelFacts) -> str | None:
    """Traces a model; returns why it is not a kernel program, None if it is."""
    # Heavy, and not needed for anything else here.
    from npu_llm.capture.functional import make_functional
    from npu_llm.capture.step import capture_step
    from npu_llm.checkpoint.loading import load_model
    from npu_llm.entries.kernel_step import refusal_of

    be_quiet()
    model, _ = load_model(source)
    captured = capture_step(model)
    make_functional(captured.graph_module)
    context = facts.context_length or context_length(model.config.get_text_config().to_dict())
    return refusal_of(captured, context)


def _contexts(facts: ModelFacts) -> list[int]:
    """Returns the lengths to show: common ones that the model was made for, and its own."""
    bound = facts.context_length
    if bound is None:
        return list(_CONTEXTS)
    return [context for context in _CONTEXTS if context < bound] + [bound]


def _print(said: dict[str, Any]) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())
    facts, device, memory = said["facts"], said["device"], said["memory"]
    context = facts["context_length"]
    about = Table(show_header=False, pad_edge=False, box=None)
    picked = facts["picked_tokens"]
    sparse = {"attention": f"to {picked:,} tokens that an indexer picks"} if picked else {}
    verified = {"program": said["verification"]} if said["verification"] else {}
    for name, value in {
        "model": f"{said['model']} ({said['kind']})",
        "architecture": facts["architecture"],
        "parameters": f"{facts['parameters'] / 1e6:,.1f} million",
        "layers": f"{facts['layers']}, {facts['hidden_size']:,} wide",
        "heads": f"{facts['heads']} of {facts['head_dim']}, {facts['kv_heads']} of keys and values",
        **sparse,
        "vocabulary": f"{facts['vocabulary']:,} tokens",
        "context": "no limit" if context is None else f"{context:,} tokens",
        "runs on": f"{device['device']}, {device['full_name']} ({device['reason']})",
        "pipeline": _pipeline_text(device),
        "sparse attention": device["sparse_attention"],
        "computes in": " or ".join(
            dict.fromkeys(row["computed_in"] for row in memory["precisions"])
        ),
        **verified,
        "memory": f"{memory['available_bytes'] / 1e9:.1f} GB are available",
    }.items():
        about.add_row(name, str(value))
    console.print(about)
    console.print()
    console.print(_memory_table(memory))


def _pipeline_text(device: dict[str, Any]) -> str:
    reason = device["why_not_kernels"]
    if not device["pipeline_is_known"]:
        return _EITHER
    return str(device["pipeline"]) if reason is None else f"{device['pipeline']}, as {reason}"


def _memory_table(memory: dict[str, Any]) -> Table:
    table = Table(title="memory by precision and context, in GB", title_justify="left")
    table.add_column("precision")
    table.add_column("weights", justify="right")
    for context in memory["precisions"][0]["total_bytes"]:
        table.add_column(f"{int(context):,} tokens", justify="right")
    table.add_column("first start", justify="right")
    table.add_column("fits")
    for row in memory["precisions"]:
        totals = list(row["total_bytes"].values())
        table.add_row(
            row["precision"],
            f"{row['weights_bytes'] / 1e9:.2f}",
            *(f"{total / 1e9:.2f}" for total in totals),
            f"{row['first_start_bytes'] / 1e9:.2f}",
            _fits(row, totals, memory["available_bytes"]),
        )
    return table


def _fits(row: dict[str, Any], totals: list[int], available: int) -> str:
    if all(total <= available for total in totals):
        return "yes" if row["first_start_bytes"] <= available else "once exported elsewhere"
    tokens = row["max_context_that_fits"]
    return f"up to {tokens:,} tokens" if tokens else "no"
