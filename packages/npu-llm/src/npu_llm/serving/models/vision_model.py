"""ServedVisionModel: a vision-language model with the interface of ServedModel."""

from __future__ import annotations

import asyncio
import io
import itertools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from npu_llm.engine.engine import EngineOptions, EngineState
from npu_llm.engine.kv_store import CacheUsage
from npu_llm.engine.sequence import Request
from npu_llm.engine.sequence import Sequence as Answering
from npu_llm.errors import ContextError, OptionError, check_token_range, stopping, too_busy
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.request_error import RequestError
from npu_llm.tokenizer.tokenizer import Message, Tokenizer
from npu_llm.vision_language.prompting import prompt_inputs

if TYPE_CHECKING:
    from npu_llm.vision_language.models import NPUModelForImageTextToText

__all__ = ["ImagePrompt", "ServedVisionModel"]

_MAX_PIXELS = 1 << 25  # maximum size of an image: 5,800 by 5,800


class ImagePrompt(list[int]):
    """The tokens of a conversation with the model's other inputs.

    Attributes:
        inputs: arguments of generate.
    """

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        super().__init__(inputs["input_ids"][0].tolist())
        self.inputs = dict(inputs)


class ServedVisionModel(ServedModel):
    """A vision-language model that answers one conversation at a time."""

    def __init__(
        self, name: str, model: NPUModelForImageTextToText, processor: Any, options: EngineOptions
    ) -> None:
        """Starts the engine.

        Args:
            name: name in requests.
            model: the model.
            processor: see npu_llm.vision_language.prompting.load_processor.
            options: limits; max_waiting and max_new_tokens apply.
        """
        text = _TextSide(model, processor)
        super().__init__(name, text, options, engine=_VisionEngine(model, options))
        self._processor = processor
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="npu-llm images")

    @property
    def capabilities(self) -> list[str]:
        """Capabilities of the model, by Ollama's names."""
        return [*super().capabilities, "vision"]

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Raises RequestError [request-unsupported]: the model answers conversations."""
        raise RequestError(
            f"`prompt` must be a conversation for the vision-language model {self.name}, got a "
            "text. Use /v1/chat/completions.",
            code="request-unsupported",
            parameter="prompt",
        )

    async def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        template_options: Mapping[str, Any] | None = None,
        continues_last: bool = False,
    ) -> list[int]:
        """Returns the tokens of a conversation with images, and the model's inputs.

        Raises:
            RequestError: [request-unsupported] for tools, audio, or a message to continue;
                [request-field] for special tokens in a text.
            OptionError: [image-unreadable] for an unreadable image.
            ModelError: [chat-template] if the template rejects the messages.
        """
        if tools or template_options or continues_last:
            raise _unsupported("tools, options of the template or an open message")
        work = partial(self._prepare, messages)
        return await asyncio.get_running_loop().run_in_executor(self._preparing, work)

    def close(self, *, grace_s: float = 0.0) -> None:
        """Ends the engine."""
        super().close(grace_s=grace_s)
        self._preparing.shutdown(cancel_futures=True, wait=False)

    def _prepare(self, messages: Sequence[Message]) -> ImagePrompt:
        found = []
        for message in messages:
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            found.append({"role": message["role"], "content": [self._part(one) for one in parts]})
        return ImagePrompt(prompt_inputs(self._processor, found))

    def _part(self, part: Mapping[str, Any]) -> dict[str, Any]:
        if part["type"] == "image":
            return {"type": "image", "image": _read_image(part["data"])}
        if part["type"] != "text":
            raise _unsupported("a sound")
        text = str(part["text"])
        special = next((one for one in self.tokenizer.special_tokens if one in text), None)
        if special is not None:  # the processor would insert an image or a role
            raise RequestError(
                f"`messages` must be without the model's special tokens, got {special!r:.80}. "
                "Rewrite it.",
                code="request-field",
                parameter="messages",
            )
        return {"type": "text", "text": text}


class _TextSide:
    """The language-model properties of a vision-language model."""

    def __init__(self, model: NPUModelForImageTextToText, processor: Any) -> None:
        self.context_length = model.context_length
        self.text_tokenizer = Tokenizer(Path(), wrapped=processor.tokenizer)
        self.generation_defaults = model.generation_config.to_diff_dict()
        ends = model.generation_config.eos_token_id
        if ends is None:
            ends = processor.tokenizer.eos_token_id
        self.end_tokens = frozenset([ends] if isinstance(ends, int) else ends or ())
        self.vocabulary = int(model.config.get_text_config().vocab_size)

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raises OptionError [token-range] for a token id outside the vocabulary."""
        if tokens:
            check_token_range("tokens", min(tokens), max(tokens), self.vocabulary)


