"""TaskModel: a model with one captured step, called as transformers' own is."""

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

# A batch of an encoder reads each weight once: halving them gains little, and costs digits.
_DEFAULT_PRECISION = "float32"
_COMPARED = "yes"


class TaskModel(Pretrained):
    """An encoder or classifier, compiled for the npu device.

    Made by `from_pretrained`. It takes what its processor or tokenizer returns, returns the class
    of result that transformers' model does, and stands in transformers.pipeline(model=...).
    For attributes see npu_llm.models.pretrained.Pretrained.
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
        # A program for each shape takes long to compile: few shapes serve all calls.
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
        """Writes a model that starts without being traced.

        Args:
            name_or_path: a checkpoint folder, or a name on the hub.
            output: the folder to write, which must be empty or not exist.
            dtype: as in from_pretrained.
            group_size: how many weights of a row share a scale, 32, 64 or 128; for int4.
            symmetric: whether to omit zero points; for int8 and int4.
            inputs: example calls by name, as a processor returns them: int4 weights are rounded by
                them, and with "int8" activations become int8 as well.
            verify: "off" to skip comparing the program with torch.
            trust_remote_code: whether model code inside the checkpoint may run.
            ignore_unexpected: whether to drop tensors that the model has no place for.
            on_progress: called with a stage and how much of it is done, 0.0 to 1.0.

        Returns:
            The folder, which from_pretrained takes, as processors and tokenizers do.

        Raises:
            OptionError: [output-exists] for a folder that is not empty, [group-size],
                [quantize-inputs] for calls with another dtype.
            npu_compiler.errors.OptionError: [quantize-library] where int8 activations need NNCF.
            ModelError, CaptureError: as from_pretrained does.
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
        # Pipelines look a model up by the name of transformers' class.
        name = str(ready.entry.about["architecture"])
        made: Any = type(name, (cls,), {"__module__": __name__, "__doc__": cls.__doc__})
        model: Self = made(ready)
        return model

    @classmethod
    def _entries(cls, options: LoadOptions, **quantizing: Any) -> TaskEntries:
        precision = PRECISIONS[_DEFAULT_PRECISION] if options.needs_facts else options.precision

        def fill(folder: Path, source: ModelSource, how: LoadOptions, progress: Progress) -> None:
            # Late: it imports torch.export and the passes, which a start from the cache omits.
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
            args: as transformers' model takes them: its inputs in order.
            kwargs: by name. Masks and token types may be omitted.

        Returns:
            The class of result that transformers' model returns; a tuple for return_dict=False.

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
        """The folder that it was started from."""
        return self._entry

    @property
    def context_length(self) -> int | None:
        """The largest number of tokens of a text; None for no limit, or for other inputs."""
        length = self._entry.about["context_length"]
        return None if length is None else int(length)

    def eval(self) -> Self:
        """Returns the model, which is made for inference."""
        return self

    def can_generate(self) -> bool:
        """False."""
        return False

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer that came with the model.

        Raises:
            ModelError: [missing-processor] if there is none, [remote-code] if it is code that is
                not trusted.
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
