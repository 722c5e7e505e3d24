"""From a model's files to a program: from the compile cache, or by building its entry."""

from __future__ import annotations

import contextlib
import gc
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npu_command.host_memory import return_memory
from npu_compiler.errors import LoweringError
from npu_llm.capture.compression import Compression
from npu_llm.checkpoint.facts import ModelFacts, needs_long_ropes, read_facts
from npu_llm.checkpoint.requirements import check_disk, check_memory
from npu_llm.checkpoint.source import ModelSource, find_source
from npu_llm.choices import PipelineName
from npu_llm.config import read_settings
from npu_llm.models.compile_cache import CompileCache, entry_key, refer, surroundings
from npu_llm.models.entry import Entry
from npu_llm.models.load import LoadedModel, Pipeline, load_entry
from npu_llm.models.load_options import LoadOptions
from npu_llm.progress import Progress

if TYPE_CHECKING:
    from npu_llm.models.known_model import KnownModel
    from npu_llm.models.traced_model import TracedModel

__all__ = ["fill_entry", "prepare"]


def prepare(name_or_path: str | Path, options: LoadOptions) -> LoadedModel[Pipeline]:
    """Prepares a model to run.

    Args:
        name_or_path: what the user passed; see npu_llm.checkpoint.source.find_source.
        options: how to start it.

    Raises:
        MemoryNeedError: [memory-need] if it does not fit into memory.
        CacheError: [disk-need] if the cache has no room for it.
        OptionError: [max-context], [static-kv-cache], see LoadOptions.
        WrongResultError: [wrong-result] if the program's results differ from torch's.
    """
    options = options.for_device()
    pipeline = options.pipeline_here
    options.check_pipeline(pipeline)
    progress = Progress(options.on_progress)
    here = surroundings()
    root = options.cache_folder or read_settings().cache_dir
    cache = CompileCache(root)
    with progress.stage("check"):
        source = find_source(name_or_path, gguf_file=options.gguf_file, hub=options.hub)
        long_ropes = needs_long_ropes(source, options.max_context)
        known = read_facts(source) if options.needs_facts else None
        names: tuple[PipelineName, ...] = ("kernels", "dynamic", pipeline)
        adapted = options.adapted_modules
        keys = {
            name: entry_key(
                source, options.precision_for(known, name), name, here, adapted,
                is_for_npus=options.is_for_npus, ignore_unexpected=options.ignore_unexpected,
                has_long_ropes=long_ropes,
            )
            for name in names
        }  # fmt: skip
        entry = cache.find(keys[pipeline])
        if entry is None and pipeline == "dynamic":
            entry = _made_instead_of_kernels(cache, keys["kernels"])
        facts = (known or read_facts(source)) if entry is None else entry.facts
        bound = facts.longest_context if entry is None else entry.model_context
        options.check_context(source.name, bound)
        precision = options.precision_for(facts, pipeline) if entry is None else entry.precision
        check_memory(
            source.name, facts, precision,
            max_context=options.max_context, kv_cache=options.kept_as, is_built=entry is not None,
            kernels=(pipeline if entry is None else entry.pipeline) == "kernels",
            has_bounds=options.chosen_keys is not None,
        )  # fmt: skip
        if entry is None:
            check_disk(source.name, facts, precision, root, kernels=pipeline == "kernels")
    found = entry is not None
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
        assert entry is not None, "an entry that was just written is there"
        options.check_context(source.name, entry.model_context)
    options.check_kernels(entry.why_not_kernels)
    options.check_pipeline(entry.pipeline)
    build_time_s = 0.0 if found else time.perf_counter() - started
    with progress.stage("compile"):
        entry = options.applied_to(entry)
        loaded = load_entry(entry, entry.compiled, verify=options.verified)
    return loaded.reporting(
        from_cache=found and loaded.report.from_cache,
        entry_from_cache=found,
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
        options: how the model is to run.
        progress: where to report.
        facts: the files' facts, which are kept in the entry.
        compression: how weights of few bits are made; None for the defaults.
        dynamic: the same model's entry for the dynamic pipeline, to refer to if it is no kernel
            program; None to write what that has.
        device: OpenVINO's name of the device that it is for; by default the one in use.

    Raises:
        CaptureError: if the model cannot be captured.
        OptionError: [quantize-text], see npu_llm.capture.compression.
        MemoryNeedError: [memory-need] if it is no kernel program, and does not fit otherwise.
    """
    pipeline = options.pipeline_here
    precision = options.precision_for(facts, pipeline)
    long_ropes = needs_long_ropes(source, options.max_context)
    compression = (compression or Compression()).suited_to(pipeline)
    known: KnownModel | None = None
    traced: TracedModel | None = None
    is_plain = not options.adapted_modules and compression.text is None
    if source.gguf_file is not None and pipeline == "kernels" and is_plain:
        from npu_llm.models.known_model import find_known  # not needed for a start from the cache

        with progress.stage("weights"):
            known = find_known(source)
    if known is None:
        with progress.stage("imports"):
            from npu_llm.models.traced_model import load_traced  # needs transformers
        traced = load_traced(source, options, progress, has_long_ropes=long_ropes)
    from npu_llm.models.kernel_step import save_kernel_step, why_not

    model = known or traced
    assert model is not None, "it is one of both"
    files = model.save_files(folder)
    # If the files set no limit, the model's class may.
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
            with progress.stage("lower"):
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
            check_memory(  # again: OpenVINO's programs need more
                source.name, facts, precision,
                max_context=options.max_context, kv_cache=options.kept_as, is_built=False,
            )  # fmt: skip
    if traced is not None and about.get("pipeline") != "kernels":
        from npu_llm.models.lower_step import save_step  # needs OpenVINO's Python package

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
    del model, known
    if traced is not None:
        del traced
        gc.collect()  # a model of transformers has circles of references
    return_memory()


def _made_instead_of_kernels(cache: CompileCache, key: str) -> Entry | None:
    """Returns the dynamic entry that was made where a kernel program was wanted, if there is one.

    Args:
        cache: where to look.
        key: of the kernel program.
    """
    entry = cache.find(key)
    if entry is None or entry.pipeline != "dynamic":
        return None
    about = {name: value for name, value in entry.about.items() if name != "why_not_kernels"}
    return replace(entry, about=about)
