"""`npu-llm chat --server`: a conversation with a model that a server has."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from npu_command.interrupt import as_exception
from npu_llm.cli.display import Display
from npu_llm.cli.lines import LineReader
from npu_llm.cli.turns import Turns, status_of
from npu_llm.config import read_settings
from npu_llm.errors import OptionError
from npu_llm.serving.client import Connection, RemoteAnswer

__all__ = ["RemoteChat", "RemoteSession", "chat_with_server"]


def chat_with_server(options: argparse.Namespace) -> int:
    """Reads turns from standard input until it ends; returns the exit code.

    Raises:
        NpuError: if the server cannot be reached.
    """
    display = Display()
    connection = Connection(options.server, key=options.api_key)
    models = connection.models()
    session = RemoteSession(connection, options, model=options.model or models[0])
    display.line(f"server: {connection.url}, model {session.model}")
    history = (options.cache_dir or read_settings().cache_dir) / "chat-history"
    with as_exception():  # from here on Ctrl-C stops an answer
        display.line("/help lists the commands.", style="dim")
        RemoteChat(session, display, LineReader(history), is_plain=options.plain).run()
    return 0


class RemoteSession:
    """A conversation that this side keeps.

    Attributes:
        model: which model answers.
        system: the system message; None for none.
    """

    def __init__(self, connection: Connection, options: argparse.Namespace, *, model: str) -> None:
        self.model = model
        self.system: str | None = options.system
        self._connection = connection
        self._turns: list[dict[str, str]] = []
        self._fields: dict[str, Any] = {"max_tokens": options.max_new_tokens}
        if options.greedy:
            self._fields["temperature"] = 0
        elif options.temperature is not None:
            self._fields["temperature"] = options.temperature
        if options.seed is not None:
            self._fields["seed"] = options.seed

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages, oldest first."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self._turns]

    def model_names(self) -> list[str]:
        """The models that the server has."""
        return self._connection.models()

    def ask(
        self, text: str, on_text: Any, chosen: Mapping[str, int | float] | None = None
    ) -> RemoteAnswer:
        """Asks the server; a question without any answer is forgotten.

        Args:
            text: the question.
            on_text: takes the pieces of the answer.
            chosen: what npu_llm.cli.answer_settings read.

        Raises:
            ServerError: as Connection.chat does.
        """
        question = {"role": "user", "content": text}
        named = {"max_new_tokens": "max_tokens"}
        fields = {**self._fields, "model": self.model}
        fields |= {named.get(name, name): value for name, value in (chosen or {}).items()}
        answer = self._connection.chat([*self.messages, question], on_text=on_text, **fields)
        if answer.text:
            self._turns += [question, {"role": "assistant", "content": answer.text}]
        return answer

    def undo(self) -> str | None:
        """Forgets the last question and its answer; returns the question, None if there is none."""
        if not self._turns:
            return None
        question, _ = self._turns[-2:]
        del self._turns[-2:]
        return question["content"]

    def reset(self) -> None:
        """Forgets all messages except the system message."""
        self._turns.clear()


class RemoteChat(Turns):
    """The turns of a chat with a server: the same commands, except for files."""

    def ask(self, text: str) -> None:
        """Answers one turn; Ctrl-C stops the answer, and what was generated stays."""
        with self._answering() as write:
            answer = self.session.ask(text, write, self._chosen)
        if answer.finish == "cancelled":
            self._display.line("(interrupted)", style="dim")
        said = _status_of(answer)
        self._last = {"model": self.session.model, "answer": said}
        self._display.line(said, style="dim")

    def _model_named(self, name: str) -> None:
        names = self.session.model_names()
        if name and name not in names:
            raise OptionError(
                f"/model: must be one that the server has; got {name!r}. It has "
                f"{', '.join(names)}.",
                code="chat-model",
            )
        self.session.model = name or self.session.model
        others = ", ".join(one for one in names if one != self.session.model)
        said = f"model: {self.session.model}"
        self._display.reply(f"{said}; others: {others}" if others else said)


def _status_of(answer: RemoteAnswer) -> str:
    return status_of(
        written=answer.tokens,
        time_to_first_token_s=answer.time_to_first_token_s,
        tokens_per_s=1 / answer.time_per_token_s if answer.time_per_token_s else None,
        read=answer.prompt_tokens - answer.cached_tokens,
        prompt=answer.prompt_tokens,
    )
