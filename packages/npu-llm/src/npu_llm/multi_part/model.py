"""MultiPartModel: transformers' model class with programs instead of its parts.

Generation, input preparation and timestamp alignment are the class's own code for any architecture.
Only its `forward` and the parts that it calls are replaced.
"""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import transformers
from transformers import GenerationConfig

from npu_compiler.verification.result import Verdict
from npu_llm.cache_names import rename_cache
from npu_llm.checkpoint.saved import read_saved_config
from npu_llm.checkpoint.source import ModelSource
from npu_llm.choices import PipelineName
from npu_llm.errors import OptionError, check_token_range
from npu_llm.models.entry import REFERENCE, Entry
from npu_llm.models.load import LoadedModel
from npu_llm.models.load_options import LoadOptions
from npu_llm.models.pretrained import Pretrained, TaskEntries
from npu_llm.multi_part.running import DynamicParts, Parts, StaticParts
from npu_llm.progress import Progress, ProgressListener
from npu_runtime.public_calls import public_call

try:
    from transformers.initialization import no_init_weights
except ImportError:  # before transformers 5
    from transformers.modeling_utils import no_init_weights

__all__ = ["MultiPartModel", "check_floats", "check_tokens"]


class MultiPartModel(Pretrained):
    """A model with programs as parts; the rest is transformers' code.

    Attributes:
        generation_config: default options of generate.
    """

    generation_config: Any
    # Programs of this class's models.
    _dynamic: ClassVar[type[DynamicParts]]
    _static: ClassVar[type[StaticParts]]
    _parts: Any

    @classmethod
    @abstractmethod
    def _trace_parts(cls, model: Any, source: ModelSource, *, is_static: bool) -> Any:
        """Traces a transformers model; returns npu_llm.multi_part.tracing.TracedModel."""

    @classmethod
    @abstractmethod
    def _compare_parts(cls, parts: Any, reference: Any, name: str) -> str | None:
        """Runs a part, with its surrounding parts, on the inputs of a reference.

        Args:
            parts: the programs.
            reference: npu_llm.multi_part.reference.Reference.
            name: name of the part.

        Returns:
            A description of the difference from torch; None without one.
        """

    @abstractmethod
    def _complete(self) -> None:
        """Inserts the programs, `_parts`, in place of the parts that transformers' code calls."""

    @abstractmethod
    def run_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a step like transformers' `forward`."""

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
        ignore_unexpected: bool = False,
        on_progress: ProgressListener | None = None,
    ) -> Path:
        """Writes a model that loads without tracing, and here without compiling.

        Args:
            name_or_path: a checkpoint folder, or a name on the hub.
            output: the folder to write; must be empty or not exist.
            dtype: as in from_pretrained.
            pipeline: as in from_pretrained.
            verify: "off" to skip comparing the programs with torch.
            trust_remote_code: whether to run model code from the checkpoint.
            ignore_unexpected: whether to ignore tensors that the model does not use.
            on_progress: called with a stage and its share done, 0.0 to 1.0.

        Returns:
            The folder, for from_pretrained and for processors and tokenizers.

        Raises:
            OptionError: [output-exists] for a folder that is not empty.
            ModelError, CaptureError: the errors of from_pretrained.
        """
        options = LoadOptions(
            dtype=dtype,
            pipeline=pipeline,
            verify=verify,
            trust_remote_code=trust_remote_code,
            ignore_unexpected=ignore_unexpected,
            on_progress=on_progress,
        )
        entries = cls._entries(options)
        entry = entries.export(name_or_path, output, options)
        parts, *_ = entries.start(entry, options)
        if isinstance(parts, DynamicParts):
            for name in parts.outputs:
                parts.get(name)
        return entry.folder

    @classmethod
    def _entries(cls, options: LoadOptions) -> TaskEntries:
        options.check_kernels("a model of several parts has several programs")
        pipeline: PipelineName = "static" if options.pipeline_here == "static" else "dynamic"

        def fill(folder: Path, source: ModelSource, how: LoadOptions, progress: Progress) -> None:
            # A slow import, not needed to load from the cache.
            from npu_llm.multi_part.building import fill_entry

            trace = functools.partial(cls._trace_parts, is_static=pipeline == "static")
            fill_entry(
                folder, source, how, progress, auto=cls._auto, pipeline=pipeline, trace=trace
            )

        def start(entry: Entry, how: LoadOptions) -> tuple[Parts, bool, Verdict]:
            kind = cls._static if entry.pipeline == "static" else cls._dynamic
            parts = kind(entry, when=how.verified, check=cls._check)
            return parts, *parts.start()

        return TaskEntries(cls._auto, options.precision, pipeline, fill, start)

    @classmethod
    def _check(cls, parts: Parts, name: str) -> str | None:
        from npu_llm.multi_part.reference import read_reference

        return cls._compare_parts(parts, read_reference(parts.entry.folder / REFERENCE), name)

    @classmethod
    def _made_of(cls, ready: LoadedModel[Any]) -> Self:
        made = cls._around(ready.programs)
        made.precision, made.report = ready.entry.precision, ready.report
        return made

    @classmethod
    def _around(cls, parts: Parts) -> Self:
        """Wraps programs, correct or not, in a model of transformers' class.

        Its parameters have no memory. It is an instance of both this class and transformers', with
        the latter's name, by which pipelines look it up, and with the signature of its `forward`,
        which generate reads.
        """
        entry = parts.entry
        config = read_saved_config(entry.folder)
        architecture = getattr(transformers, str(entry.about["architecture"]))
        forward = functools.wraps(architecture.forward)(_calls_ours)
        kind = type(
            architecture.__name__, (cls, architecture), {"__module__": __name__, "forward": forward}
        )
        with torch.device("meta"), no_init_weights():
            made: Any = kind(config)
        made.generation_config = GenerationConfig.from_pretrained(entry.folder)
        made._entry, made._parts = entry, parts
        made._complete()
        model: Self = made.eval()
        return model

    def _arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], refused: tuple[str, ...]
    ) -> dict[str, Any]:
        """Returns the arguments of a call of `forward` by name.

        Raises:
            OptionError: [no-inner-states] for an argument that requests other results.
        """
        bound = inspect.signature(type(self).forward).bind(self, *args, **kwargs)  # type: ignore[attr-defined]
        named = dict(list(bound.arguments.items())[1:])
        named |= named.pop("kwargs", {})
        for name in refused:
            if named.get(name) is not None and named[name] is not False:
                raise OptionError(
                    f"`{name}` must be omitted, since a compiled model takes tokens and returns "
                    f"logits, got {type(named[name]).__name__}. Omit it.",
                    code="no-inner-states",
                )
        return named

    def _given_cache(self, named: dict[str, Any], kind: type) -> Any:
        """Returns the cache among the arguments of a call; None if there is none.

        Raises:
            OptionError: [foreign-cache] for a cache from another model.
        """
        cache = rename_cache(named)
        if cache is not None and not isinstance(cache, kind):
            raise OptionError(
                "`past_key_values` must be a cache that this model returned, got a "
                f"{type(cache).__name__}. Omit it for a new one.",
                code="foreign-cache",
            )
        return cache


