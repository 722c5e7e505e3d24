"""Describes a model: facts, memory needs and pipeline; imports torch only if needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npu_command.host_memory import available_bytes
from npu_command.import_hooks import start_packages
from npu_command.processors import read_processors
from npu_compiler.verification.result import Verdict
from npu_llm.checkpoint.facts import ModelFacts, context_length, read_facts
from npu_llm.checkpoint.requirements import (
    cache_bytes_per_token,
    estimate,
    weights_bytes,
)
from npu_llm.checkpoint.source import ModelSource, find_installed_weights, find_source
from npu_llm.choices import FLOATS_AND_INTEGERS, PipelineName, choose_pipeline
from npu_llm.errors import ModelError
from npu_llm.kv_cache.static_layout import StepSizes
from npu_llm.models.compile_cache import find_entry
from npu_llm.models.entry import KERNEL_PROGRAM, VARIANTS, Entry, is_exported, open_exported
from npu_llm.precision import PRECISIONS, cache_dtype_name
from npu_llm.verification.kept_verdict import VERDICT, read_kept
from npu_ops.kernel_programs.program import KernelProgram
from npu_ops.kernel_programs.sparse_attention import why_not_sparse
from npu_runtime.info import device_info

__all__ = ["describe"]

_CONTEXTS = (1024, 4096, 32768)


def describe(
    name_or_path: str | Path | None,
    *,
    trace: bool = False,
    target: str | None = None,
    **files: Any,
) -> dict[str, Any]:
    """Returns the document of `npu-llm info --json`.

    Args:
        name_or_path: a model; None for the installed weights.
        trace: whether to trace the model for its pipeline.
        target: the NPU whose compiler estimates the model's speed; None for no estimate.
        files: trust_remote_code and ignore_unexpected, as in LoadOptions.

    Raises:
        ModelError: for a damaged model, something that is not a model, or a checkpoint that cannot
            be loaded; [model-kind] for the estimate of an exported folder.
        CaptureError: for a model that cannot be traced.
        npu_compiler.errors.OptionError: [unknown-target] for an unknown NPU generation.
    """
    model = _identify(name_or_path)
    speed = None if target is None else _estimated(model, target, files)
    facts = model.facts
    device = device_info()
    known = _known_pipeline(model, device.device, trace=trace, files=files)
    if model.source is not None and not (trace or known["pipeline_is_known"]):
        _check_loadable(model.source, files)
    kernels = known["pipeline"] == "kernels"
    available = available_bytes()
    contexts = _contexts(facts)
    rows = []
    default = _default_precision(model, device.device, known["pipeline"])
    names = model.precisions
    if model.source is not None:
        own = "file" if facts.own_precision == "file" and kernels else None
        names = tuple(name for name in names if name in (own, *FLOATS_AND_INTEGERS))
    for name in names:
        precision = PRECISIONS[name]
        computed_in = cache_dtype_name(precision)
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
                "is_default": name == default,
                "computed_in": computed_in,
                "weights_bytes": weights,
                "cache_bytes_per_token": per_token,
                "total_bytes": {
                    str(context): need.running_bytes for context, need in needs.items()
                },
                "quantization": facts.how_weights_run(precision, known["pipeline"], computed_in),
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
        "processors": str(read_processors()),
        "memory": {"available_bytes": available, "precisions": rows},
        "device": {
            "device": device.device,
            "full_name": device.full_name,
            "reason": device.reason,
            **known,
        },
        "estimate": speed,
    }


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
        facts = entry.facts
        kind = f"exported folder, {entry.precision.name}"
        precisions = (entry.precision.name,)
        verdict = _verdict(entry)
        return _Model(
            entry.name, entry.folder, kind, facts, precisions, entry.pipeline, verdict,
            None, entry.why_not_kernels, entry,
        )  # fmt: skip
    source = find_installed_weights() if name_or_path is None else find_source(name_or_path)
    kind = "transformers checkpoint" if source.gguf_file is None else "GGUF file"
    facts = read_facts(source)
    names = tuple(PRECISIONS)
    return _Model(source.name, source.path, kind, facts, names, None, None, source, None)


def _default_precision(model: _Model, device: str, pipeline: PipelineName) -> str:
    """Returns the name of the precision without --dtype."""
    if model.source is None:
        return model.precisions[0]
    is_for_npus = device.startswith("NPU") and pipeline == "static"
    return model.facts.default_precision(pipeline, is_for_npus=is_for_npus)


def _verdict(entry: Entry) -> Verdict:
    """Returns the verdict on an entry's program; in the static pipeline, that for one token."""
    folder = entry.compiled.folder
    if entry.pipeline == "kernels":
        verdicts = sorted(folder.glob(f"kernels-*/{VERDICT}"))
        folder = verdicts[0].parent if verdicts else folder
    if entry.static_layout is not None:
        first = entry.static_sizes.capacities[0]
        folder = folder / VARIANTS / str(StepSizes(1, first, 1))
    return read_kept(folder) or Verdict("unchecked", "no verdict was written")


