"""ServedModel: a model, its tokenizer, its engine, and what its makers recommend."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from npu_llm.errors import missing_tokenizer
from npu_llm.prompts.chat_prompt import Message, encode_chat
from npu_llm.prompts.unicode_text import check_text
from npu_llm.serving.scheduling.engine import Engine, EngineOptions
from npu_llm.serving.scheduling.request import Sampling
from npu_llm.structured_output import ConstraintMaker, Form, TokenConstraint

if TYPE_CHECKING:
    from npu_llm.generation.model import NPUModelForCausalLM

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

    def __init__(self, name: str, model: NPUModelForCausalLM, options: EngineOptions) -> None:
        """Starts the engine.

        Raises:
            ModelError: [missing-tokenizer] for a model without one.
        """
        if model.tokenizer is None:
            raise missing_tokenizer(name)
        self.name = name
        self.model = model
        self.context_length = model.context_length
        self.sampling, self.ends = _read_config(model)
        self.engine = Engine(model, options).start()
        # Encoding a long text takes long, and changes settings of the tokenizer meanwhile.
        self._encoder: Any = model.tokenizer
        self.tokenizer: Any = copy.deepcopy(model.tokenizer)
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
            ids: list[int] = self._encoder(text, add_special_tokens=special)["input_ids"]
            return ids

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
            encoded = encode_chat(
                self._encoder, messages, tools=tools, template_options=template_options
            )
            ids: list[int] = encoded["input_ids"][0].tolist()
            return ids

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


def _read_config(model: NPUModelForCausalLM) -> tuple[Sampling, frozenset[int]]:
    """Returns how a model's makers recommend to draw tokens, and which tokens end an answer."""
    file = model.entry.folder / "generation_config.json"
    config = json.loads(file.read_text())
    ends = config.get("eos_token_id")
    ends = frozenset([ends] if isinstance(ends, int) else ends or ())
    if not config.get("do_sample"):
        return Sampling(), ends
    known = {name: config[name] for name in _RECOMMENDED if config.get(name) is not None}
    return replace(Sampling(), **known), ends
