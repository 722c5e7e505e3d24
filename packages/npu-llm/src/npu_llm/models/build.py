"""Prepares a model's program from its files: loads a cache entry, or builds one."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import shutil
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from npu_command.host_memory import return_memory
from npu_compiler.errors import LoweringError
from npu_llm.capture.compression import Compression
from npu_llm.checkpoint.facts import ModelFacts, needs_long_ropes
from npu_llm.checkpoint.requirements import check_disk, check_memory
from npu_llm.checkpoint.source import ModelSource
from npu_llm.choices import PipelineName
from npu_llm.config import read_settings
from npu_llm.models.compile_cache import make_key, refer
from npu_llm.models.entry import Entry
from npu_llm.models.load import LoadedModel, Pipeline, load_entry
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.lookup import locate
from npu_llm.progress import Progress

if TYPE_CHECKING:
    from npu_llm.models.known_model import KnownModel
    from npu_llm.models.traced_model import TracedModel

__all__ = ["fill_entry", "prepare"]


def prepare(name_or_path: str | Path, options: LoadOptions) -> LoadedModel[Pipeline]:
    """Prepares a model to run.

    Args:
        name_or_path: the user's argument; see npu_llm.checkpoint.source.find_source.
        options: load options.

    Raises:
        MemoryNeedError: [memory-need] if it does not fit into memory.
        CacheError: [disk-need] if it does not fit into the cache.
        OptionError: [max-context], [static-kv-cache], see LoadOptions.
        WrongResultError: [wrong-result] if the program's results differ from torch's.
    """
    progress = Progress(options.on_progress)
    with progress.stage("check"):
        found = locate(name_or_path, options)
        options, pipeline, source, entry = found.options, found.pipeline, found.source, found.entry
        cache, keys, facts = found.cache, found.keys, found.facts
        if entry is None:
            precision = options.precision_for(facts, pipeline)
            check_disk(source.name, facts, precision, cache.root, kernels=pipeline == "kernels")
    is_cached = entry is not None
    started = time.perf_counter()
    if entry is None:
        dynamic = cache.find(keys["dynamic"]) if pipeline == "kernels" else None
        with contextlib.ExitStack() as created:
            folder = created.enter_context(cache.create(keys[pipeline]))
            fill_entry(
                folder, source, options, progress, facts=facts, dynamic=dynamic,
                device="NPU" if options.is_for_npus else None,
            )  # fmt: skip
            with progress.stage("save"):
                created.close()
        entry = cache.find(keys[pipeline])
        assert entry is not None, "the new entry is readable"
        options.check_context(source.name, entry.model_context)
    options.check_kernels(entry.why_not_kernels)
    options.check_pipeline(entry.pipeline)
    build_time_s = 0.0 if is_cached else time.perf_counter() - started
    with progress.stage("compile"):
        entry = options.applied_to(entry)
        loaded = load_entry(entry, entry.compiled, verify=options.verified)
    return loaded.reporting(
        from_cache=is_cached and loaded.report.from_cache,
        entry_from_cache=is_cached,
        build_time_s=build_time_s,
    )


def fill_entry(
    folder: Path,
    source: ModelSource,
    options: LoadOptions,
    progress: Progress,
    *,
    facts: ModelFacts,
    compression: Compression | None = None,
    dynamic: Entry | None = None,
    device: str | None = None,
) -> None:
    """Writes an entry without its compiled form, which the first load adds.

    Args:
        folder: an empty folder.
        source: the model's files.
        options: load options.
        progress: receives the stages.
        facts: the files' facts, which are stored in the entry.
        compression: quantization options; None for the defaults.
        dynamic: entry of the same model for the dynamic pipeline, to refer to if the model is not a
            kernel program; None to write its program here.
        device: OpenVINO's name of the target device; by default the one in use.

    Raises:
        CaptureError: if the model cannot be traced.
        OptionError: [quantize-text], see npu_llm.capture.compression.
        MemoryNeedError: [memory-need] if it is not a kernel program and does not fit into memory
            otherwise.
    """
    pipeline = options.pipeline_here
    precision = options.precision_for(facts, pipeline)
    long_ropes = needs_long_ropes(source, options.max_context)
    compression = (compression or Compression()).suited_to(pipeline)
    if compression.text is not None:
        kept = _rounding_folder(source, pipeline, compression)
        compression = replace(compression, kept=kept, advance=progress.advance)
    known: KnownModel | None = None
    traced: TracedModel | None = None
    is_plain = not options.adapted_modules and compression.text is None
    if source.gguf_file is not None and pipeline == "kernels" and is_plain:
        from npu_llm.models.known_model import find_known  # not needed to load from the cache

        with progress.stage("weights"):
            known = find_known(source)
    if known is None:
        with progress.stage("imports"):
            from npu_llm.models.traced_model import load_traced  # imports transformers
        traced = load_traced(source, options, progress, has_long_ropes=long_ropes)
    from npu_llm.models.kernel_step import save_kernel_step, why_not

    model = known or traced
    assert model is not None, "it is one of the two"
    files = model.save_files(folder)
    # If the files set no limit, the model's class may set one.
    context = (facts.longest_context if long_ropes else facts.context_length) or (
        model.context_length
    )
    about = {
        "name": source.name,
        "source": str(source.path),
        "precision": precision.name,
        "trust_remote_code": options.trust_remote_code,
        "ignore_unexpected": options.ignore_unexpected,
        "architecture": model.architecture,
        "context_length": context,
        "vocabulary": model.vocabulary,
        **files,
        "facts": facts.as_dict(),
    }
    if pipeline == "kernels":
        try:
            with progress.stage("lower" if compression.text is None else "compress"):
                step = model.kernel_step(context, precision, compression)
            about |= save_kernel_step(
                step,
                folder,
                precision=precision,
                progress=progress,
                compression=compression,
            )
        except LoweringError as refusal:
            about["why_not_kernels"] = why_not(refusal)
            options.check_kernels(why_not(refusal))
            if dynamic is not None:
                refer(folder, dynamic, why_not_kernels=why_not(refusal))
                return
            precision = options.precision_for(facts, "dynamic")
            about["precision"] = precision.name
            check_memory(  # again: OpenVINO's programs need more memory
                source.name, facts, precision,
                max_context=options.max_context, kv_cache=options.kept_as, is_built=False,
            )  # fmt: skip
    if traced is not None and about.get("pipeline") != "kernels":
        from npu_llm.models.lower_step import save_step  # imports OpenVINO

        about |= save_step(
            traced.model,
            traced.captured,
            folder / "step.xml",
            precision=precision,
            pipeline="dynamic" if pipeline == "kernels" else pipeline,
            progress=progress,
            weights=traced.weights,
            compression=compression,
            context=context,
            tokenizer=traced.tokenizer,
            device=device,
        )
    (folder / "about.json").write_text(json.dumps(about))
    if compression.kept is not None:
        shutil.rmtree(compression.kept, ignore_errors=True)
    del model, known
    if traced is not None:
        del traced
        gc.collect()  # a transformers model has reference cycles
    return_memory()


def _rounding_folder(
    source: ModelSource, pipeline: PipelineName, compression: Compression
) -> Path | None:
    """Returns a temporary folder for weights rounded with a text; None without a text."""
    assert compression.text is not None
    try:
        text = hashlib.sha256(compression.text.read_bytes()).hexdigest()
    except OSError:  # the caller reports it
        return None
    versions = {name: metadata.version(name) for name in ("npu-compiler", "openvino", "torch")}
    parts = {
        "files": source.identity(),
        "pipeline": pipeline,
        "text": text,
        "group_size": compression.group_size,
        "symmetric": compression.symmetric,
        "versions": versions,
    }
    return read_settings().cache_dir / f".{make_key(f'rounding-{source.name}', parts)}"