def _check_loadable(source: ModelSource, files: Mapping[str, Any]) -> None:
    """Raises as the first start of a model does for its config and tensors."""
    # Late imports: a model that was started before needs no check.
    start_packages()
    import transformers

    from npu_llm.checkpoint.loading import check_loadable
    from npu_llm.cli.session import be_quiet
    from npu_llm.tasks.auto_model import find_task

    be_quiet()
    task = find_task(source.path)
    check_loadable(source, auto=getattr(transformers, task), **files)


def _known_pipeline(
    model: _Model, device: str, *, trace: bool, files: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the pipeline that runs a model here, if known, and why it is not that of kernels."""
    chosen = model.pipeline or choose_pipeline(None, device)
    reason, is_known = model.why_not_kernels, True
    if model.source is not None and chosen == "kernels":
        if trace:
            reason = _traced(model.source, model.facts, files)
        else:
            entry = find_entry(model.source, PRECISIONS.values(), chosen)
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
    """Returns whether the model supports --sparse-attention."""
    if pipeline != "kernels":
        return f"no, because the pipeline is {pipeline}"
    if entry is None:
        return "unknown before the first start"
    program = KernelProgram.from_dict(json.loads((entry.folder / KERNEL_PROGRAM).read_text()))
    broken = why_not_sparse(program)
    return "with --sparse-attention K" if broken is None else f"no, because the model {broken}"


def _traced(source: ModelSource, facts: ModelFacts, files: Mapping[str, Any]) -> str | None:
    """Traces a model; returns why it is not a kernel program, or None if it is one."""
    # Late imports, needed for nothing else here.
    start_packages()
    from npu_llm.capture.functional import make_functional
    from npu_llm.capture.step import capture_step
    from npu_llm.checkpoint.loading import load_model
    from npu_llm.cli.session import be_quiet
    from npu_llm.models.kernel_step import refusal_of

    be_quiet()
    model, _ = load_model(source, **files)
    captured = capture_step(model)
    make_functional(captured.graph_module)
    context = facts.context_length or context_length(model.config.get_text_config().to_dict())
    return refusal_of(captured, context)


def _estimated(model: _Model, target: str, files: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the compiler's estimate of a model's speed on an NPU."""
    # Late imports of OpenVINO and torch, needed for nothing else here.
    from npu_compiler.target_compiler import ESTIMATE_NOTE, find_target

    chosen = find_target(target)
    if model.source is None:
        raise ModelError(
            f"`MODEL` must be a checkpoint or a GGUF file for --target, got {model.kind} "
            f"{model.path}. Pass the model that it was exported from.",
            code="model-kind",
        )
    start_packages()
    from npu_llm.cli.session import be_quiet
    from npu_llm.models.load_options import LoadOptions
    from npu_llm.models.readiness import estimate_static_programs

    be_quiet()
    found = estimate_static_programs(model.path, LoadOptions(**files), target=target)
    return {
        "target": str(chosen),
        "tokens_per_s": found.tokens_per_s,
        "ttft_s": found.prefill.seconds,
        "prompt_tokens": found.prompt_tokens,
        "missing": found.decode.missing or found.prefill.missing,
        "note": ESTIMATE_NOTE,
    }


def _contexts(facts: ModelFacts) -> list[int]:
    """Returns the context lengths to show: common ones below the model's, and the model's."""
    bound = facts.context_length
    if bound is None:
        return list(_CONTEXTS)
    return [context for context in _CONTEXTS if context < bound] + [bound]
