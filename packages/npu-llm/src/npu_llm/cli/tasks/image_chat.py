"""`npu-llm chat` with a model of images and text."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from npu_llm.chat.output_parser import Delta
from npu_llm.chat.reply import Draft, Reply, ReplyStream, generated
from npu_llm.cli.tasks.describe import read_image, start_image_model
from npu_llm.cli.terminal import Display
from npu_llm.cli.turns import status_of
from npu_llm.engine.sampler import Token
from npu_llm.errors import OptionError
from npu_llm.tokenizer.detokenizer import Detokenizer
from npu_llm.vision_language.prompting import prompt_inputs

__all__ = ["ImageModels", "ImageSession", "start_image_chat"]

# Options of chat that such models do not have.
_ABSENT = ("pipeline", "max_context", "kv_cache", "sparse_attention", "session")


def start_image_chat(
    options: argparse.Namespace, display: Display
) -> tuple[ImageSession, ImageModels]:
    """Starts the model that the options name; returns a session with it, and what /model does.

    Raises:
        OptionError: [image-chat] for an option that only language models have.
        NpuError: if the model cannot start.
    """
    for name in _ABSENT:
        if getattr(options, name, None) is not None:
            raise OptionError(
                f"`--{name.replace('_', '-')}` must be omitted for a model of images and text, "
                f"got {getattr(options, name)}. Omit it.",
                code="image-chat",
            )
    model, processor = start_image_model(options, display)
    return ImageSession(model, processor, options), ImageModels()


class ImageSession:
    """A conversation about images; each turn reads it from its beginning.

    Attributes:
        model: the name of the one that answers.
        system: the system message; None for none.
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
        """Shows an image file with the next question; raises as read_image does."""
        self._images.append(read_image(path))

    def stream(self, text: str, **chosen: Any) -> ReplyStream:
        """Answers a question piece by piece; one without any answer is forgotten.

        The images of such a question are shown with the next one.

        Args:
            text: the question.
            chosen: arguments of generate that take the place of the chat's own.

        Raises:
            LlmError: if the model cannot take the conversation.
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
        tokens = generated(self._model.generate, **inputs, **{**self._asked, **chosen})
        interrupt: BaseException | None = None
        try:
            with closing(tokens):
                for token in tokens:
                    if piece := draft.add(Token(token)):
                        yield Delta("content", piece)
                    if draft.ends(self._stop):
                        break
                else:
                    draft.finish = "stop"
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
        """Forgets the last question and its answer; returns the question, None if there is none.

        Its images are shown with the next one.
        """
        if not self._turns:
            return None
        question, _ = self._turns[-2:]
        del self._turns[-2:]
        shown = [one["image"] for one in question["content"] if one["type"] == "image"]
        self._images = [*shown, *self._images]
        return _text_of(question)

    def reset(self) -> None:
        """Forgets all messages except the system message, and all images."""
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
            f"`/model` must be omitted in a chat about images, got {name}. Start npu-llm chat "
            f"--model {name}.",
            code="chat-model",
        )

    def figures(self, session: ImageSession, reply: Reply) -> Mapping[str, str]:
        """Returns the figures of an answer."""
        return {"model": session.model, "answer": status_of(reply)}


def _text_of(message: dict[str, Any]) -> str:
    return " ".join(one["text"] for one in message["content"] if one["type"] == "text")
