"""The command `npu-llm chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_command.command_parser import CommandParser
from npu_command.interrupt import as_exception
from npu_command.output import import_notice
from npu_llm.cli.arguments import SAMPLING, add_generation, add_model, add_server, check_model
from npu_llm.errors import OptionError

if TYPE_CHECKING:
    from npu_llm.chat.chat_session import ChatSession
    from npu_llm.chat.reply import Reply
    from npu_llm.cli.terminal import Display
    from npu_llm.generation.entry_model import EntryModel

__all__ = ["LocalModels", "main"]


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs `chat`."""
    parser = CommandParser(
        prog="npu-llm chat",
        description="Chats in the terminal: /help lists the chat's commands, Ctrl-C stops an "
        "answer, /bye leaves.",
        check=_check,
    )
    add_model(parser)
    add_generation(parser, max_new_tokens=None)
    parser.add_argument(
        "--session",
        metavar="FILE",
        type=Path,
        help="continue the session in FILE, and save it there on exit",
    )
    parser.add_argument("--plain", action="store_true", help="print Markdown without rendering it")
    add_server(parser, "chat with a running server at URL")
    options = parser.parse_args(arguments)
    # Late imports: help and errors of usage need none of them.
    from npu_llm.cli.tasks.describe import reads_images
    from npu_llm.cli.terminal import Display, LineReader
    from npu_llm.config import read_settings

    display = Display()
    lines = LineReader((options.cache_dir or read_settings().cache_dir) / "chat-history")
    if options.server is not None:
        session, models = _remote(options, display)
    elif options.model is not None and reads_images(options.model):
        from npu_command.import_hooks import start_packages

        start_packages()
        from npu_llm.cli.tasks.image_chat import start_image_chat

        session, models = start_image_chat(options, display)
    else:
        session, models = _local(options, display)
    from npu_llm.cli.turns import Chat

    with as_exception():  # from here on Ctrl-C stops an answer
        display.line("/help lists the commands.", style="dim")
        talk = Chat(session, models, display, lines, is_plain=options.plain)
        try:
            talk.run()
        finally:
            if options.session is not None:
                talk.session.save(options.session)
                display.line(f"saved in {options.session}", style="dim")
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.server is not None and options.session is not None:
        raise OptionError(
            f"`--session` must be used without --server, got {options.session}. Omit one of them.",
            code="remote-option",
        )
    check_model(options)


def _remote(options: argparse.Namespace, display: Display) -> tuple[Any, Any]:
    """Returns a session with a server's model, and the server's Models."""
    from npu_llm.serving.client import Connection
    from npu_llm.serving.remote_session import RemoteModels, RemoteSession

    connection = Connection(options.server, key=options.api_key)
    model = options.model or connection.models()[0]
    display.line(f"server: {connection.url}, model {model}")
    settings = {"max_new_tokens": options.max_new_tokens, "seed": options.seed}
    settings |= {name: getattr(options, name) for name in SAMPLING}
    settings |= {"temperature": 0 if options.greedy else options.temperature}
    settings |= {"stop": options.stop or None}
    given = {name: value for name, value in settings.items() if value is not None}
    session = RemoteSession(connection, model=model, system=options.system, **given)
    return session, RemoteModels(connection)


def _local(options: argparse.Namespace, display: Display) -> tuple[Any, Any]:
    """Returns a session with a model on this machine, and the Models that start others."""
    from npu_llm.cli.terminal import unechoed

    with unechoed():
        with import_notice():
            from npu_llm.cli.session import start, start_plain
        begin = start if options.session is not None else start_plain
        model = begin(options, display)
    models = LocalModels(options, display)
    session = models.new_session(model)
    if options.session is not None and options.session.exists():
        session = models.restore(session, options.session)
    if options.system:
        session.system = options.system
    return session, models


class LocalModels:
    """Starts models on this machine for a chat; see npu_llm.cli.turns.Models."""

    def __init__(self, options: argparse.Namespace, display: Display) -> None:
        self._options = options
        self._display = display

    def new_session(self, model: EntryModel) -> ChatSession:
        """Returns an empty session with a model."""
        from npu_llm.chat.chat_session import ChatSession

        return ChatSession(model, **self._settings(model))

    def describe(self, session: ChatSession) -> str:
        """Returns the model's name and precision."""
        return f"model: {session.model.name}, {session.model.precision.name}"

    def switch(self, session: ChatSession, name: str) -> ChatSession:
        """Starts another model, with the conversation so far.

        Raises:
            OptionError: [chat-model] for a vision-language model.
            NpuError: if it cannot start.
        """
        from npu_llm.cli.session import start
        from npu_llm.cli.tasks.describe import reads_images
        from npu_llm.cli.terminal import unechoed

        if reads_images(name):
            raise OptionError(
                f"`/model` must name a text model, got {name}, which reads images. Start `npu-llm "
                f"chat {name}`.",
                code="chat-model",
            )
        with unechoed():
            model = start(
                argparse.Namespace(**{**vars(self._options), "model": name}), self._display
            )
        self._options.model = name
        return self._continued(session, model)

    def savable(self, session: ChatSession) -> ChatSession:
        """Returns the session with a model that can save and restore it, which needs torch.

        Raises:
            NpuError: if the model cannot start with torch.
        """
        from npu_llm.generation.exported_model import ExportedModel

        if not isinstance(session.model, ExportedModel):
            return session
        from npu_llm.cli.session import start
        from npu_llm.cli.terminal import unechoed

        with unechoed():
            model = start(self._options, self._display)
        return self._continued(session, model)

    def _continued(self, session: ChatSession, model: EntryModel) -> ChatSession:
        """Returns a session with the messages of another one and a model."""
        new = self.new_session(model)
        for message in session.messages:
            new.append(message)
        return new

    def restore(self, session: ChatSession, path: Path) -> ChatSession:
        """Returns a saved session with the model of a session; raises as ChatSession.restore."""
        model = self.savable(session).model
        restored = type(session).restore(model, path, **self._settings(model))
        count = len(restored.messages)
        self._display.line(f"continuing with {count} messages from {path}", style="dim")
        return restored

    def figures(self, session: ChatSession, reply: Reply) -> Mapping[str, str]:
        """Returns the rows of /stats."""
        from npu_llm.cli.session import figures

        model = session.model
        read, bound = f"{session.cached_tokens:,}", model.context_length
        return {
            "model": model.name,
            "messages": f"{len(session.messages):,}",
            "context": read if bound is None else f"{read} of {bound:,} tokens",
            **figures(model, reply),
        }

    def _settings(self, model: EntryModel) -> dict[str, Any]:
        from npu_llm.cli.session import generation_options

        return {**generation_options(self._options, model), "overflow": "drop_oldest"}
