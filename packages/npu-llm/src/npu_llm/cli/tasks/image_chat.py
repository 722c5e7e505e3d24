"""The command `npu-llm chat` with a vision-language model."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from npu_llm.chat.output_parser import Delta
from npu_llm.chat.reply import Draft, Reply, ReplyStream, generated
from npu_llm.cli.tasks.describe import finish_reason, read_image, start_image_model
from npu_llm.cli.terminal import Display
from npu_llm.cli.turns import status_of
from npu_llm.engine.sampler import Token
from npu_llm.errors import OptionError
from npu_llm.tokenizer.detokenizer import Detokenizer
from npu_llm.vision_language.prompting import prompt_inputs

__all__ = ["ImageModels", "ImageSession", "start_image_chat"]

# Options of chat that vision-language models do not support.
_ABSENT = ("pipeline", "max_context", "kv_cache", "sparse_attention", "session")


def start_image_chat(
    options: argparse.Namespace, display: Display
) -> tuple[ImageSession, ImageModels]:
    """Starts the model in the options; returns a session with it, and its Models.

    Raises:
        OptionError: [image-chat] for an option that only language models support.
        NpuError: if the model cannot start.
    """
    for name in _ABSENT:
        if getattr(options, name, None) is not None:
            raise OptionError(
                f"`--{name.replace('_', '-')}` must be omitted for a vision-language model, got "
                f"{getattr(options, name)}. Omit it.",
                code="image-chat",
            )
    model, processor = start_image_model(options, display)
    return ImageSession(model, processor, options), ImageModels()


_UNBOUNDED = 1024  # maximum length of an answer if the context has no limit


class ImageSession:
    """A conversation about images; each turn reads it from the start.

    Attributes:
        model: name of the model.
        system: the system message, or None.
    """

    def __init__(self, model: Any, processor: Any, options: argparse.Namespace) -> None:
        self.model = str(options.model)
        self.system: str | None = options.system
        self._model = model
        self._processor = processor
        self._asked: dict[str, Any] = {"max_new_tokens": options.max_new_tokens}
        if options.greedy:
            self._asked["do_sample"] = False
        elif options.temperature is not None:
            self._asked |= {"do_sample": True, "temperature": options.temperature}
        self._turns: list[dict[str, Any]] = []
        self._images: list[Any] = []
        self._stop = threading.Event()

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages as text, oldest first."""
        return [{"role": one["role"], "content": _text_of(one)} for one in self._whole()]

    def show(self, path: Path) -> None:
        """Adds an image file to the next question; raises as read_image does."""
        self._images.append(read_image(path))

    def stream(self, text: str, **chosen: Any) -> ReplyStream:
        """Streams the answer to a question; a question without an answer is dropped.

        The images of a dropped question belong to the next one.

        Args:
            text: the question.
            chosen: arguments of generate that replace the chat's.

        Raises:
            LlmError: if the conversation does not fit the model.
        """
        replies: list[Reply] = []
        return ReplyStream(self._answer(text, chosen, replies), replies, self._stop)

    def _answer(
        self, text: str, chosen: Mapping[str, Any], replies: list[Reply]
    ) -> Generator[Delta, None, None]:
        self._stop.clear()
        content = [{"type": "image", "image": one} for one in self._images]
        question = {"role": "user", "content": [*content, {"type": "text", "text": text}]}
        inputs = prompt_inputs(self._processor, [*self._whole(), question])
        draft = Draft(Detokenizer(self._processor.tokenizer))
        asked = {**self._asked, **chosen}
        if asked["max_new_tokens"] is None:
            length = self._model.context_length or inputs["input_ids"].shape[1] + _UNBOUNDED
            asked["max_new_tokens"] = max(length - inputs["input_ids"].shape[1], 1)
        tokens = generated(self._model.generate, **inputs, **asked)
        interrupt: BaseException | None = None
        try:
            with closing(tokens):
                for token in tokens:
                    if piece := draft.add(Token(token)):
                        yield Delta("content", piece)
                    if draft.ends(self._stop):
                        break
                else:
                    draft.finish = finish_reason(self._model, draft, asked["max_new_tokens"])
            if piece := draft.text.end():
                yield Delta("content", piece)
        except (KeyboardInterrupt, GeneratorExit) as raised:
            interrupt, draft.finish = raised, "cancelled"
            draft.text.end()
        reply = draft.reply(prefilled=0, verification="")
        if reply.tokens:
            answer = {"type": "text", "text": reply.text}
            self._turns += [question, {"role": "assistant", "content": [answer]}]
            self._images = []
        replies.append(reply)
        if interrupt is not None:
            raise interrupt

    def undo(self) -> str | None:
        """Drops the last question and its answer; returns the question, or None.

        Its images belong to the next question.
        """
        if not self._turns:
            return None
        question, _ = self._turns[-2:]
        del self._turns[-2:]
        shown = [one["image"] for one in question["content"] if one["type"] == "image"]
        self._images = [*shown, *self._images]
        return _text_of(question)

    def reset(self) -> None:
        """Drops all messages except the system message, and all images."""
        self._turns.clear()
        self._images.clear()

    def _whole(self) -> list[dict[str, Any]]:
        if not self.system:
            return list(self._turns)
        content = [{"type": "text", "text": self.system}]
        return [{"role": "system", "content": content}, *self._turns]


class ImageModels:
    """The model of a chat about images; see npu_llm.cli.turns.Models."""

    def describe(self, session: ImageSession) -> str:
        """Returns the model's name."""
        return f"model: {session.model}"

    def switch(self, session: ImageSession, name: str) -> ImageSession:
        """Raises OptionError [chat-model]."""
        raise OptionError(
            f"`/model` must be omitted in a chat about images, got {name}. Start `npu-llm chat "
            f"{name}`.",
            code="chat-model",
        )

    def figures(self, session: ImageSession, reply: Reply) -> Mapping[str, str]:
        """Returns the rows of /stats."""
        return {"model": session.model, "answer": status_of(reply)}


def _text_of(message: dict[str, Any]) -> str:
    return " ".join(one["text"] for one in message["content"] if one["type"] == "text")
