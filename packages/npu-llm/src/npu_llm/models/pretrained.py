"""Pretrained: models of a task, found in the compile cache, built, exported and loaded."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from npu_compiler.verification.result import Verdict
from npu_llm.checkpoint.source import ModelSource, find_source
from npu_llm.choices import FLOATS_AND_INTEGERS, PipelineName
from npu_llm.config import read_settings
from npu_llm.errors import ModelError, OptionError
from npu_llm.models.compile_cache import CompileCache, dependencies, draft, make_key, surroundings
from npu_llm.models.entry import MANIFEST, Entry, free_folder, read_entry
from npu_llm.models.load import LoadedModel, LoadReport
from npu_llm.models.load_options import LoadOptions, dtype_in
from npu_llm.precision import Precision
from npu_llm.progress import Progress, ProgressListener
from npu_runtime import device_info
from npu_runtime.public_calls import public_call

__all__ = ["Pretrained", "TaskEntries"]


class Pretrained(ABC):
    """A model of a task, with programs for the npu device. Tensors stay on the host.

    Attributes:
        config: the transformers config.
        precision: how weights are stored and arithmetic is done.
        report: how this start went: times, and whether it came from the cache.
        has_fixed_device: that `to` moves nothing, so that pipelines leave inputs where they are.
    """

    has_fixed_device = True
    config: Any
    precision: Precision
    report: LoadReport
    _auto: ClassVar[Any] = None  # transformers' class for the task
    _entry: Entry

    @classmethod
    @public_call
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        config: Any = None,
        *,
        dtype: str | torch.dtype | None = None,
        pipeline: str | None = None,
        verify: str = "first",
        device: str | torch.device | None = None,
        cache_dir: str | Path | None = None,
        trust_remote_code: bool = False,
        ignore_unexpected: bool = False,
        revision: str | None = None,
        token: str | bool | None = None,
        on_progress: ProgressListener | None = None,
    ) -> Self:
        """Loads a model, from the compile cache where this start is not the first.

        Args:
            pretrained_model_name_or_path: a checkpoint folder of transformers, a folder that
                `export` wrote, or a name on the hub.
            config: a CompilerConfig whose dtype counts, as programs for
                intel-npu-acceleration-library pass it; by default `dtype` counts.
            dtype: "float32", "bfloat16", "float16", "int8", "int4", or a torch dtype; by default
                the precision of an exported folder, float32 for a model with one step, and as in
                NPUModelForCausalLM.from_pretrained for others.
            pipeline: "dynamic" for programs that take any size, "static" for programs of fixed
                sizes, as NPUs need them; by default what suits the device, as it is always for a
                model with one step.
            verify: "first" to compare the programs with torch once; "always" to compare at each
                start; "off" to skip the comparison.
            device: None or "npu".
            cache_dir: where compiled models are kept; see npu_llm.config for the default.
            trust_remote_code: whether model code inside the checkpoint may run.
            ignore_unexpected: whether to drop tensors that the model has no place for.
            revision: which revision, for a name on the hub.
            token: access token, for a name on the hub.
            on_progress: called with a stage and how much of it is done, 0.0 to 1.0.

        Raises:
            ModelError: when there is no such model, its files are damaged, or it is one for
                another task: [unknown-architecture], [weights-missing], [model-task].
            CaptureError: when the architecture cannot run here.
            OptionError: for an unknown dtype, or another device, or [one-step-pipeline], or
                [pretrained-config].
            npu_compiler.errors.WrongResultError: when a program's results differ from torch's.
        """
        options = LoadOptions(
            dtype=dtype_in(config, dtype),
            pipeline=pipeline,
            verify=verify,
            device=device,
            cache_dir=cache_dir,
            trust_remote_code=trust_remote_code,
            ignore_unexpected=ignore_unexpected,
            revision=revision,
            token=token,
            on_progress=on_progress,
        )
        return cls._made_of(cls._entries(options).load(pretrained_model_name_or_path, options))

    @classmethod
    @abstractmethod
    def _entries(cls, options: LoadOptions) -> TaskEntries:
        """Returns the entries of models of this class."""

    @classmethod
    @abstractmethod
    def _made_of(cls, ready: LoadedModel[Any]) -> Self:
        """Returns a model that is ready to run."""

    @property
    def verification(self) -> Verdict:
        """The outcome of comparing the programs with torch."""
        return self.report.verification

    # Required by transformers

    @property
    def device(self) -> torch.device:
        """torch.device("cpu"), where tokens and inputs are; the programs run on the npu device."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """torch.float32, that of inputs; see `precision` for the weights'."""
        return torch.float32

    def to(self, *_: Any, **__: Any) -> Self:
        """Returns the model: its programs stay where they are."""
        return self


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

    def load(self, name_or_path: str | Path, options: LoadOptions) -> LoadedModel[Any]:
        """Finds or builds an entry, and loads its programs.

        Args:
            name_or_path: what npu_llm.checkpoint.source.find_source takes, or a folder that
                `export` wrote.
            options: how to start it.

        Raises:
            OptionError: [one-step-pipeline] for a pipeline where there is no choice,
                [unknown-dtype] for the precision of the files, from which kernels alone compute.
            ModelError, CaptureError, CacheError: if it cannot be read, captured or kept.
            WrongResultError: [wrong-result] if its programs' results differ from torch's.
        """
        if self.pipeline is None and options.pipeline is not None:
            raise OptionError(
                f"`pipeline` must be omitted for a model with one step, whose program suits the "
                f"device, got {options.pipeline!r}. Omit it.",
                code="one-step-pipeline",
            )
        self._check_dtype(options)
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
                **({"ignore_unexpected": True} if options.ignore_unexpected else {}),
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
        return LoadedModel(entry, loaded, report)

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
        self._check_dtype(options)
        target = free_folder(output)
        source = find_source(name_or_path, gguf_file=options.gguf_file, hub=options.hub)
        with draft(target) as folder:
            self.fill(folder, source, options, Progress(options.on_progress))
        return read_entry(target)

    def _check_dtype(self, options: LoadOptions) -> None:
        if options.dtype == "file":
            raise OptionError(
                f"`dtype` must be one of {', '.join(FLOATS_AND_INTEGERS)} for a model of this "
                'task, whose programs cannot compute from blocks of a file, got "file". Omit it.',
                code="unknown-dtype",
            )

    def _read(self, path: Path) -> Entry:
        """Reads an exported folder.

        Raises:
            ModelError: [exported-damaged], or [model-task] for a model of another task.
        """
        try:
            entry = read_entry(path.absolute())
        except ValueError as problem:
            raise ModelError(
                f"`{path}` must be as export wrote it, got: {problem}. Copy it again, or export "
                "the model again.",
                code="exported-damaged",
            ) from problem
        task = entry.about.get("task")
        if task != self.auto.__name__:
            wanted = self.auto.__name__.removeprefix("AutoModelFor")
            got = "a language model" if task is None else str(task).removeprefix("AutoModelFor")
            raise ModelError(
                f"`{path}` must be exported for {wanted}, got {got}. Load it with the class that "
                "exported it.",
                code="model-task",
            )
        return entry
