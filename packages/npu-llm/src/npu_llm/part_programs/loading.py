"""Makes a model of several programs ready: finds its entry or builds it, loads and checks it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_compiler.verification.result import Verdict
from npu_llm.checkpoint.source import ModelSource
from npu_llm.choices import PipelineName, Verify
from npu_llm.models.entry import (
    CompiledForm,
    Entry,
)
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.static_programs import fixed_path
from npu_llm.models.task_entries import TaskEntries
from npu_llm.precision import compile_options
from npu_llm.progress import Progress
from npu_llm.verification.kept_verdict import keep_verdict, read_kept
from npu_llm.verification.verifier import wrong_result
from npu_runtime import Program, load_program

__all__ = ["Programs", "Recipe", "entries_of"]

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


def entries_of(options: LoadOptions, recipe: Recipe) -> TaskEntries:
    """Returns how entries of models of a task are found, built and started."""
    options.check_kernels("a model of several parts has several programs")
    pipeline: PipelineName = "static" if options.pipeline_here == "static" else "dynamic"

    def fill(folder: Path, source: ModelSource, how: LoadOptions, progress: Progress) -> None:
        recipe.fill(folder, source, how, progress, pipeline)
        path = folder / "about.json"
        about = {**json.loads(path.read_text()), "task": recipe.auto.__name__}
        path.write_text(json.dumps(about))

    def start(entry: Entry, how: LoadOptions) -> tuple[Any, bool, Verdict]:
        if entry.pipeline == "static":
            return recipe.start_static(entry, how.verified)
        programs = Programs(entry, how.verified, recipe)
        loaded = [programs.get(name) for name in recipe.first or programs.outputs]
        return programs, all(one.loaded_from_cache for one in loaded), programs.verdict

    return TaskEntries(recipe.auto, options.precision, pipeline, fill, start)


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
