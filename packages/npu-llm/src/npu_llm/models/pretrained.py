"""Pretrained: task models that are found in the compile cache, built, exported and loaded."""

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
    """A task model with programs for the npu device. Tensors stay on the host.

    Attributes:
        config: the transformers config.
        precision: storage of the weights and dtype of the arithmetic.
        report: load times, and whether the model came from the cache.
        has_fixed_device: whether `to` has no effect, so that pipelines do not move inputs.
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
        """Loads a model, from the compile cache except on the first load.

        Args:
            pretrained_model_name_or_path: a transformers checkpoint folder, a folder that `export`
                wrote, or a name on the hub.
            config: a CompilerConfig (only its dtype is used), for programs written for
                intel-npu-acceleration-library; by default `dtype` is used.
            dtype: "float32", "bfloat16", "float16", "int8", "int4", or a torch dtype; by default
                the precision of an exported folder, float32 for a model with one step, and as in
                NPUModelForCausalLM.from_pretrained for others.
            pipeline: "dynamic" for programs with dynamic shapes, "static" for programs of fixed
                sizes, which NPUs need; by default, and always for a model with one step, chosen by
                device.
            verify: "first" to compare the programs with torch once; "always" to compare at each
                load; "off" to skip the comparison.
            device: None or "npu".
            cache_dir: directory of the compile cache; see npu_llm.config for the default.
            trust_remote_code: whether to run model code from the checkpoint.
            ignore_unexpected: whether to ignore tensors that the model does not use.
            revision: revision of the model on the hub.
            token: access token for the hub.
            on_progress: called with a stage and its share done, 0.0 to 1.0.

        Raises:
            ModelError: if the model does not exist, its files are damaged, or it is a model for
                another task: [unknown-architecture], [weights-missing], [model-task].
            CaptureError: if the architecture is not supported.
            OptionError: for an unknown dtype, or another device, or [one-step-pipeline], or
                [pretrained-config].
            npu_compiler.errors.WrongResultError: if a program's results differ from torch's.
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
        """Wraps a loaded model in this class."""

    @property
    def verification(self) -> Verdict:
        """The result of comparing the programs with torch."""
        return self.report.verification

    # Required by transformers

    @property
    def device(self) -> torch.device:
        """torch.device("cpu"), the device of inputs; the programs run on the npu device."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """torch.float32, the dtype of inputs; see `precision` for the weights' dtype."""
        return torch.float32

    def to(self, *_: Any, **__: Any) -> Self:
        """Returns the model unchanged: its programs do not move."""
        return self


@dataclass(frozen=True)
class TaskEntries:
    """The cache entries of one task's models.

    Attributes:
        auto: transformers' class for models of the task.
        precision: storage of the weights and dtype of the arithmetic.
        pipeline: pipeline of the programs; None for models with one program for all sizes.
        fill: writes an entry without its compiled form into an empty folder.
        start: loads an entry's programs; returns them, whether all came from the cache, and the
            result of comparing them with torch.
    """

    auto: Any
    precision: Precision
    pipeline: PipelineName | None
    fill: Callable[[Path, ModelSource, LoadOptions, Progress], None]
    start: Callable[[Entry, LoadOptions], tuple[Any, bool, Verdict]]

    def load(self, name_or_path: str | Path, options: LoadOptions) -> LoadedModel[Any]:
        """Finds or builds an entry, and loads its programs.

        Args:
            name_or_path: a value for npu_llm.checkpoint.source.find_source, or a folder that
                `export` wrote.
            options: load options.

        Raises:
            OptionError: [one-step-pipeline] for a pipeline of a model without a choice,
                [unknown-dtype] for the precision of the files, which only kernels support.
            ModelError, CaptureError, CacheError: if it cannot be read, traced or stored.
            WrongResultError: [wrong-result] if its programs' results differ from torch's.
        """
        if self.pipeline is None and options.pipeline is not None:
            raise OptionError(
                "`pipeline` must be omitted for a one-step model, whose program depends on the "
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
                assert entry is not None, "the new entry is readable"
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
        """Writes a folder that loads without building; returns its entry.

        Args:
            name_or_path: a checkpoint folder or a name on the hub.
            output: the folder to write; must be empty or not exist.
            options: load options.

        Raises:
            OptionError: [output-exists] for a folder that is not empty.
            ModelError, CaptureError, CacheError: the errors of `load`.
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
                'task, whose programs do not support file blocks, got "file". Omit it.',
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
                f"`{path}` must be unchanged since export wrote it, got: {problem}. Copy it "
                "again, or export the model again.",
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
