"""Starts a model of one step: from an exported folder, the compile cache, or by building it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_compiler.exported.load import LoadedModel
from npu_compiler.exported.load import load as load_program
from npu_compiler.verification.verdict import Verdict
from npu_llm.checkpoint.source import find_source
from npu_llm.config import read_settings
from npu_llm.models.build import LoadReport
from npu_llm.models.compile_cache import CompileCache, dependencies, draft, make_key, surroundings
from npu_llm.models.entry import MANIFEST, Entry, free_folder, read_task
from npu_llm.models.load_options import LoadOptions
from npu_llm.precision import PRECISIONS, Precision
from npu_llm.progress import Progress
from npu_llm.tasks.quantizing import Quantizing
from npu_runtime import device_info

__all__ = ["DEFAULT_TASK_PRECISION", "ReadyTask", "export_task", "make_task_ready"]

# A batch of an encoder reads each weight once: halving them gains little, and costs digits.
DEFAULT_TASK_PRECISION = "float32"
_COMPARED = "yes"


@dataclass(frozen=True)
class ReadyTask:
    """A model that is ready to run.

    Attributes:
        entry: its folder.
        program: its one step.
        report: how the start went.
    """

    entry: Entry
    program: LoadedModel
    report: LoadReport


def make_task_ready(name_or_path: str | Path, options: LoadOptions, *, auto: Any) -> ReadyTask:
    """Prepares a model to run.

    Args:
        name_or_path: what npu_llm.checkpoint.source.find_source takes, or a folder that
            `export_task` wrote.
        options: how to start it.
        auto: transformers' class for models of the task.

    Raises:
        ModelError, CaptureError, CacheError: if it cannot be read, captured or kept.
        WrongResultError: [wrong-result] if the program's results differ from torch's.
    """
    progress = Progress(options.on_progress)
    path = Path(name_or_path).expanduser()
    began = time.perf_counter()
    was_there = True
    with progress.stage("check"):
        if (path / MANIFEST).is_file():
            entry: Entry | None = read_task(path, auto)
            assert entry is not None
            if options.dtype not in (None, "auto"):
                options.check_exported(entry.precision, None)
        else:
            entry = None
    if entry is None:
        source = find_source(name_or_path, gguf_file=options.gguf_file, hub=options.hub)
        cache = CompileCache(options.cache_folder or read_settings().cache_dir)
        precision = _precision(options)
        facts = {**dependencies(source, precision, surroundings()), "task": auto.__name__}
        key = make_key(f"{source.name}-{precision.name}-{auto.__name__}", facts)
        entry = cache.find(key)
        was_there = entry is not None
        if entry is None:
            # Late: it imports torch.export and the passes, which a start from the cache omits.
            from npu_llm.tasks.building import fill_task_entry

            with cache.create(key) as folder:
                fill_task_entry(
                    folder, source, options, progress,
                    auto=auto, precision=precision, quantizing=Quantizing(),
                )  # fmt: skip
            entry = cache.find(key)
            assert entry is not None, "an entry that was just written is there"
    build_time_s = 0.0 if was_there else time.perf_counter() - began
    with progress.stage("compile"):
        began = time.perf_counter()
        program = load_program(entry.folder / "program")
    verified = program.manifest.verified
    report = LoadReport(
        from_cache=was_there and program.from_cache,
        entry_from_cache=was_there,
        build_time_s=build_time_s,
        compile_time_s=time.perf_counter() - began,
        device=device_info().device,
        verification=Verdict("right") if verified == _COMPARED else Verdict("unchecked", verified),
    )
    return ReadyTask(entry, program, report)


def export_task(
    name_or_path: str | Path,
    output: str | Path,
    options: LoadOptions,
    *,
    auto: Any,
    quantizing: Quantizing,
) -> Path:
    """Writes a folder that starts without transformers' model code; returns it.

    Args:
        name_or_path: a checkpoint folder or a name on the hub.
        output: the folder to write, which must be empty or not exist.
        options: how to build it.
        auto: transformers' class for models of the task.
        quantizing: how numbers become integers, for a precision that has some.

    Raises:
        OptionError: [output-exists] for a folder that is not empty, and as
            npu_llm.tasks.quantizing.
        ModelError, CaptureError, CacheError, WrongResultError: as `make_task_ready` does.
    """
    from npu_llm.tasks.building import fill_task_entry

    target = free_folder(output)
    source = find_source(name_or_path, gguf_file=options.gguf_file, hub=options.hub)
    with draft(target) as folder:
        fill_task_entry(
            folder, source, options, Progress(options.on_progress),
            auto=auto, precision=_precision(options), quantizing=quantizing,
        )  # fmt: skip
    return target


def _precision(options: LoadOptions) -> Precision:
    is_default = options.dtype in (None, "auto")
    return PRECISIONS[DEFAULT_TASK_PRECISION] if is_default else options.precision
