"""`npu-llm chat` with a model of images and text."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_command.interrupt import as_exception
from npu_llm.cli.answer_text import AnswerStreamer
from npu_llm.cli.arguments import as_generate
from npu_llm.cli.tasks.describe import read_image, start_image_model
from npu_llm.cli.terminal import Display, LineReader
from npu_llm.cli.turns import Chat, status_of
from npu_llm.errors import OptionError
from npu_llm.vision_language.prompting import prompt_inputs

__all__ = ["ImageChat", "ImageSession", "chat_about_images"]

# Options of chat that such models do not have.
_ABSENT = ("pipeline", "max_context", "kv_cache", "sparse_attention", "session")


def chat_about_images(options: argparse.Namespace, lines: LineReader) -> int:
    """Reads turns from standard input until it ends; returns the exit code.

    Raises:
        OptionError: [image-chat] for an option that only language models have.
        NpuError: if the model cannot start.
    """
    for name in _ABSENT:
        if getattr(options, name, None) is not None:
            raise OptionError(
                f"--{name.replace('_', '-')}: must be omitted for a model of images and text; "
                f"got {getattr(options, name)}. Omit it.",
                code="image-chat",
            )
    display = Display()
    model, processor = start_image_model(options, display)
    session = ImageSession(model, processor, options)
    with as_exception():  # from here on Ctrl-C stops an answer
        display.line("/help lists the commands.", style="dim")
        ImageChat(session, display, lines, is_plain=options.plain).run()
    return 0


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

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages as text, oldest first."""
        return [{"role": one["role"], "content": _text_of(one)} for one in self._whole()]

    def show(self, image: Any) -> None:
        """Shows a PIL image with the next question."""
        self._images.append(image)

    def ask(
        self, text: str, streamer: AnswerStreamer, chosen: Mapping[str, Any] | None = None
    ) -> None:
        """Answers a question; one without any answer is forgotten, and its images wait.

        Args:
            text: the question.
            streamer: takes the answer.
            chosen: arguments of generate that take the place of the chat's own.

        Raises:
            LlmError: if the model cannot take the conversation.
        """
        content = [{"type": "image", "image": one} for one in self._images]
        question = {"role": "user", "content": [*content, {"type": "text", "text": text}]}
        inputs = prompt_inputs(self._processor, [*self._whole(), question])
        try:
            self._model.generate(**inputs, **{**self._asked, **(chosen or {})}, streamer=streamer)
        finally:
            if streamer.tokens:
                streamer.end()
                answer = {"type": "text", "text": streamer.text}
                self._turns += [question, {"role": "assistant", "content": [answer]}]
                self._images = []

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


class ImageChat(Chat):
    """The turns of a chat about images: the same commands, without files, and /image."""

    session: ImageSession

    def __init__(
        self, session: ImageSession, display: Display, lines: LineReader, *, is_plain: bool
    ) -> None:
        super().__init__(session, self, display, lines, is_plain=is_plain)
        self._commands |= {"/image": self._image}

    def ask(self, text: str) -> None:
        """Answers one turn; Ctrl-C stops the answer, and what was generated stays."""
        is_whole = True
        with self._answering() as write:
            streamer = AnswerStreamer(self.session._processor.tokenizer, write)
            try:
                self.session.ask(text, streamer, as_generate(self._chosen))
            except KeyboardInterrupt:
                is_whole = False
        if not is_whole:
            self._display.line("(interrupted)", style="dim")
        said = status_of(streamer)
        self._last = self.figures(self.session, streamer)
        self._display.line(said, style="dim")

    def describe(self, session: ImageSession) -> str:
        """Returns the model's name."""
        return f"model: {session.model}"

    def switch(self, session: ImageSession, name: str) -> ImageSession:
        """Raises OptionError [chat-model]."""
        raise OptionError(
            f"/model: must be omitted in a chat about images; got {name}. Start npu-llm chat "
            f"--model {name}.",
            code="chat-model",
        )

    def figures(self, session: ImageSession, reply: AnswerStreamer) -> Mapping[str, str]:
        """Returns the figures of an answer."""
        return {"model": session.model, "answer": status_of(reply)}

    def _image(self, name: str) -> None:
        if not name:
            self._display.reply("Name the file: /image PATH")
            return
        self.session.show(read_image(Path(name)))
        self._display.line(f"{name} is shown with the next question.", style="dim")


def _text_of(message: dict[str, Any]) -> str:
    return " ".join(one["text"] for one in message["content"] if one["type"] == "text")
