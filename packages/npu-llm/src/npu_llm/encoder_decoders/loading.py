"""Makes an encoder-decoder model ready: finds its entry or builds it, loads and checks it."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_compiler.verification.verdict import Verdict
from npu_llm.checkpoint.source import find_source
from npu_llm.choices import Verify
from npu_llm.config import read_settings
from npu_llm.encoder_decoders.parts import DECODERS
from npu_llm.encoder_decoders.running import DynamicParts, Parts
from npu_llm.entries.build import LoadReport, dependencies, surroundings
from npu_llm.entries.entry import (
    MANIFEST,
    REFERENCE,
    CompileCache,
    CompiledForm,
    Entry,
    draft,
    make_key,
    read_entry,
)
from npu_llm.entries.load_options import LoadOptions
from npu_llm.errors import ModelError, OptionError
from npu_llm.precision import compile_options
from npu_llm.progress import Progress
from npu_llm.steps.fixed_path import fixed_path
from npu_llm.steps.pipelines import PipelineName
from npu_llm.steps.static_programs import load_variant
from npu_llm.verification.verifier import keep_verdict, read_kept, wrong_result
from npu_runtime import Program, device_info, load_program

__all__ = ["Ready", "export_parts", "make_parts_ready"]

_FORMS = "compiled"
_FIRST = ("encoder", "bridge", "decoder")


@dataclass(frozen=True)
class Ready:
    """A model that is ready to run.

    Attributes:
        entry: its folder.
        parts: its programs.
        report: how the start went.
    """

    entry: Entry
    parts: Parts
    report: LoadReport


def make_parts_ready(name_or_path: str | Path, options: LoadOptions, *, auto: Any) -> Ready:
    """Prepares a model to run.

    Args:
        name_or_path: what the user passed: what npu_llm.checkpoint.source.find_source takes, or a
            folder that `export_parts` wrote.
        options: how to start it.
        auto: transformers' class for models of the task.

    Raises:
        ModelError, CaptureError, CacheError: if it cannot be read, captured or kept.
        WrongResultError: [wrong-result] if its programs' results differ from torch's.
    """
    progress = Progress(options.on_progress)
    path = Path(name_or_path).expanduser()
    started = time.perf_counter()
    found = True
    pipeline = _pipeline(options)
    with progress.stage("check"):
        entry = _exported(path, auto) if (path / MANIFEST).is_file() else None
        if entry is not None:
            options.check_exported(entry.precision, entry.pipeline)
    if entry is None:
        source = find_source(name_or_path, gguf_file=options.gguf_file, hub=options.hub)
        cache = CompileCache(options.cache_folder or read_settings().cache_dir)
        precision = options.precision
        key = make_key(
            f"{source.name}-{precision.name}-{pipeline}-parts",
            {
                **dependencies(source, precision, surroundings()),
                "parts": auto.__name__,
                "pipeline": pipeline,
            },
        )
        entry = cache.find(key)
        found = entry is not None
        if entry is None:
            from npu_llm.encoder_decoders.building import fill_entry

            with cache.create(key) as folder:
                fill_entry(folder, source, options, progress, auto=auto, pipeline=pipeline)
                _note_task(folder, auto)
            entry = cache.find(key)
            assert entry is not None, "an entry that was just written is there"
    build_time_s = 0.0 if found else time.perf_counter() - started
    with progress.stage("compile"):
        began = time.perf_counter()
        parts, was_compiled, verdict = _start(entry, options.verified)
    report = LoadReport(
        from_cache=found and was_compiled,
        entry_from_cache=found,
        build_time_s=build_time_s,
        compile_time_s=time.perf_counter() - began,
        device=device_info().device,
        verification=verdict,
    )
    return Ready(entry, parts, report)


def export_parts(
    name_or_path: str | Path, output: str | Path, options: LoadOptions, *, auto: Any
) -> Path:
    """Writes a folder that starts without building, and here without compiling; returns it.

    Args:
        name_or_path: a checkpoint folder or a name on the hub.
        output: the folder to write, which must be empty or not exist.
        options: how to build it.
        auto: transformers' class for models of the task.

    Raises:
        OptionError: [output-exists] for a folder that is not empty.
        ModelError, CaptureError, CacheError, WrongResultError: as `make_parts_ready` does.
    """
    from npu_llm.encoder_decoders.building import fill_entry

    target = Path(output).expanduser().absolute()
    if target.is_dir() and not any(target.iterdir()):
        target.rmdir()
    elif target.exists():
        raise OptionError(
            f"{target}: must be empty or not exist, to be exported to; got a folder or file with "
            "contents. Remove it, or name another.",
            code="output-exists",
        )
    source = find_source(name_or_path, gguf_file=options.gguf_file, hub=options.hub)
    with draft(target) as folder:
        progress = Progress(options.on_progress)
        fill_entry(folder, source, options, progress, auto=auto, pipeline=_pipeline(options))
        _note_task(folder, auto)
    entry = read_entry(target)
    parts, *_ = _start(entry, options.verified)
    for name in (name for name in entry.about["outputs"] if name in DECODERS):
        parts.new_cache(name)
    return target


def _pipeline(options: LoadOptions) -> PipelineName:
    """Returns the pipeline that was asked for, or that suits the device."""
    options.check_kernels("a model with an encoder has several programs")
    return "static" if options.pipeline_here == "static" else "dynamic"


def _start(entry: Entry, verify: Verify) -> tuple[Parts, bool, Verdict]:
    """Loads an entry's first programs; returns all, whether they were compiled, and the verdict."""
    if entry.pipeline == "static":
        # Late, as its programs are: the dynamic pipeline needs none of it.
        from npu_llm.encoder_decoders.static_running import StaticParts

        load = load_variant(entry.name, compile_options(entry.precision))
        static = StaticParts(entry, load, when=verify)
        return static, *static.start()
    programs = _Programs(entry, verify)
    loaded = [programs.get(name) for name in _FIRST]
    return programs.parts(), all(one.loaded_from_cache for one in loaded), programs.verdict


