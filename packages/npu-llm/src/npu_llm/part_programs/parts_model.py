"""PartsModel: what models of several programs share: how they are loaded and exported."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from pathlib import Path
from typing import Any, Self

import torch

from npu_compiler.verification.result import Verdict
from npu_llm.models.build import LoadReport
from npu_llm.models.entry import Entry
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.task_entries import TaskReady
from npu_llm.part_programs.loading import Programs, Recipe, entries_of
from npu_llm.part_programs.skeleton import make_skeleton
from npu_llm.precision import Precision
from npu_llm.progress import ProgressListener
from npu_runtime.public_calls import public_call

__all__ = ["PartsModel", "named_arguments"]


class PartsModel:
    """A model whose parts are programs, and whose other code is transformers' own.

    Attributes:
        config: the transformers config.
        generation_config: the defaults of generate.
        precision: how weights are stored and arithmetic is done.
        report: how this start went: times, and whether it came from the cache.
        verification: the outcome of comparing the programs with torch.
        has_fixed_device: that `to` moves nothing, so that pipelines leave inputs where they are.
    """

    has_fixed_device = True
    config: Any
    generation_config: Any
    precision: Precision
    report: LoadReport
    verification: Verdict
    _auto: Any = None
    _entry: Entry

    @classmethod
    @abstractmethod
    def _recipe(cls) -> Recipe:
        """How models of this class become programs."""

    @abstractmethod
    def _complete(self, programs: Any) -> None:
        """Puts the programs where the model calls its parts.

        Args:
            programs: see npu_llm.models.task_entries.TaskReady.
        """

    @classmethod
    @public_call
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        dtype: str | torch.dtype | None = None,
        pipeline: str | None = None,
        verify: str = "first",
        device: str | torch.device | None = None,
        cache_dir: str | Path | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        token: str | bool | None = None,
        on_progress: ProgressListener | None = None,
    ) -> Self:
        """Loads a model, from the compile cache where this start is not the first.

        Args:
            pretrained_model_name_or_path: a checkpoint folder of transformers, a folder that
                `export` wrote, or a name on the hub.
            dtype: as in NPUModelForCausalLM.from_pretrained.
            pipeline: "dynamic" for programs that take any size, "static" for programs of fixed
                sizes, as NPUs need them; by default what suits the device.
            verify: "first" to compare the programs with torch once; "always" to compare at each
                start; "off" to skip the comparison.
            device: None or "npu".
            cache_dir: where compiled models are kept; see npu_llm.config for the default.
            trust_remote_code: whether model code inside the checkpoint may run.
            revision: which revision, for a name on the hub.
            token: access token, for a name on the hub.
            on_progress: called with a stage and how much of it is done, 0.0 to 1.0.

        Raises:
            ModelError: when there is no such model, its files are damaged, or it is one for
                another task: [unknown-architecture], [model-task].
            CaptureError: when the architecture cannot run here.
            OptionError: for an unknown dtype, or another device.
            npu_compiler.errors.WrongResultError: when a program's results differ from torch's.
        """
        options = LoadOptions(
            dtype=dtype,
            pipeline=pipeline,
            verify=verify,
            device=device,
            cache_dir=cache_dir,
            trust_remote_code=trust_remote_code,
            revision=revision,
            token=token,
            on_progress=on_progress,
        )
        return cls._made_of(
            entries_of(options, cls._recipe()).load(pretrained_model_name_or_path, options)
        )

    @classmethod
    @public_call
    def export(
        cls,
        name_or_path: str | Path,
        output: str | Path,
        *,
        dtype: str | torch.dtype | None = None,
        pipeline: str | None = None,
        verify: str = "first",
        trust_remote_code: bool = False,
        on_progress: ProgressListener | None = None,
    ) -> Path:
        """Writes a model that starts without being traced, and here without compiling.

        Args:
            name_or_path: a checkpoint folder, or a name on the hub.
            output: the folder to write, which must be empty or not exist.
            dtype: as in from_pretrained.
            pipeline: as in from_pretrained.
            verify: "off" to skip comparing the programs with torch.
            trust_remote_code: whether model code inside the checkpoint may run.
            on_progress: called with a stage and how much of it is done, 0.0 to 1.0.

        Returns:
            The folder, which from_pretrained takes, as processors and tokenizers do.

        Raises:
            OptionError: [output-exists] for a folder that is not empty.
            ModelError, CaptureError: as from_pretrained does.
        """
        options = LoadOptions(
            dtype=dtype,
            pipeline=pipeline,
            verify=verify,
            trust_remote_code=trust_remote_code,
            on_progress=on_progress,
        )
        entries = entries_of(options, cls._recipe())
        entry = entries.export(name_or_path, output, options)
        programs, *_ = entries.start(entry, options)
        if isinstance(programs, Programs):
            for name in programs.outputs:
                programs.get(name)
        return entry.folder

    @classmethod
    def _made_of(cls, ready: TaskReady) -> Self:
        made: Self = make_skeleton(ready.entry, cls)
        made.precision, made.report = ready.entry.precision, ready.report
        made.verification = ready.report.verification
        made._entry = ready.entry
        made._complete(ready.loaded)
        return made

    # What transformers asks a model for

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


def named_arguments(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call of a model's forward by name, without the model."""
    bound = inspect.signature(type(model).forward).bind(model, *args, **kwargs)
    named = dict(list(bound.arguments.items())[1:])
    others = named.pop("kwargs", {})
    return {**named, **others}
