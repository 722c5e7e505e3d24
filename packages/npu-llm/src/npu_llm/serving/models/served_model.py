"""ServedModel: a language model with its tokenizer, engine and recommended settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from npu_llm.chat.output_format import OutputFormat
from npu_llm.engine.engine import Engine, EngineOptions
from npu_llm.errors import ContextError, OptionError, ServerError, check_text
from npu_llm.serving.request_error import RequestError
from npu_llm.structured_output import ConstraintMaker, Form, TokenConstraint
from npu_llm.tokenizer.token_bytes import TokenBytes, longest_token
from npu_llm.tokenizer.tokenizer import Message

if TYPE_CHECKING:
    from npu_llm.generation.language_model import LanguageModel

__all__ = ["ServedModel"]

_Result = TypeVar("_Result")

_LONG = 32 << 10  # characters, which take about 30 ms
_MAX_MAKING_S = 10.0  # for compiling a form; usual ones take milliseconds
_MAX_LONG = 8  # maximum number of waiting texts of that length
# Fill-in-the-middle tokens by their names in several models.
_PREFIX = ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>", "▁<PRE>", "<PRE>")
_SUFFIX = ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>", "▁<SUF>", "<SUF>")
_MIDDLE = ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>", "▁<MID>", "<MID>")
_REPO = ("<|repo_name|>", "<|fim_repo|>", "<reponame>", "<repo_name>")
_FILE = ("<|file_sep|>", "<|fim_sep|>", "<file_sep>")
_RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class ServedModel:
    """A loaded language model.

    Attributes:
        name: name in requests.
        engine: runs its steps.
        tokenizer: tokenizer for decoding, in the event loop only.
        token_bytes: the bytes of its tokens.
        output_format: format of reasoning and calls in its answers.
        sampling: sampling parameters of the model's generation config; empty if it does
            not sample.
        ends: tokens that end an answer.
        context_length: maximum number of tokens of prompt and answer; None for no limit.
    """

    def __init__(
        self, name: str, model: LanguageModel | Any, options: EngineOptions, *, engine: Any = None
    ) -> None:
        """Starts the engine.

        Args:
            name: name in requests.
            model: a language model, or an object with the same properties.
            options: of the engine.
            engine: a running engine; None to create one.

        Raises:
            ModelError: [missing-tokenizer] for a model without a tokenizer.
        """
        self.name = name
        self.model = model
        self.context_length = model.context_length
        self._encoder = model.text_tokenizer
        self._long_encoder: Any = None  # created for the first long text
        self._num_long = 0
        self.tokenizer = self._encoder.for_thread()
        self.token_bytes = TokenBytes(self.tokenizer)
        self.output_format = OutputFormat(self.tokenizer)
        self._longest_token = longest_token(self.tokenizer)
        self.sampling, self.ends = _recommended(model), model.end_tokens
        self.engine: Engine = Engine(model, options).start() if engine is None else engine
        self._forms = ConstraintMaker(
            self._encoder, vocabulary=model.vocabulary, ends=sorted(self.ends)
        )
        self._short, self._long, self._making = (
            ThreadPoolExecutor(count, thread_name_prefix=f"npu-llm {name}")
            for name, count in (("tokens", 1), ("long texts", 1), ("forms", 2))
        )
        # Holds the GIL for 0.2 s, which the first form's request would impose on all others.
        self._making.submit(self._forms.prepare)

    @property
    def is_alive(self) -> bool:
        """Whether the engine can answer."""
        return self.engine.is_alive

    @property
    def capabilities(self) -> list[str]:
        """Capabilities of the model, by Ollama's names."""
        found = {
            "insert": self._gap_tokens(),
            "tools": self.output_format.calls,
            "thinking": self.output_format.thinking,
        }
        return ["completion", *(name for name, style in found.items() if style is not None)]

    def find_token(self, names: Sequence[str]) -> int | None:
        """Returns the token with one of several names; None if the vocabulary has none of them."""
        backend = self.tokenizer.backend_tokenizer
        found = (None if backend is None else backend.token_to_id(name) for name in names)
        return next((token for token in found if token is not None), None)

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Returns the tokens of a text.

        Args:
            text: any text.
            special: whether to add the tokenizer's special tokens.

        Raises:
            OptionError: [text-encoding] for text that is not Unicode.
            ContextError: [context-overflow] for text that cannot fit into the context.
            ServerError: [server-busy] if too many long texts wait.
        """
        check_text("prompt", text)
        return await self._encode(len(text), lambda encoder: encoder.encode(text, special=special))

    async def encode_gap(
        self, before: str, after: str, *, files: Sequence[tuple[str, str]] = (), field: str
    ) -> list[int]:
        """Returns the prompt for the text between two others: PSM (Bavarian et al., 2022).

        Args:
            before: the text before it.
            after: the text after it.
            files: names and texts of other files.
            field: name of the request's field with the text after it.

        Raises:
            RequestError: [request-unsupported] for a model without fill-in-the-middle tokens.
            OptionError, ContextError, ServerError: see `encode`.
        """
        marks = self._gap_tokens()
        if marks is None:
            raise RequestError(
                f"`{field}` must be omitted for a model that does not support insert, got one for "
                f"{self.name}, which has no fill-in-the-middle tokens. Use another model.",
                code="request-unsupported",
                parameter=field,
            )
        found = (await self.encode(""))[:1]
        file, repository = self.find_token(_FILE), self.find_token(_REPO)
        if files and file is not None and repository is not None:
            found += [repository, *await self.encode("repository\n", special=False)]
        for name, text in files:
            if file is None:
                found += await self.encode(f"{text}\n", special=False)
            else:
                found += [file, *await self.encode(f"{name}\n{text}", special=False)]
        if files and file is not None:
            found += [file, *await self.encode("filename\n", special=False)]
        prefix, suffix, middle = marks
        found += [prefix, *await self.encode(before, special=False)]
        return [*found, suffix, *await self.encode(after, special=False), middle]

    async def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        template_options: Mapping[str, Any] | None = None,
        continues_last: bool = False,
    ) -> list[int]:
        """Returns the tokens of a conversation; see Tokenizer.encode_chat for arguments and errors.

        Raises:
            RequestError: [request-unsupported] for images and audio.
        """
        if any(isinstance(message.get("content"), list) for message in messages):
            raise RequestError(
                f"`messages` must be texts for {self.name}, got an image or audio. Use a model "
                "that reads these.",
                code="request-unsupported",
                parameter="messages",
            )

        def work(encoder: Any) -> list[int]:
            found: list[int] = encoder.encode_chat(
                messages,
                tools=tools,
                template_options=template_options,
                continues_last=continues_last,
            )
            return found

        return await self._encode(sum(_length(message) for message in messages), work)

    async def constraint(
        self,
        make: Callable[[], Form | tuple[Form, Form]] | None,
        *,
        conversation: Sequence[int] | None = None,
        budget: int | None = None,
    ) -> TokenConstraint | None:
        """Returns the constraint of one answer; None if every token is allowed.

        Args:
            make: returns the form, or the forms without and after reasoning; None for free text.
            conversation: tokens of the prompt, if the answer may reason first.
            budget: maximum number of tokens of reasoning; None for no limit.

        Raises:
            OptionError: [answer-form] for an invalid form or one that takes too long to compile,
                [missing-llguidance].
        """
        if make is None and budget is None:
            return None

        def work() -> TokenConstraint | None:
            forms = None if make is None else make()
            if conversation is not None:
                return self.output_format.constraint(
                    self._forms, conversation, forms, ends=sorted(self.ends), budget=budget
                )
            form = forms[0] if isinstance(forms, tuple) else forms
            return None if form is None else self._forms.make(form)

        made = _in_thread(self._making, work)
        try:
            return await asyncio.wait_for(made, _MAX_MAKING_S)
        except TimeoutError as failure:
            raise OptionError(
                f"`form` must compile within {_MAX_MAKING_S:.0f} s, got one that takes longer or "
                "waits for others. Simplify it, or try again later.",
                code="answer-form",
            ) from failure

    def close(self, *, grace_s: float = 0.0) -> None:
        """Ends the engine; see Engine.close."""
        self.engine.close(grace_s=grace_s)
        for thread in (self._short, self._long, self._making):
            thread.shutdown(cancel_futures=True, wait=False)

    def _gap_tokens(self) -> list[int] | None:
        """Returns the tokens before prefix, suffix and middle; None if one is missing."""
        marks = [self.find_token(names) for names in (_PREFIX, _SUFFIX, _MIDDLE)]
        found = [mark for mark in marks if mark is not None]
        return found if len(found) == len(marks) else None

    async def _encode(self, length: int, work: Callable[[Any], list[int]]) -> list[int]:
        """Runs work with a tokenizer; short texts do not wait for long ones.

        Args:
            length: number of characters.
            work: takes the tokenizer.
        """
        context, longest = self.context_length, self._longest_token
        if context is not None and longest is not None and length > context * longest:
            raise ContextError(
                f"`prompt` must fit into the context of {context:,} tokens, got {length:,} "
                f"characters, of which a token has at most {longest:,}. Shorten it.",
                code="context-overflow",
            )
        if length <= _LONG:
            return await _in_thread(self._short, lambda: work(self._encoder))
        if self._num_long >= _MAX_LONG:
            raise ServerError(
                f"server: takes at most {_MAX_LONG} texts above {_LONG:,} characters at once, got "
                "one more. Retry later.",
                code="server-busy",
            )
        self._num_long += 1
        try:
            return await _in_thread(self._long, lambda: work(self._of_long()))
        finally:
            self._num_long -= 1

    def _of_long(self) -> Any:
        if self._long_encoder is None:
            self._long_encoder = self._encoder.for_thread()
        return self._long_encoder


async def _in_thread(thread: ThreadPoolExecutor, work: Callable[[], _Result]) -> _Result:
    return await asyncio.get_running_loop().run_in_executor(thread, work)


def _length(value: Any) -> int:
    """Returns the number of characters of a message's texts."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_length, value.values()))
    return sum(map(_length, value)) if isinstance(value, (list, tuple)) else 0


def _recommended(model: LanguageModel) -> dict[str, Any]:
    """Returns the sampling parameters that a model's authors recommend."""
    config = model.generation_defaults
    if not config.get("do_sample"):
        return {}
    return {name: config[name] for name in _RECOMMENDED if config.get(name) is not None}
