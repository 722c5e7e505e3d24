"""Makes a model of several programs ready: finds its entry or builds it, loads and checks it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_compiler.verification.verdict import Verdict
from npu_llm.checkpoint.source import ModelSource, find_source
from npu_llm.choices import PipelineName, Verify
from npu_llm.config import read_settings
from npu_llm.models.build import LoadReport
from npu_llm.models.compile_cache import CompileCache, dependencies, draft, make_key, surroundings
from npu_llm.models.entry import MANIFEST, CompiledForm, Entry, free_folder, read_entry, read_task
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.static_programs import fixed_path
from npu_llm.precision import compile_options
from npu_llm.progress import Progress
from npu_llm.verification.kept_verdict import keep_verdict, read_kept
from npu_llm.verification.verifier import wrong_result
from npu_runtime import Program, device_info, load_program

__all__ = ["Programs", "Ready", "Recipe", "export_parts", "make_parts_ready"]

_FORMS = "compiled"


@dataclass(frozen=True)
class Recipe:
    """How models of a kind become programs.

    Attributes:
        auto: transformers' class for models of the task.
        fill: writes an entry without its compiled form for a pipeline into an empty folder; it
            imports what a start from the cache can do without. `about.json` names the programs'
            results: "outputs", by the program's name.
        first: the programs that a start loads, the others follow when they are needed; None for
            all.
        checked: which programs are compared with torch together, None for all, by the name of the
            one after whose first load that happens. The first of them gives the model's verdict.
        check: runs a checked program with the others on what torch was run on; returns what
            differs, in words, or None.
        start_static: starts programs of fixed sizes; returns what runs them, whether all came from
            the cache, and the outcome of comparing them with torch.
    """

    auto: Any
    fill: Callable[[Path, ModelSource, LoadOptions, Progress, PipelineName], None]
    first: tuple[str, ...] | None
    checked: Mapping[str, tuple[str, ...] | None]
    check: Callable[[Programs, str], str | None]
    start_static: Callable[[Entry, Verify], tuple[Any, bool, Verdict]]


@dataclass(frozen=True)
class Ready:
    """A model that is ready to run.

    Attributes:
        entry: its folder.
        programs: its Programs, or in the static pipeline what the recipe's `start_static` returned.
        report: how the start went.
    """

    entry: Entry
    programs: Any
    report: LoadReport


def make_parts_ready(name_or_path: str | Path, options: LoadOptions, recipe: Recipe) -> Ready:
    """Prepares a model to run.

    Args:
        name_or_path: what the user passed: what npu_llm.checkpoint.source.find_source takes, or a
            folder that `export_parts` wrote.
        options: how to start it.
        recipe: of models of the task.

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
        entry = read_task(path, recipe.auto) if (path / MANIFEST).is_file() else None
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
                "parts": recipe.auto.__name__,
                "pipeline": pipeline,
            },
        )
        entry = cache.find(key)
        found = entry is not None
        if entry is None:
            with cache.create(key) as folder:
                recipe.fill(folder, source, options, progress, pipeline)
                _note_task(folder, recipe.auto)
            entry = cache.find(key)
            assert entry is not None, "an entry that was just written is there"
    build_time_s = 0.0 if found else time.perf_counter() - started
    with progress.stage("compile"):
        began = time.perf_counter()
        programs, was_compiled, verdict = _start(entry, options.verified, recipe)
    report = LoadReport(
        from_cache=found and was_compiled,
        entry_from_cache=found,
        build_time_s=build_time_s,
        compile_time_s=time.perf_counter() - began,
        device=device_info().device,
        verification=verdict,
    )
    return Ready(entry, programs, report)


def export_parts(
    name_or_path: str | Path, output: str | Path, options: LoadOptions, recipe: Recipe
) -> Path:
    """Writes a folder that starts without building, and here without compiling; returns it.

    Args:
        name_or_path: a checkpoint folder or a name on the hub.
        output: the folder to write, which must be empty or not exist.
        options: how to build it.
        recipe: of models of the task.

    Raises:
        OptionError: [output-exists] for a folder that is not empty.
        ModelError, CaptureError, CacheError, WrongResultError: as `make_parts_ready` does.
    """
    target = free_folder(output)
    source = find_source(name_or_path, gguf_file=options.gguf_file, hub=options.hub)
    with draft(target) as folder:
        progress = Progress(options.on_progress)
        recipe.fill(folder, source, options, progress, _pipeline(options))
        _note_task(folder, recipe.auto)
    entry = read_entry(target)
    programs, *_ = _start(entry, options.verified, recipe)
    if isinstance(programs, Programs):
        for name in programs.outputs:
            programs.get(name)
    return target


def _pipeline(options: LoadOptions) -> PipelineName:
    """Returns the pipeline that was asked for, or that suits the device."""
    options.check_kernels("a model of several parts has several programs")
    return "static" if options.pipeline_here == "static" else "dynamic"


def _start(entry: Entry, verify: Verify, recipe: Recipe) -> tuple[Any, bool, Verdict]:
    """Loads an entry's first programs; returns all, whether they were compiled, and the verdict."""
    if entry.pipeline == "static":
        return recipe.start_static(entry, verify)
    programs = Programs(entry, verify, recipe)
    loaded = [programs.get(name) for name in recipe.first or programs.outputs]
    return programs, all(one.loaded_from_cache for one in loaded), programs.verdict


def _note_task(folder: Path, auto: Any) -> None:
    path = folder / "about.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "task": auto.__name__}))


class Programs:
    """The programs of an entry, each loaded when it is first needed, and compared with torch.

    Attributes:
        entry: where they are.
        verdict: the outcome of the comparison so far.
    """

    def __init__(self, entry: Entry, verify: Verify, recipe: Recipe) -> None:
        self.entry = entry
        self.verdict = Verdict("unchecked", 'verify is "off"')
        self._verify = verify
        self._recipe = recipe
        self._loaded: dict[str, Program] = {}
        self._lock = threading.RLock()

    @property
    def outputs(self) -> dict[str, tuple[str, ...]]:
        """The names of each program's results that are not state, by the program's name."""
        return {name: tuple(names) for name, names in self.entry.about["outputs"].items()}

    def get(self, name: str) -> Program:
        """Returns a program; those that are checked are compared with torch at their first load."""
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = self._load(name)
                if name in self._recipe.checked:
                    self._check(name)
            return self._loaded[name]

    def _load(self, name: str) -> Program:
        form = CompiledForm(self.entry.folder / _FORMS / name)
        form.clear_unless_sound()
        options = {**compile_options(self.entry.precision), "CACHE_MODE": "OPTIMIZE_SIZE"}
        with fixed_path(self.entry.folder) as folder:
            program = load_program(
                folder / f"{name}.xml",
                name=f"{self.entry.name} {name}",
                options=options,
                cache_dir=form.blobs,
            )
        if not program.loaded_from_cache:
            form.folder.mkdir(parents=True, exist_ok=True)
            form.record()
        return program

    def _check(self, checked: str) -> None:
        if self._verify == "off":
            return
        folder = self.entry.folder / _FORMS / checked
        known = read_kept(folder)
        names = self._recipe.checked[checked] or tuple(self.outputs)
        is_known = known is not None and all(self.get(name).loaded_from_cache for name in names)
        if known is None or not is_known or self._verify == "always":
            problem = self._recipe.check(self, checked)
            if problem is not None:
                raise wrong_result(self.entry.name, problem)
            known = Verdict("right")
            keep_verdict(folder, known)
        if checked == next(iter(self._recipe.checked)):
            self.verdict = known
