"""From a model's files to a program: through the compile cache, or by building its entry.

The steps live elsewhere: npu_llm.checkpoint loads, npu_llm.capture traces, npu_compiler lowers,
compresses and makes the cache the program's state, npu_runtime compiles and runs.
"""

from __future__ import annotations

import gc
import json
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import npu_runtime
from npu_compiler import programs
from npu_llm.config import read_settings
from npu_llm.entry import CompileCache, Entry, make_key
from npu_llm.precision import Precision
from npu_llm.progress import Progress, ProgressListener
from npu_llm.source import ModelSource, find_source

__all__ = ["LoadReport", "prepare"]


@dataclass(frozen=True)
class LoadReport:
    """How a start went.

    Attributes:
        from_cache: whether nothing was traced and nothing compiled.
        entry_from_cache: whether nothing was traced.
        build_time_s: seconds for reading the files, tracing, lowering and saving; 0 from the cache.
        compile_time_s: seconds for compiling, or for importing the compiled form.
        device: what serves as npu, as OpenVINO calls it.
    """

    from_cache: bool
    entry_from_cache: bool
    build_time_s: float
    compile_time_s: float
    device: str


def prepare(
    name_or_path: str | Path,
    *,
    precision: Precision,
    cache_dir: Path | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    hub: dict[str, Any] | None = None,
    on_progress: ProgressListener | None = None,
) -> tuple[Entry, npu_runtime.Program, LoadReport]:
    """Makes a model ready to run.

    Args:
        name_or_path: what the user passed; see npu_llm.source.find_source.
        precision: of weights and arithmetic.
        cache_dir: the compile cache; that of the settings by default.
        gguf_file: which GGUF file of a folder.
        trust_remote_code: whether model code inside the checkpoint may run.
        hub: arguments for a download.
        on_progress: see npu_llm.progress.

    Returns:
        The cache entry, the loaded npu_runtime.Program, and how it went.
    """
    progress = Progress(on_progress)
    device = npu_runtime.device_info()
    cache = CompileCache(cache_dir or read_settings().cache_dir)
    with progress.stage("check"):
        source = find_source(name_or_path, gguf_file=gguf_file, hub=hub)
        key = make_key(f"{source.name}-{precision.name}", _dependencies(source, precision, device))
        entry = cache.find(key)
        if entry is None:
            source.check()
    found = entry is not None
    started = time.perf_counter()
    if entry is None:
        with cache.create(key) as folder:
            _fill(folder, source, precision, progress, trust_remote_code=trust_remote_code)
        entry = cache.find(key)
        assert entry is not None, "an entry that was just written is there"
    build_time_s = 0.0 if found else time.perf_counter() - started
    with progress.stage("compile"):
        program = _load(entry, precision)
    report = LoadReport(
        from_cache=found and program.loaded_from_cache,
        entry_from_cache=found,
        build_time_s=build_time_s,
        compile_time_s=program.compile_time_s,
        device=program.device,
    )
    return entry, program, report


def _load(entry: Entry, precision: Precision) -> npu_runtime.Program:
    entry.check_blob()
    # The compiled form without the weights, which stay mapped from the IR's own file.
    options = {**programs.compile_options(precision.compute), "CACHE_MODE": "OPTIMIZE_SIZE"}
    program = npu_runtime.load_program(
        entry.model_path,
        name=entry.name,
        options=options,
        cache_dir=entry.blob_folder,
    )
    if not program.loaded_from_cache:
        entry.record_blob()
    return program


def _fill(
    folder: Path,
    source: ModelSource,
    precision: Precision,
    progress: Progress,
    *,
    trust_remote_code: bool,
) -> None:
    """Writes all of an entry but its compiled form, which the first load adds."""
    # Heavy, and of no use to a start from the cache.
    from npu_llm.checkpoint import load_model, load_tokenizer, read_gguf_once
    from npu_llm.lower_step import save_step

    with read_gguf_once():
        with progress.stage("weights"):
            model = load_model(
                source, trust_remote_code=trust_remote_code, on_progress=progress.advance
            )
        with progress.stage("tokenizer"):
            tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder / "tokenizer")
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    about = {
        "name": source.name,
        "source": str(source.path),
        "precision": precision.name,
        "architecture": type(model).__name__,
        "context_length": _context_length(model.config),
        "has_tokenizer": tokenizer is not None,
    }
    about |= save_step(model, folder / "step.xml", precision=precision, progress=progress)
    (folder / "about.json").write_text(json.dumps(about))
    del model
    gc.collect()


def _context_length(config: Any) -> int | None:
    """Tokens that the model was made for; None where its config sets no bound."""
    text_config = config.get_text_config()
    for name in ("max_position_embeddings", "max_seq_len", "n_positions"):
        length = getattr(text_config, name, None)
        if isinstance(length, int) and length > 0:
            return length
    return None


def _dependencies(source: ModelSource, precision: Precision, device: Any) -> dict[str, Any]:
    """All that an entry depends on."""
    packages = ("npu-llm", "npu-compiler", "npu-runtime", "openvino", "torch", "transformers")
    return {
        "path": str(source.path.resolve()),
        "files": source.identity(),
        "precision": precision.name,
        "options": programs.compile_options(precision.compute),
        "device": [device.device, device.full_name, device.driver_version],
        "versions": {package: metadata.version(package) for package in packages},
    }
