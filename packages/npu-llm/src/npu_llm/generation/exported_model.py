"""ExportedModel: an exported kernel program on numpy arrays, in a process without torch."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from npu_command.host_memory import return_memory
from npu_command.import_hooks import has_torch
from npu_compiler.verification.result import Verdict
from npu_llm.choices import PipelineName
from npu_llm.engine.engine import Engine, EngineOptions
from npu_llm.engine.sampler import Token
from npu_llm.engine.sampling_params import to_params
from npu_llm.errors import ModelError, OptionError
from npu_llm.generation.entry_model import EntryModel
from npu_llm.kv_cache.blocks import BlockPool
from npu_llm.kv_cache.sequence_cache import SequenceCache
from npu_llm.models.entry import Entry, open_exported
from npu_llm.models.kernel_loading import load_kernels, verdict_folder
from npu_llm.models.load_report import LoadReport
from npu_llm.verification.kept_verdict import read_kept
from npu_runtime.errors import KindError
from npu_runtime.public_calls import public_call

__all__ = ["ExportedModel"]


class ExportedModel(EntryModel):
    """A kernel program that `npu_llm.export` wrote, with everything needed to generate.

    It runs without torch and transformers, which need not be installed. npu_llm.load adds
    transformers' interface, adapters, structured output and the other pipelines.

    Attributes:
        report: load times and checks.
    """

    @public_call
    def __init__(self, folder: str | os.PathLike[str] | Entry) -> None:
        """Loads the model.

        Args:
            folder: a folder that `npu_llm.export` wrote.

        Raises:
            ModelError: [exported-damaged]; [exported-kernels] for a pipeline other than "kernels".
        """
        started = time.perf_counter()
        entry = folder if isinstance(folder, Entry) else open_exported(Path(folder).expanduser())
        if entry.pipeline != "kernels":
            raise ModelError(
                f"`{entry.folder}` must be a kernel program to load without torch, got the "
                f"{entry.pipeline} pipeline. Export it with pipeline='kernels', or use "
                "npu_llm.load.",
                code="exported-kernels",
            )
        super().__init__(entry)
        _, self._pool = load_kernels(entry)
        known = read_kept(verdict_folder(entry.compiled))
        self._verdict = known or Verdict(
            "unchecked", "torch is not available, and the program has not run on such a processor"
        )
        # A float precision depends on the device, which only torch opens.
        is_known = has_torch() or entry.facts.quantization is not None
        self.report = LoadReport(
            True, time.perf_counter() - started, "CPU", self._verdict,
            weights=entry.how_weights_run if is_known else None,
        )  # fmt: skip
        return_memory()

    @property
    def pipeline(self) -> PipelineName:
        """The execution mode: "kernels"."""
        return "kernels"

    @property
    def verification(self) -> Verdict:
        """The result of comparing the program with torch on a processor of this kind."""
        return self._verdict

    @property
    def block_pool(self) -> BlockPool:
        """The block pool of its caches."""
        return self._pool

    def new_cache(self) -> SequenceCache:
        """Returns an empty cache for one sequence."""
        return SequenceCache(self._pool, self)

    def continues(self, cache: Any) -> bool:
        """Whether a cache belongs to this model."""
        return getattr(cache, "made_by", None) is self

    @property
    def constraints(self) -> NoReturn:
        """Raises OptionError [exported-option]: structured output needs torch."""
        raise OptionError(
            "`form` must be omitted without torch, got one. Use npu_llm.load.",
            code="exported-option",
        )

    @public_call
    def generate(self, prompt: str | Sequence[int], **options: Any) -> list[int]:
        """Continues a prompt.

        Args:
            prompt: a text, or tokens.
            options: options of transformers' generate that npu_llm.engine.sampling_params supports,
                such as max_new_tokens, do_sample, temperature, top_p and seed.

        Returns:
            The new tokens, including the end token.

        Raises:
            OptionError: [exported-option] for an unsupported option, and as Engine.submit does.
            ContextError: [context-overflow], [cache-blocks].
            KindError: [argument-kind] for a prompt of another kind.
        """
        tokens = self.text_tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not all(isinstance(token, int) for token in tokens):
            raise KindError(
                "generate: `prompt` must be a text or integers, got other items. Pass token ids "
                "from a tokenizer.",
                code="argument-kind",
            )
        options = {**self.generation_defaults, **options}
        params = to_params(options)
        if params is None or params.stop:
            raise OptionError(
                "generate: options must be options of npu_llm.engine.sampling_params without stop "
                f"strings, got {_names(options)}. Use npu_llm.load for others.",
                code="exported-option",
            )
        engine = Engine(self, EngineOptions.whole_batch(1))
        try:
            answer: list[int] = []
            for event in engine.generate(tokens, params):
                if isinstance(event, Token):
                    answer.append(event.id)
                elif event.error is not None:
                    raise event.error
            return answer
        finally:
            engine.close()


def _names(options: Mapping[str, Any]) -> str:
    return ", ".join(sorted(options)) or "none"
