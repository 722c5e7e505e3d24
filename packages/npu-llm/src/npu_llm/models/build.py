"""From a model's files to a program: from the compile cache, or by building its entry."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import npu_runtime
from npu_compiler.errors import LoweringError
from npu_compiler.programs.blobs import AheadBlobs
from npu_compiler.verification.result import Verdict
from npu_llm.adapters.lora import common_rank, idle_inputs, port_shapes
from npu_llm.capture.compression import Compression
from npu_llm.checkpoint.facts import ModelFacts, context_length, read_facts
from npu_llm.checkpoint.requirements import check_disk, check_memory
from npu_llm.checkpoint.source import ModelSource, find_source
from npu_llm.choices import PipelineName, Verify
from npu_llm.config import read_settings
from npu_llm.kv_cache.step_weights import load_step_weights
from npu_llm.models.compile_cache import CompileCache, entry_key, refer, surroundings
from npu_llm.models.entry import VARIANTS, CompiledForm, Entry
from npu_llm.models.load import (
    DynamicPipeline,
    Pipeline,
    StaticPipeline,
    load_kernels,
    verify_step,
    verify_variant,
)
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.program_form import form_here
from npu_llm.models.static_programs import StaticPrograms, fixed_path, load_variant
from npu_llm.precision import compile_options
from npu_llm.progress import Progress
from npu_runtime import layer_recording

__all__ = [
    "LoadReport",
    "Prepared",
    "fill_entry",
    "load_pipeline",
    "prepare",
]


@dataclass(frozen=True)
class LoadReport:
    """How a start went.

    Attributes:
        from_cache: whether nothing was traced and nothing compiled.
        entry_from_cache: whether nothing was traced.
        build_time_s: seconds for reading the files, tracing, lowering and saving; 0 from the cache.
        compile_time_s: seconds for compiling, or for importing the compiled form.
        device: OpenVINO's name for the device that serves as npu.
        verification: the outcome of comparing the program, or the one for one token, with torch.
        compiled_because: why an exported folder's own compiled form could not be used; None if it
            was used, or if there is none.
    """

    from_cache: bool
    entry_from_cache: bool
    build_time_s: float
    compile_time_s: float
    device: str
    verification: Verdict
    compiled_because: str | None = None


@dataclass(frozen=True)
class Prepared:
    """A model that is ready to run.

    Attributes:
        entry: its folder.
        pipeline: its program or programs, loaded on the device.
        report: how the start went.
    """

    entry: Entry
    pipeline: Pipeline
    report: LoadReport


def prepare(name_or_path: str | Path, options: LoadOptions) -> Prepared:
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
    precision, pipeline = options.precision, options.pipeline_here
    options.check_pipeline(pipeline)
    progress = Progress(options.on_progress)
    here = surroundings()
    root = options.cache_folder or read_settings().cache_dir
    cache = CompileCache(root)
    with progress.stage("check"):
        source = find_source(name_or_path, gguf_file=options.gguf_file, hub=options.hub)
        names: tuple[PipelineName, ...] = ("kernels", "dynamic", pipeline)
        adapted = options.adapted_modules
        keys = {
            name: entry_key(source, precision, name, here, adapted, is_for_npus=options.is_for_npus)
            for name in names
        }
        entry = cache.find(keys[pipeline])
        if entry is None and pipeline == "dynamic":
            entry = _made_instead_of_kernels(cache, keys["kernels"])
        facts = read_facts(source) if entry is None else entry.facts
        bound = facts.context_length if entry is None else entry.model_context
        options.check_context(source.name, bound)
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
        entry = replace(
            entry,
            max_context=options.max_context,
            kv_cache=options.kept_as,
            sparse_attention=options.chosen_keys,
        )
        loaded = load_pipeline(entry, entry.compiled, verify=options.verified)
    report = LoadReport(
        from_cache=found and loaded.start.from_cache,
        entry_from_cache=found,
        build_time_s=build_time_s,
        compile_time_s=loaded.start.time_s,
        device=loaded.start.device,
        verification=loaded.verdict,
    )
    return Prepared(entry, loaded, report)


def load_pipeline(
    entry: Entry,
    form: CompiledForm,
    *,
    verify: Verify = "first",
    blobs: AheadBlobs | None = None,
) -> Pipeline:
    """Loads an entry's programs, and compiles them if the compiled form is missing or unsuitable.

    In a static pipeline only the program for one token is loaded; the others follow when they are
    needed. Each is compared with torch as `verify` says, see npu_llm.verification.verifier.

    Args:
        entry: the program.
        form: the place of its compiled form.
        verify: when programs are compared with torch.
        blobs: of programs that were compiled ahead of time; None for none.

    Raises:
        WrongResultError: [wrong-result] if a program's results differ from torch's.
    """
    if entry.pipeline == "kernels":
        return load_kernels(entry, form, verify=verify)
    options = compile_options(entry.precision, entry.kv_cache)
    if layer_recording.is_wanted():
        layer_recording.tell_origins(entry.name, entry.origins)
    layout = entry.static_layout
    if layout is not None:
        load = load_variant(entry.name, options, blobs)
        weights = load_step_weights(entry.weights_path, layout)

        @functools.cache
        def for_rank(rank: int) -> StaticPrograms:
            name = f"{VARIANTS}/rank-{rank}" if entry.adapted else VARIANTS
            given = replace(layout, given=port_shapes(entry.adapted, rank))
            return StaticPrograms(
                entry.model_path,
                given,
                form.folder / name,
                load,
                verify=verify_variant(entry, given, verify, weights),
                spare=form.spare and form.spare / name,
                weights=weights,
                form=form_here(),
            )

        idle = idle_inputs(entry.adapted)
        programs = for_rank(common_rank(idle) if idle else 0)
        pipeline = StaticPipeline(programs, entry.static_sizes, entry.relocation, for_rank)
        assert pipeline.program.inputs, "loading it now raises here if it cannot run"
        return pipeline

    def load_amended(amendments: Mapping[str, str]) -> npu_runtime.Program:
        form.clear_unless_sound()
        with fixed_path(entry.folder) as folder:
            program = npu_runtime.load_program(
                folder / entry.model_path.name,
                name=entry.name,
                # The compiled form without the weights, which stay mapped from the IR's own file.
                options={**options, **amendments, "CACHE_MODE": "OPTIMIZE_SIZE"},
                cache_dir=form.blobs,
            )
        if not program.loaded_from_cache:
            form.record()
        return program

    program, verdict = verify_step(entry, load_amended, form.folder, verify)
    return DynamicPipeline(
        program, entry.relocation, verdict, entry.states, idle_inputs(entry.adapted)
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
    compression = (compression or Compression()).suited_to(pipeline)
    with progress.stage("imports"):  # heavy, and not needed for a start from the cache
        from npu_llm.capture.functional import make_functional
        from npu_llm.capture.step import capture_step
        from npu_llm.checkpoint.gguf_weights import read_gguf_once
        from npu_llm.checkpoint.loading import load_model, load_tokenizer
        from npu_llm.models.kernel_step import save_kernel_step, why_not
        from npu_llm.tokenizer.tokenizer import agrees

    with read_gguf_once():
        with progress.stage("weights"):
            model, weights = load_model(
                source,
                trust_remote_code=options.trust_remote_code,
                on_progress=progress.advance,
            )
        with progress.stage("tokenizer"):
            tokenizer = load_tokenizer(source, trust_remote_code=options.trust_remote_code)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder / "tokenizer")
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    # If the files set no limit, the model's class may.
    context = facts.context_length or context_length(model.config.get_text_config().to_dict())
    about = {
        "name": source.name,
        "source": str(source.path),
        "precision": options.precision.name,
        "architecture": type(model).__name__,
        "context_length": context,
        "has_tokenizer": tokenizer is not None,
        "has_fast_tokenizer": tokenizer is not None and agrees(tokenizer, folder / "tokenizer"),
        "facts": facts.as_dict(),
    }
    with progress.stage("capture"):
        captured = capture_step(
            model, adapted_modules=options.adapted_modules, on_progress=progress.advance
        )
        progress.advance(1.0, "making its calls functional")
        make_functional(captured.graph_module)
    about["vocabulary"] = captured.vocabulary
    if pipeline == "kernels":
        try:
            about |= save_kernel_step(
                model,
                captured,
                folder,
                precision=options.precision,
                progress=progress,
                weights=weights,
                compression=compression,
                context=context,
                tokenizer=tokenizer,
            )
            about["pipeline"] = "kernels"
        except LoweringError as refusal:
            about["why_not_kernels"] = why_not(refusal)
            options.check_kernels(why_not(refusal))
            if dynamic is not None:
                refer(folder, dynamic, why_not_kernels=why_not(refusal))
                return
            check_memory(  # again: OpenVINO's programs need more
                source.name, facts, options.precision,
                max_context=options.max_context, kv_cache=options.kept_as, is_built=False,
            )  # fmt: skip
    if about.get("pipeline") != "kernels":
        from npu_llm.models.lower_step import save_step  # needs OpenVINO's Python package

        about |= save_step(
            model,
            captured,
            folder / "step.xml",
            precision=options.precision,
            pipeline="dynamic" if pipeline == "kernels" else pipeline,
            progress=progress,
            weights=weights,
            compression=compression,
            context=context,
            tokenizer=tokenizer,
            device=device,
        )
    (folder / "about.json").write_text(json.dumps(about))
    del model, weights
    gc.collect()
    _return_memory()


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


def _return_memory() -> None:
    """Makes the C library return freed memory, most of which it would keep for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
