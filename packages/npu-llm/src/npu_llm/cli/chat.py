"""`npu-llm chat`: a conversation in the terminal, and its commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from npu_command.help.command_parser import CommandParser
from npu_command.import_notice import import_notice
from npu_command.interrupt import as_exception
from npu_llm.cli.answer_settings import as_generate
from npu_llm.cli.arguments import add_generation, add_model, add_server, check_model
from npu_llm.cli.lines import LineReader, unechoed
from npu_llm.cli.turns import Turns, status_of
from npu_llm.errors import OptionError

if TYPE_CHECKING:
    from npu_llm.chat.chat_session import ChatSession
    from npu_llm.chat.reply import Reply
    from npu_llm.cli.display import Display
    from npu_llm.generation.model import NPUModelForCausalLM

__all__ = ["Chat", "chat", "main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs `chat`."""
    parser = CommandParser(
        prog="npu-llm chat",
        description="A chat in the terminal: /help lists its commands, Ctrl-C stops an answer.",
        check=_check,
    )
    add_model(parser)
    add_generation(parser)
    parser.add_argument(
        "--session",
        metavar="FILE",
        type=Path,
        help="continue the session in FILE, and save it there at the end",
    )
    parser.add_argument(
        "--plain", action="store_true", help="show Markdown as it was written, not rendered"
    )
    add_server(parser, "talk to a running server at URL")
    options = parser.parse_args(arguments)
    if options.server is None:
        return chat(options)
    from npu_llm.cli.serving.remote_chat import chat_with_server

    return chat_with_server(options)


def _check(options: argparse.Namespace) -> None:
    if options.server is not None and options.session is not None:
        raise OptionError(
            f"--session: must be used without --server, which keeps no cache here; got "
            f"{options.session}. Omit one.",
            code="remote-option",
        )
    check_model(options)


def chat(options: argparse.Namespace) -> int:
    """Reads turns from standard input until it ends, and writes answers to standard output.

    Returns:
        The exit code.

    Raises:
        NpuError: if the model cannot start, or the session cannot be saved.
    """
    from npu_llm.cli.display import Display
    from npu_llm.cli.tasks.describe import reads_images
    from npu_llm.config import read_settings

    display = Display()
    history = (options.cache_dir or read_settings().cache_dir) / "chat-history"
    lines = LineReader(history)
    if options.model is not None and reads_images(options.model):
        from npu_llm.cli.tasks.image_chat import chat_about_images

        return chat_about_images(options, lines)
    with unechoed():
        with import_notice():
            from npu_llm.cli.session import start
        model = start(options, display)
    with as_exception():  # from here on Ctrl-C stops an answer
        talk = Chat(model, options, display, lines)
        display.line("/help lists the commands.", style="dim")
        try:
            talk.run()
        finally:
            if options.session is not None:
                talk.session.save(options.session)
                display.line(f"saved in {options.session}", style="dim")
    return 0


class Chat(Turns):
    """The turns of a chat with a model, and its commands."""

    def __init__(
        self,
        model: NPUModelForCausalLM,
        options: argparse.Namespace,
        display: Display,
        lines: LineReader,
    ) -> None:
        from npu_llm.cli.session import generation_options

        self._model = model
        self._started_with = options
        self._options = {**generation_options(options, model), "overflow": "drop_oldest"}
        super().__init__(
            self._session_class()(model, **self._options), display, lines, is_plain=options.plain
        )
        if options.session is not None and options.session.exists():
            self.session = self._restored(options.session)
        if options.system:
            self.session.system = options.system
        self._commands |= {"/load": self._load, "/save": self._save}

    def ask(self, text: str) -> None:
        """Answers one turn; Ctrl-C stops the answer, and what was generated stays."""
        from npu_llm.cli.answer_text.streamer import AnswerStreamer
        from npu_llm.cli.session import figures

        is_whole = True
        with self._answering() as write:
            streamer = AnswerStreamer(self._model.tokenizer, write)
            try:
                reply = self.session.ask(text, streamer=streamer, **as_generate(self._chosen))
            except KeyboardInterrupt:
                is_whole = False
                last = self.session.last_reply
                assert last is not None, "an answer that was stopped is an answer"
                reply = last
        if not is_whole:
            self._display.line("(interrupted)", style="dim")
        read = f"{self.session.cached_tokens:,}"
        bound = self._model.context_length
        self._last = {
            "model": self._model.name,
            "messages": f"{len(self.session.messages):,}",
            "context": read if bound is None else f"{read} of {bound:,} tokens",
            **figures(self._model, reply.prompt_tokens, streamer),
        }
        if reply.dropped_messages:
            note = f"(context full: the {reply.dropped_messages} oldest messages were dropped)"
            self._display.line(note, style="dim")
        self._display.line(_status_of(reply), style="dim")

    def _model_named(self, name: str) -> None:
        from npu_llm.cli.session import generation_options, start
        from npu_llm.cli.tasks.describe import reads_images

        if not name:
            self._display.reply(f"model: {self._model.name}, {self._model.precision.name}")
            return
        if reads_images(name):
            raise OptionError(
                f"/model: must be a model of text here; got {name}, which reads images. Start "
                f"npu-llm chat --model {name}.",
                code="chat-model",
            )
        options = argparse.Namespace(**{**vars(self._started_with), "model": name})
        with unechoed():
            model = start(options, self._display)
        chosen = {**generation_options(options, model), "overflow": "drop_oldest"}
        session = self._session_class()(model, **chosen)
        for message in self.session.messages:
            session.append(message)
        self._model, self._options, self.session = model, chosen, session

    def _save(self, name: str) -> None:
        if not name:
            self._display.reply("Say where to: /save FILE")
            return
        self.session.save(Path(name).expanduser())
        self._display.line(f"saved in {name}", style="dim")

    def _load(self, name: str) -> None:
        if not name:
            self._display.reply("Say where from: /load FILE")
            return
        self.session = self._restored(Path(name).expanduser())

    def _restored(self, path: Path) -> ChatSession:
        session = self._session_class().restore(self._model, path, **self._options)
        count = len(session.messages)
        self._display.line(f"continuing with {count} messages from {path}", style="dim")
        return session

    @staticmethod
    def _session_class() -> type[ChatSession]:
        # Heavy: a mistyped command should not wait for this.
        from npu_llm.chat.chat_session import ChatSession

        return ChatSession


def _status_of(reply: Reply) -> str:
    said = status_of(
        written=len(reply.tokens),
        time_to_first_token_s=reply.time_to_first_token_s,
        tokens_per_s=reply.tokens_per_s,
        read=reply.prefilled_tokens,
        prompt=reply.prompt_tokens,
    )
    return f"{said} Program: {reply.verification}." if reply.verification else said
