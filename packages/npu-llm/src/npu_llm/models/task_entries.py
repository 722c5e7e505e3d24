"""Entries of models of a task: found, built, exported and loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_compiler.verification.result import Verdict
from npu_llm.checkpoint.source import ModelSource, find_source
from npu_llm.choices import PipelineName
from npu_llm.config import read_settings
from npu_llm.errors import ModelError
from npu_llm.models.build import LoadReport
from npu_llm.models.compile_cache import CompileCache, dependencies, draft, make_key, surroundings
from npu_llm.models.entry import MANIFEST, Entry, free_folder, read_entry
from npu_llm.models.load_options import LoadOptions
from npu_llm.precision import Precision
from npu_llm.progress import Progress
from npu_runtime import device_info

__all__ = ["TaskEntries", "TaskReady"]


@dataclass(frozen=True)
class TaskReady:
    """A model that is ready to run.

    Attributes:
        entry: its folder.
        loaded: its programs.
        report: times, and whether the compile cache had them.
    """

    entry: Entry
    loaded: Any
    report: LoadReport


@dataclass(frozen=True)
class TaskEntries:
    """The entries of one task's models.

    Attributes:
        auto: transformers' class for models of the task.
        precision: of weights and arithmetic.
        pipeline: of the programs; None for models that have one for any sizes.
        fill: writes an entry without its compiled form into an empty folder.
        start: loads an entry's programs; returns them, whether all came from the cache, and the
            outcome of comparing them with torch.
    """

    auto: Any
    precision: Precision
    pipeline: PipelineName | None
    fill: Callable[[Path, ModelSource, LoadOptions, Progress], None]
    start: Callable[[Entry, LoadOptions], tuple[Any, bool, Verdict]]

    def load(self, name_or_path: str | Path, options: LoadOptions) -> TaskReady:
        """Finds or builds an entry, and loads its programs.

        Args:
            name_or_path: what npu_llm.checkpoint.source.find_source takes, or a folder that
                `export` wrote.
            options: how to start it.

        Raises:
            ModelError, CaptureError, CacheError: if it cannot be read, captured or kept.
            WrongResultError: [wrong-result] if its programs' results differ from torch's.
        """
        progress = Progress(options.on_progress)
        path = Path(name_or_path).expanduser()
        began = time.perf_counter()
        is_found = True
        with progress.stage("check"):
            entry = self._read(path) if (path / MANIFEST).is_file() else None
            if entry is not None:
                options.check_exported(entry.precision, self.pipeline and entry.pipeline)
        if entry is None:
            source = find_source(name_or_path, gguf_file=options.gguf_file, hub=options.hub)
            cache = CompileCache(options.cache_folder or read_settings().cache_dir)
            facts = {
                **dependencies(source, self.precision, surroundings()),
                "task": self.auto.__name__,
                "pipeline": self.pipeline,
            }
            kind = self.auto.__name__ if self.pipeline is None else f"{self.pipeline}-parts"
            key = make_key(f"{source.name}-{self.precision.name}-{kind}", facts)
            entry = cache.find(key)
            is_found = entry is not None
            if entry is None:
                with cache.create(key) as folder:
                    self.fill(folder, source, options, progress)
                entry = cache.find(key)
                assert entry is not None, "an entry that was just written is there"
        build_time_s = 0.0 if is_found else time.perf_counter() - began
        with progress.stage("compile"):
            began = time.perf_counter()
            loaded, is_compiled, verdict = self.start(entry, options)
        report = LoadReport(
            from_cache=is_found and is_compiled,
            entry_from_cache=is_found,
            build_time_s=build_time_s,
            compile_time_s=time.perf_counter() - began,
            device=device_info().device,
            verification=verdict,
        )
        return TaskReady(entry, loaded, report)

    def export(self, name_or_path: str | Path, output: str | Path, options: LoadOptions) -> Entry:
        """Writes a folder that starts without building; returns what is in it.

        Args:
            name_or_path: a checkpoint folder or a name on the hub.
            output: the folder to write, which must be empty or not exist.
            options: how to build it.

        Raises:
            OptionError: [output-exists] for a folder that is not empty.
            ModelError, CaptureError, CacheError: as `load` does.
        """
        target = free_folder(output)
        source = find_source(name_or_path, gguf_file=options.gguf_file, hub=options.hub)
        with draft(target) as folder:
            self.fill(folder, source, options, Progress(options.on_progress))
        return read_entry(target)

    def _read(self, path: Path) -> Entry:
        """Reads an exported folder.

        Raises:
            ModelError: [exported-damaged], or [model-task] for a model of another task.
        """
        try:
            entry = read_entry(path.absolute())
        except ValueError as problem:
            raise ModelError(
                f"{path}: must be as export wrote it; got: {problem}. Copy it again, or export the "
                "model again.",
                code="exported-damaged",
            ) from problem
        task = entry.about.get("task")
        if task != self.auto.__name__:
            wanted = self.auto.__name__.removeprefix("AutoModelFor")
            got = "a language model" if task is None else str(task).removeprefix("AutoModelFor")
            raise ModelError(
                f"{path}: must be exported for {wanted}; got {got}. Load it with the class that "
                "exported it.",
                code="model-task",
            )
        return entry
