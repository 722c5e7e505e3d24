"""ServedModel: a model, its tokenizer, its engine, and what its makers recommend."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from npu_llm.engine.engine import Engine, EngineOptions
from npu_llm.engine.sampling_params import SamplingParams
from npu_llm.errors import check_text
from npu_llm.structured_output import ConstraintMaker, Form, TokenConstraint
from npu_llm.tokenizer.tokenizer import Message

if TYPE_CHECKING:
    from npu_llm.generation.language_model import LanguageModel

__all__ = ["ServedModel"]

_Result = TypeVar("_Result")

_RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class ServedModel:
    """A model that answers.

    Attributes:
        name: what clients call it.
        engine: runs its steps.
        tokenizer: for decoding, in the event loop only.
        sampling: what a request that names nothing gets: the settings of the model's generation
            config if it draws tokens; else temperature 1.0 and no bounds.
        ends: the tokens that end an answer.
        context_length: how many tokens prompt and answer have at most; None for no bound.
    """

    def __init__(self, name: str, model: LanguageModel, options: EngineOptions) -> None:
        """Starts the engine.

        Raises:
            ModelError: [missing-tokenizer] for a model without one.
        """
        self.name = name
        self.model = model
        self.context_length = model.context_length
        # Encoding a long text takes long, and changes settings of some tokenizers meanwhile.
        self._encoder = model.text_tokenizer
        self.tokenizer = copy.deepcopy(self._encoder)
        self.sampling, self.ends = _recommended(model), model.end_tokens
        self.engine = Engine(model, options).start()
        self._forms = ConstraintMaker(
            self._encoder, vocabulary=model.vocabulary, ends=sorted(self.ends)
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="npu-llm tokens")

    @property
    def is_alive(self) -> bool:
        """Whether it can answer."""
        return self.engine.is_alive

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Returns the tokens of a text.

        Args:
            text: any text.
            special: whether to add the tokens that the tokenizer puts around a text.

        Raises:
            OptionError: [text-encoding] for text that is not Unicode.
        """
        check_text("prompt", text)

        def work() -> list[int]:
            return self._encoder.encode(text, special=special)

        return await self._elsewhere(work)

    async def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Returns the tokens of a conversation; takes and raises what encode_chat does."""

        def work() -> list[int]:
            return self._encoder.encode_chat(
                messages, tools=tools, template_options=template_options
            )

        return await self._elsewhere(work)

    async def constraint(self, make: Callable[[], Form]) -> TokenConstraint:
        """Returns what holds one answer to a form; building it may take a second.

        Args:
            make: returns the form.

        Raises:
            OptionError: [answer-form], [missing-llguidance], see npu_llm.structured_output.
        """
        return await self._elsewhere(lambda: self._forms.make(make()))

    def close(self, *, grace_s: float = 0.0) -> None:
        """Ends the engine; see Engine.close."""
        self.engine.close(grace_s=grace_s)
        self._thread.shutdown(cancel_futures=True)

    async def _elsewhere(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _recommended(model: LanguageModel) -> SamplingParams:
    """Returns the sampling parameters that a model's makers recommend."""
    config = model.generation_defaults
    if not config.get("do_sample"):
        return SamplingParams()
    known = {name: config[name] for name in _RECOMMENDED if config.get(name) is not None}
    return SamplingParams(**known)