def _note_task(folder: Path, auto: Any) -> None:
    path = folder / "about.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "task": auto.__name__}))


def _exported(path: Path, auto: Any) -> Entry:
    try:
        entry = read_entry(path)
    except ValueError as problem:
        raise ModelError(
            f"{path}: must be as export wrote it; got: {problem}. Copy it again, or export the "
            "model again.",
            code="exported-damaged",
        ) from problem
    task = entry.about.get("task")
    if task != auto.__name__:
        wanted = auto.__name__.removeprefix("AutoModelFor")
        got = "a language model" if task is None else task.removeprefix("AutoModelFor")
        raise ModelError(
            f"{path}: must be exported for {wanted}; got {got}. Load it with the class that "
            "exported it.",
            code="model-task",
        )
    return entry


class _Programs:
    """The programs of an entry, each loaded when it is first needed, and compared with torch."""

    def __init__(self, entry: Entry, verify: Verify) -> None:
        self._entry = entry
        self._verify = verify
        self._loaded: dict[str, Program] = {}
        self._lock = threading.RLock()
        self.verdict = Verdict("unchecked", 'verify is "off"')

    def parts(self) -> DynamicParts:
        """Returns what runs them."""
        about = self._entry.about
        outputs = {name: tuple(names) for name, names in about["outputs"].items()}
        return DynamicParts(self.get, outputs, about["positions"])

    def get(self, name: str) -> Program:
        """Returns a program; the decoders' are compared with torch together with the others."""
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = self._load(name)
                if name in DECODERS:
                    self._check(name)
            return self._loaded[name]

    def _load(self, name: str) -> Program:
        form = CompiledForm(self._entry.folder / _FORMS / name)
        form.clear_unless_sound()
        options = {**compile_options(self._entry.precision), "CACHE_MODE": "OPTIMIZE_SIZE"}
        with fixed_path(self._entry.folder) as folder:
            program = load_program(
                folder / f"{name}.xml",
                name=f"{self._entry.name} {name}",
                options=options,
                cache_dir=form.blobs,
            )
        if not program.loaded_from_cache:
            form.folder.mkdir(parents=True, exist_ok=True)
            form.record()
        return program

    def _check(self, decoder: str) -> None:
        if self._verify == "off":
            return
        folder = self._entry.folder / _FORMS / decoder
        known = read_kept(folder)
        names = ("encoder", "bridge", decoder)
        is_known = known is not None and all(self.get(name).loaded_from_cache for name in names)
        if known is None or not is_known or self._verify == "always":
            # Heavy, and not needed for a start from the cache.
            from npu_llm.encoder_decoders.reference import check_parts, read_reference

            reference = read_reference(self._entry.folder / REFERENCE)
            problem = check_parts(self.parts(), reference, decoder=decoder)
            if problem is not None:
                raise wrong_result(self._entry.name, problem)
            known = Verdict("right")
            keep_verdict(folder, known)
        if decoder == "decoder":
            self.verdict = known