class _Handle:
    """A submitted request."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def cancel(self) -> None:
        """Ends the request before its next token."""
        self._answering.is_cancelled = True


class _VisionEngine:
    """Answers requests one at a time with the model's generate and the engine's sampler."""

    def __init__(self, model: NPUModelForImageTextToText, options: EngineOptions) -> None:
        self.options = options
        self._model: Any = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="npu-llm images and text")
        self._numbers = itertools.count()
        self._unfinished: dict[int, Answering] = {}
        self._lock = threading.Lock()
        self._is_closing = False
        self._num_tokens = 0

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return not self._is_closing

    def check_count(self, count: int) -> int:
        """See Engine.check_count."""
        limit = 1 + self.options.max_waiting
        if count > limit:
            raise OptionError(
                f"`requests` must be at most {limit:,} running or waiting, got {count:,} answers "
                "to one request. Request fewer answers.",
                code="request-count",
            )
        return limit

    def submit_all(self, requests: Sequence[Request]) -> list[_Handle]:
        """See Engine.submit_all; each prompt is an ImagePrompt."""
        limit = self.check_count(len(requests))
        for request in requests:
            if request.params.prompt_logprobs is not None:
                raise _unsupported("log probabilities of a prompt")
            self._check_context(len(request.prompt) + 1)
        with self._lock:
            if self._is_closing:
                raise stopping()
            if len(self._unfinished) + len(requests) > limit:
                raise too_busy(limit)
            context = self._model.context_length
            answers = [
                Answering(next(self._numbers), self.options.bounded(one, context))
                for one in requests
            ]
            for answer, request in zip(answers, requests, strict=True):
                self._unfinished[answer.seq_id] = answer
                self._thread.submit(self._answer, answer, request.prompt)
        return [_Handle(answer) for answer in answers]

    def state(self) -> EngineState:
        """Returns the current work."""
        count = len(self._unfinished)
        running, usage = min(count, 1), CacheUsage(float(count > 0), 0.0)
        return EngineState(running, count - running, 0, self._num_tokens, self._num_tokens, usage)

    def close(self, *, grace_s: float = 0.0) -> None:
        """Rejects further requests, and ends current ones at the next token."""
        self._is_closing = True
        for answer in list(self._unfinished.values()):
            answer.is_cancelled = True
        self._thread.shutdown()

    def _check_context(self, length: int) -> None:
        context = self._model.context_length
        if context is not None and length > context:
            raise ContextError(
                f"`prompt` must fit into the context of {context:,} tokens, including images, got "
                f"{length:,}. Shorten it.",
                code="context-overflow",
            )

    def _answer(self, answer: Answering, prompt: Any) -> None:
        """Runs one generation with the answer's sampler."""
        from transformers import GenerationConfig

        ended: list[Any] = []

        def choose(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if answer.is_cancelled:
                return scores
            token = answer.sampler.next(scores[0].float().cpu().numpy())
            self._num_tokens += 1
            ended.append(answer.append(token))
            forced = torch.full_like(scores, -torch.inf)
            forced[0, token.id] = 0.0
            return forced

        def must_stop(ids: torch.Tensor, _: Any, **__: Any) -> torch.Tensor:
            is_over = answer.is_cancelled or (bool(ended) and ended[-1] is not None)
            return torch.full((ids.shape[0],), is_over)

        config = GenerationConfig(
            do_sample=False, max_new_tokens=answer.params.max_new_tokens, pad_token_id=0
        )
        config.eos_token_id = None
        try:
            if not answer.is_cancelled:
                self._model.generate(
                    **prompt.inputs,
                    generation_config=config,
                    logits_processor=[choose],
                    stopping_criteria=[must_stop],
                )
        except Exception as failure:  # noqa: BLE001  # reported to its request
            self._finish(answer, "error", failure)
        else:
            reason = "cancelled" if answer.is_cancelled else ended[-1] or "length"
            self._finish(answer, reason)

    def _finish(self, answer: Answering, reason: Any, failure: Exception | None = None) -> None:
        del self._unfinished[answer.seq_id]
        answer.finish(reason, failure)


def _unsupported(received: str) -> RequestError:
    return RequestError(
        f"`messages` must be texts and images for a vision-language model, got {received}. Omit "
        "it.",
        code="request-unsupported",
        parameter="messages",
    )


def _read_image(content: bytes) -> Any:
    """Returns a PIL image; raises OptionError [image-unreadable], [missing-pillow]."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as failure:
        raise OptionError(
            "`messages` must have Pillow installed for images, got none. Run pip install "
            '"npu-llm[images]".',
            code="missing-pillow",
        ) from failure
    unreadable = (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError)
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise ValueError(f"{image.width} by {image.height} pixels")
            return image.convert("RGB")
    except (*unreadable, SyntaxError) as failure:
        raise OptionError(
            "`messages` must have images such as PNG or JPEG, of at most "
            f"{_MAX_PIXELS:,} pixels, got {str(failure)[:120] or type(failure).__name__}. Convert "
            "it.",
            code="image-unreadable",
        ) from failure
