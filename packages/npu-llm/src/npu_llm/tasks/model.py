"""TaskModel: a model with one traced step and the call interface of transformers."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
import transformers

from npu_compiler.exported.compiled_shapes import has_one_shape
from npu_compiler.exported.load import load
from npu_compiler.verification.result import Verdict
from npu_llm.checkpoint.processors import load_beside
from npu_llm.checkpoint.saved import read_saved_config
from npu_llm.checkpoint.source import ModelSource
from npu_llm.models.entry import Entry
from npu_llm.models.load import LoadedModel
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.pretrained import Pretrained, TaskEntries
from npu_llm.precision import PRECISIONS
from npu_llm.progress import Progress, ProgressListener
from npu_llm.tasks.inputs import Padding, bind_inputs
from npu_llm.tasks.results import make_result
from npu_runtime.public_calls import public_call

__all__ = ["TaskModel"]

# An encoder reads each weight once per batch: half-precision weights gain little speed, and lose
# accuracy.
_DEFAULT_PRECISION = "float32"
_COMPARED = "yes"


class TaskModel(Pretrained):
    """An encoder or classifier, compiled for the npu device.

    Created by `from_pretrained`. It accepts the output of its processor or tokenizer, returns the
    result class of the transformers model, and works in transformers.pipeline(model=...). For
    attributes see npu_llm.models.pretrained.Pretrained.
    """

    base_model_prefix = ""
    input_modalities: tuple[str, ...] = ("text",)
    output_modalities: tuple[str, ...] = ()

    def __init__(self, ready: LoadedModel[Any]) -> None:
        self.precision = ready.entry.precision
        self.report = ready.report
        self.config = read_saved_config(ready.entry.folder)
        self.main_input_name = str(ready.entry.about["inputs"][0])
        self._entry = ready.entry
        self._program = ready.programs
        text = self.config.get_text_config()
        self._vocabulary = getattr(text, "vocab_size", None)
        self._types = getattr(text, "type_vocab_size", None)
        # Compiling a program for each shape takes long, so few shapes cover all calls.
        pads = has_one_shape(self.report.device) and ready.entry.about.get("may_pad")
        manifest = ready.programs.manifest
        self._padding = Padding(manifest, self.config, limit=self.context_length) if pads else None

    @classmethod
    @public_call
    def export(
        cls,
        name_or_path: str | Path,
        output: str | Path,
        *,
        dtype: str | torch.dtype | None = None,
        group_size: int = 64,
        symmetric: bool = False,
        inputs: list[dict[str, torch.Tensor]] | None = None,
        verify: str = "first",
        trust_remote_code: bool = False,
        ignore_unexpected: bool = False,
        on_progress: ProgressListener | None = None,
    ) -> Path:
        """Writes a model that loads without tracing.

        Args:
            name_or_path: a checkpoint folder, or a name on the hub.
            output: the folder to write; must be empty or not exist.
            dtype: as in from_pretrained.
            group_size: number of weights of a row that share a scale, 32, 64 or 128; for int4.
            symmetric: whether to omit zero points; for int8 and int4.
            inputs: example calls by name, as a processor returns them. They calibrate int4 weights;
                with "int8", activations become int8 as well.
            verify: "off" to skip comparing the program with torch.
            trust_remote_code: whether to run model code from the checkpoint.
            ignore_unexpected: whether to ignore tensors that the model does not use.
            on_progress: called with a stage and its share done, 0.0 to 1.0.

        Returns:
            The folder, for from_pretrained and for processors and tokenizers.

        Raises:
            OptionError: [output-exists] for a folder that is not empty, [group-size],
                [quantize-inputs] for calls with another dtype.
            npu_compiler.errors.OptionError: [quantize-library] if int8 activations need NNCF.
            ModelError, CaptureError: the errors of from_pretrained.
        """
        options = LoadOptions(
            dtype=dtype,
            verify=verify,
            trust_remote_code=trust_remote_code,
            ignore_unexpected=ignore_unexpected,
            on_progress=on_progress,
        )
        quantizing = {"group_size": group_size, "symmetric": symmetric, "inputs": inputs}
        return cls._entries(options, **quantizing).export(name_or_path, output, options).folder

    @classmethod
    def _made_of(cls, ready: LoadedModel[Any]) -> Self:
        # Pipelines look up a model by the name of transformers' class.
        name = str(ready.entry.about["architecture"])
        made: Any = type(name, (cls,), {"__module__": __name__, "__doc__": cls.__doc__})
        model: Self = made(ready)
        return model

    @classmethod
    def _entries(cls, options: LoadOptions, **quantizing: Any) -> TaskEntries:
        precision = PRECISIONS[_DEFAULT_PRECISION] if options.needs_facts else options.precision

        def fill(folder: Path, source: ModelSource, how: LoadOptions, progress: Progress) -> None:
            # Imported late: loads torch.export and the passes, which a load from the cache does not
            # need.
            from npu_llm.tasks.building import Quantizing, fill_task_entry

            fill_task_entry(
                folder, source, how, progress,
                auto=cls._auto, precision=precision, quantizing=Quantizing(**quantizing),
            )  # fmt: skip

        return TaskEntries(cls._auto, precision, None, fill, _start)

    @public_call
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model.

        Args:
            args: positional inputs, in the order of the transformers model.
            kwargs: inputs by name. Masks and token types may be omitted.

        Returns:
            The result class of the transformers model; a tuple for return_dict=False.

        Raises:
            OptionError, ContextError: see npu_llm.tasks.inputs.bind_inputs.
        """
        given = dict(zip(self._entry.about["inputs"], args, strict=False)) | kwargs
        values = bind_inputs(
            self.name,
            given,
            self._program.inputs,
            vocabulary=self._vocabulary,
            types=self._types,
            limit=self.context_length,
        )
        if self._padding is None:
            found = self._program(*values)
        else:
            found = self._padding.cut(self._program(*self._padding.pad(values)), values)
        result = make_result(self._entry.about["result"], found)
        return result if kwargs.get("return_dict") is not False else result.to_tuple()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See forward."""
        return self.forward(*args, **kwargs)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._entry.name

    @property
    def entry(self) -> Entry:
        """The folder that it was loaded from."""
        return self._entry

    @property
    def context_length(self) -> int | None:
        """Maximum number of tokens of a text; None for no limit, or for other inputs."""
        length = self._entry.about["context_length"]
        return None if length is None else int(length)

    def eval(self) -> Self:
        """Returns the model, which supports only inference."""
        return self

    def can_generate(self) -> bool:
        """False."""
        return False

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer.

        Raises:
            ModelError: [missing-processor] if it has none, [remote-code] if its code is not
                trusted.
        """
        return load_beside(
            transformers.AutoTokenizer,
            self._entry.folder,
            "a tokenizer",
            trust_remote_code=self._entry.trusts_code,
        )


def _start(entry: Entry, _: LoadOptions) -> tuple[Any, bool, Verdict]:
    program = load(entry.folder / "program")
    verified = program.manifest.verified
    verdict = Verdict("right") if verified == _COMPARED else Verdict("unchecked", verified)
    return program, program.from_cache, verdict
