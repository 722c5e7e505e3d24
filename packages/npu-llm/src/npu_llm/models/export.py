"""Exported models: folders that `export` writes and that load without building.

An exported folder is an entry (npu_llm.models.entry) at a path that the user chose, with a compiled
form for the exporting machine. It never changes: if its compiled form cannot be used, another one
is stored in the compile cache.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_compiler.programs.blobs import AheadBlob, AheadBlobs, are_damaged
from npu_llm.capture.compression import Compression
from npu_llm.checkpoint.facts import read_facts
from npu_llm.checkpoint.requirements import check_disk, check_memory
from npu_llm.checkpoint.source import find_source
from npu_llm.choices import BLOB_CONTEXT, parse_pipeline
from npu_llm.config import read_settings
from npu_llm.errors import OptionError
from npu_llm.models.build import fill_entry
from npu_llm.models.compile_cache import CompileCache, draft, make_key, surroundings
from npu_llm.models.entry import MANIFEST, VARIANTS, CompiledForm, Entry, free_folder, open_exported
from npu_llm.models.kernel_loading import is_compared
from npu_llm.models.load import LoadedModel, Pipeline, load_entry
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.program_form import form_of
from npu_llm.models.static_programs import rewriting, write_variant
from npu_llm.precision import compile_options
from npu_llm.progress import STAGES, TARGET_STAGES, Progress, ProgressListener
from npu_runtime import info, layer_recording

if TYPE_CHECKING:
    import torch

    from npu_compiler.target_compiler.targets import Target

__all__ = ["export", "prepare_exported"]


def export(
    name_or_path: str | Path,
    output: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
    group_size: int | None = None,
    symmetric: bool = False,
    data: str | os.PathLike[str] | None = None,
    pipeline: str | None = None,
    max_context: int | None = None,
    verify: str = "first",
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    ignore_unexpected: bool = False,
    targets: Sequence[str] = (),
    blob_context: int = BLOB_CONTEXT,
    skip_refused: bool = False,
    on_progress: ProgressListener | None = None,
) -> Path:
    """Writes a model that loads without transformers' model code, and here without compiling.

    The folder contains the program with its weights in the given precision, its compiled form for
    this device, tokenizer, config, generation config, and a manifest of all these. It is written
    atomically.

    Args:
        name_or_path: a checkpoint folder, a GGUF file, or a name on the hub.
        output: the folder to write; must be empty or not exist.
        dtype: as in NPUModelForCausalLM.from_pretrained; with targets, as on an NPU, "int8" by
            default.
        group_size: number of weights of a row that share a scale, 32, 64 or 128; for int4. None for
            64, or, in the static pipeline, for the whole row without zero points.
        symmetric: whether to omit zero points; for int8 and int4.
        data: a calibration text file for rounding int4 weights (GPTQ); None to round to nearest.
        pipeline: "kernels", "dynamic" or "static"; by default chosen by device and model.
        max_context: maximum sequence length, for a model with rotary embeddings that have separate
            factors for long texts (LongRoPE): the folder contains one set of them. None for the
            short ones.
        verify: "off" to skip comparing the program with torch. The folder contains torch's results
            for a few tokens in any case, for machines that compile it again.
        gguf_file: file name of the GGUF file in a folder.
        trust_remote_code: whether to run model code from the checkpoint.
        ignore_unexpected: whether to ignore tensors that the model does not use.
        targets: NPUs by name or number, such as ("lunar-lake", "5010"), for which the programs of
            the static pipeline are compiled ahead of time. The vendor's compiler must be installed:
            npu-compiler target install.
        blob_context: maximum number of prompt and answer tokens with blobs; programs for more are
            compiled on the device.
        skip_refused: whether to omit the blob of a program that a target's compiler rejects.
        on_progress: called with a stage and its share done, 0.0 to 1.0; with targets the stages are
            npu_llm.progress.TARGET_STAGES.

    Returns:
        The folder.

    Raises:
        OptionError: [unknown-dtype], [unknown-pipeline], [unknown-verify], [group-size],
            [quantize-text], [output-exists] for a folder that is not empty, [max-context] for a
            value above the model's limit, [unknown-target], [blob-context], or [target-pipeline]
            for targets with another pipeline than the static one.
        TargetError: [target-absent], [target-wine], [target-compiler] without a working compiler.
        ExportError: [target-refused] if a target's compiler rejects a program.
        WrongResultError: [wrong-result] if the program's results differ from torch's.
        ModelError, CaptureError, CacheError, MemoryNeedError: the errors of from_pretrained.
    """
    compiled_for = _checked_targets(targets, pipeline, blob_context)
    options = LoadOptions(
        dtype=dtype,
        pipeline="static" if compiled_for else pipeline,
        max_context=max_context,
        verify=verify,
        gguf_file=gguf_file,
        trust_remote_code=trust_remote_code,
        ignore_unexpected=ignore_unexpected,
        on_progress=on_progress,
        is_for_npus=bool(compiled_for),
    ).for_device()
    text = None if data is None else Path(data)
    compression = Compression(group_size=group_size, symmetric=symmetric, text=text)
    target = free_folder(output)
    progress = Progress(on_progress, stages=TARGET_STAGES if compiled_for else STAGES)
    with progress.stage("check"):
        source = find_source(name_or_path, gguf_file=options.gguf_file)
        facts = read_facts(source)
        options.check_context(source.name, facts.longest_context)
        kernels = options.pipeline_here == "kernels"
        precision = options.precision_for(facts, options.pipeline_here)
        # Calibration by a text needs all weights in memory at once.
        while_built = facts if text is None else replace(facts, is_mapped=False)
        check_memory(
            source.name, while_built, precision,
            max_context=None, is_built=False, kernels=kernels,
        )  # fmt: skip
        check_disk(source.name, facts, precision, target, kernels=kernels)
    with draft(target) as folder:
        fill_entry(
            folder, source, options, progress, facts=facts, compression=compression,
            device="NPU" if options.is_for_npus else None,
        )  # fmt: skip
        about = json.loads((folder / "about.json").read_text())
        about |= {"made_with": _made_with(Entry(folder, about))}
        (folder / "about.json").write_text(json.dumps(about))
        with progress.stage("compile"):
            load_entry(Entry(folder, about), CompiledForm(folder), verify=options.verified)
        if compiled_for:
            with progress.stage("blobs"):
                blobs = _write_blobs(
                    Entry(folder, about), compiled_for, blob_context, skip_refused, progress
                )
            about |= {"blobs": [asdict(blob) for blob in blobs]}
            (folder / "about.json").write_text(json.dumps(about))
    return target


def _checked_targets(
    names: Sequence[str], pipeline: str | None, context: int
) -> tuple[Target, ...]:
    """Returns the targets after checking that their compiler is available."""
    if not names:
        return ()
    # Imported late: loading needs neither this nor OpenVINO's Python package.
    from npu_compiler.exported.ahead import find_targets
    from npu_compiler.target_compiler.sources import find_source as find_compiler

    found = find_targets(names)
    if parse_pipeline(pipeline) not in (None, "static"):
        raise OptionError(
            f"`pipeline` must be static with targets, as an NPU's programs have fixed sizes, got "
            f"{pipeline}. Omit it, or export without targets.",
            code="target-pipeline",
        )
    if context < 1:
        raise OptionError(
            f"`blob_context` must be at least 1, got {context}. Omit it for {BLOB_CONTEXT:,}.",
            code="blob-context",
        )
    find_compiler().version()  # raises now instead of minutes later
    return found


def _write_blobs(
    entry: Entry,
    targets: Sequence[Target],
    context: int,
    skip_refused: bool,
    progress: Progress,
) -> tuple[AheadBlob, ...]:
    """Compiles the static programs of an entry in progress, for each target."""
    from npu_compiler.exported.ahead import write_blobs
    from npu_compiler.target_compiler.compile import TargetJob

    layout = entry.static_layout
    assert layout is not None, "static entries have a layout"
    # A load writes this file again, with the same text, into its folder of programs.
    with tempfile.TemporaryDirectory(dir=entry.folder) as place:
        jobs = []
        for sizes in entry.static_sizes.programs(context, layout):
            shapes = layout.port_shapes(sizes)
            for target in targets:
                form = form_of(target.number)
                folder = Path(place, target.number, str(sizes))
                path = write_variant(
                    entry.model_path, folder, shapes, rewriting(layout, sizes, form)
                )
                jobs.append(TargetJob(folder.name, path, target, form.options(sizes.tokens)))
        return write_blobs(
            entry.folder,
            jobs,
            name=entry.name,
            skip_refused=skip_refused,
            on_progress=progress.advance,
        )


def prepare_exported(folder: Path, options: LoadOptions) -> LoadedModel[Pipeline]:
    """Prepares an exported model to run.

    Args:
        folder: folder written by `export`.
        options: load options; the cache stores another compiled form if the folder's cannot be
            used.

    Raises:
        ModelError: [exported-damaged], see open_exported.
        OptionError: [exported-dtype], [exported-pipeline], [max-context], [static-kv-cache], see
            LoadOptions.
        MemoryNeedError: [memory-need] if it does not fit into memory.
        WrongResultError: [wrong-result] if a program's results differ from torch's.
    """
    progress = Progress(options.on_progress)
    with progress.stage("check"):
        entry = open_exported(folder)
        options.check_exported(entry.precision, entry.pipeline)
        options.check_context(entry.name, entry.model_context)
        options.check_pipeline(entry.pipeline)
        facts = entry.facts
        check_memory(
            entry.name, facts, entry.precision,
            max_context=options.max_context, kv_cache=options.kept_as, is_built=True,
            kernels=entry.pipeline == "kernels", has_bounds=options.chosen_keys is not None,
        )  # fmt: skip
        entry = options.applied_to(entry)
        reason = _why_not_its_form(entry)
    form = entry.compiled
    # Data that are computed here about an exported program are stored outside its folder.
    is_new = options.verified == "always" or not is_compared(form)
    is_elsewhere = reason is not None or (entry.pipeline == "kernels" and is_new)
    takes_no_more = entry.static_layout is not None and not os.access(form.folder, os.W_OK)
    if is_elsewhere or takes_no_more:
        cache = CompileCache(options.cache_folder or read_settings().cache_dir)
        kept = cache.compiled_form(_form_key(entry))
        form = kept if is_elsewhere else replace(form, spare=kept.folder)
    blobs = _blobs_here(entry)
    with progress.stage("compile"):
        loaded = load_entry(entry, form, verify=options.verified, blobs=blobs)
    return loaded.reporting(compiled_because=reason if blobs is None else blobs.compiled_because)


def _blobs_here(entry: Entry) -> AheadBlobs | None:
    """Returns the blobs for the NPU in use; None if there are none, or on another device."""
    # A blob records no layers.
    if not entry.blobs or layer_recording.is_wanted():
        return None
    architecture = info.npu_architecture()
    return AheadBlobs(entry.folder, entry.blobs, architecture) if architecture else None


def _made_with(entry: Entry) -> dict[str, Any]:
    """Returns the dependencies of an entry's compiled form on this machine."""
    return {**surroundings(), "options": compile_options(entry.precision, entry.kv_cache)}


def _why_not_its_form(entry: Entry) -> str | None:
    """Returns why an exported folder's compiled form cannot be used here; None if it can."""
    if entry.pipeline == "kernels":
        return None  # nothing to compile
    then, now = entry.about.get("made_with", {}), _made_with(entry)
    names = {"device": "device and driver", "options": "options of the device"}
    for key, name in names.items():
        if then.get(key) != now[key]:
            return f"{name}: exported with {_plain(then.get(key))}, here {_plain(now[key])}"
    was, version = then["versions"].get("openvino"), now["versions"]["openvino"]
    if was != version:
        return f"exported with OpenVINO {was}, here {version}"
    form = entry.compiled
    if entry.static_layout is None:
        is_damaged = not form.is_sound()
    else:  # programs of other sizes follow on demand
        is_damaged = any(map(are_damaged, form.folder.glob(f"{VARIANTS}/*/blob")))
    return "its compiled form is damaged or missing" if is_damaged else None


def _form_key(entry: Entry) -> str:
    files = json.loads((entry.folder / MANIFEST).read_text())["files"]
    digests = {name: record["sha256"] for name, record in files.items()}
    return make_key(f"{entry.name}-compiled", {"files": digests, "with": _made_with(entry)})


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in sorted(value.items()))
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