def check_tokens(name: str, ids: Any, vocabulary: int) -> torch.Tensor:
    """Returns token ids (batch, length) int64 on the host.

    Raises:
        OptionError: [step-dtype] for a value that is not an integer tensor, [step-shape] for
            another shape, [token-range] for an id outside the vocabulary.
    """
    if not isinstance(ids, torch.Tensor) or ids.is_floating_point():
        raise _wrong_type(name, ids, "integers", "the tokenizer")
    if ids.dim() != 2 or ids.numel() == 0:
        raise OptionError(
            f"`{name}` must have the shape (batch, tokens), with at least one token, got "
            f"{tuple(ids.shape)}. Pass one row per sequence.",
            code="step-shape",
        )
    found = ids.to("cpu", torch.int64)
    check_token_range(name, int(found.min()), int(found.max()), vocabulary)
    return found


def check_floats(name: str, value: Any, medium: str) -> torch.Tensor:
    """Returns a processor's tensor of an image or audio, the `medium`.

    Raises:
        OptionError: [step-dtype] for a value that is not a float tensor, [input-not-finite].
    """
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        raise _wrong_type(name, value, "floats", "the processor")
    if not bool(value.isfinite().all()):
        raise OptionError(
            f"`{name}` must be finite, got NaN or infinity. Check the {medium}.",
            code="input-not-finite",
        )
    return value


def _wrong_type(name: str, value: Any, wanted: str, maker: str) -> OptionError:
    got = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
    return OptionError(
        f"`{name}` must be a tensor of {wanted}, got {got}. Pass the result of {maker} with "
        'return_tensors="pt".',
        code="step-dtype",
    )


def _calls_ours(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self.run_forward(*args, **kwargs)
