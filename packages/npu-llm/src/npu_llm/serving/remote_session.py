"""RemoteSession: a ChatSession with a server's model."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from npu_llm.chat.output_parser import Delta
from npu_llm.errors import OptionError
from npu_llm.serving.client import Connection, RemoteAnswer

__all__ = ["RemoteModels", "RemoteSession", "RemoteStream"]

_NAMES = {"max_new_tokens": "max_tokens"}  # fields of requests with other names


class RemoteSession:
    """A conversation with messages that the client keeps.

    Attributes:
        model: name of the model that answers.
        system: the system message, or None.
    """

    def __init__(
        self, connection: Connection, *, model: str, system: str | None = None, **settings: Any
    ) -> None:
        """Starts a conversation.

        Args:
            connection: the server.
            model: one of its models.
            system: the system message.
            settings: default sampling settings, as in SamplingParams.
        """
        self.model = model
        self.system = system
        self._connection = connection
        self._settings = settings
        self._turns: list[dict[str, str]] = []

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages, oldest first."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self._turns]

    def stream(self, text: str, **settings: Any) -> RemoteStream:
        """Streams the answer to a question; a question without an answer is not kept.

        Args:
            text: the question.
            settings: settings of this answer.

        Raises:
            ServerError: during the iteration, see Connection.chat.
        """
        answers: list[RemoteAnswer] = []
        return RemoteStream(self._pieces(text, settings, answers), answers)

    def undo(self) -> str | None:
        """Removes the last question and its answer; returns the question, or None."""
        if not self._turns:
            return None
        question, _ = self._turns[-2:]
        del self._turns[-2:]
        return question["content"]

    def reset(self) -> None:
        """Removes all messages except the system message."""
        self._turns.clear()

    def _pieces(
        self, text: str, settings: Mapping[str, Any], answers: list[RemoteAnswer]
    ) -> Generator[Delta, None, None]:
        question = {"role": "user", "content": text}
        given = {**self._settings, **settings}
        if given.pop("do_sample", True) is False:
            given["temperature"] = 0
        fields = {
            _NAMES.get(name, name): value for name, value in given.items() if value is not None
        }
        messages = [*self.messages, question]
        try:
            yield from self._connection.stream(messages, answers, model=self.model, **fields)
        finally:
            if answers and answers[0].text:
                self._turns += [question, {"role": "assistant", "content": answers[0].text}]


class RemoteStream:
    """An iterator over the pieces of an answer; see npu_llm.chat.reply.ReplyStream."""

    def __init__(self, pieces: Generator[Delta, None, None], answers: list[RemoteAnswer]) -> None:
        self._pieces = pieces
        self._answers = answers

    @property
    def reply(self) -> RemoteAnswer | None:
        """The whole answer, once the stream has ended; None before."""
        return self._answers[0] if self._answers else None

    def __iter__(self) -> Iterator[str]:
        return (delta.text for delta in self._pieces if delta.kind == "content")

    def deltas(self) -> Iterator[Delta]:
        """Returns an iterator over the pieces of reasoning and text."""
        return self._pieces

    def close(self) -> None:
        """Stops the answer."""
        self._pieces.close()


class RemoteModels:
    """A server's models; see npu_llm.cli.turns.Models."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def describe(self, session: RemoteSession) -> str:
        """Returns the names of the session's model and of the others."""
        others = ", ".join(one for one in self._connection.models() if one != session.model)
        said = f"model: {session.model}"
        return f"{said}; others: {others}" if others else said

    def switch(self, session: RemoteSession, name: str) -> RemoteSession:
        """Switches to another model; raises OptionError [chat-model] for an unknown one."""
        names = self._connection.models()
        if name not in names:
            raise OptionError(
                f"`/model` must be a model of the server, got {name!r}. Use one of "
                f"{', '.join(names)}.",
                code="chat-model",
            )
        session.model = name
        return session

    def figures(self, session: RemoteSession, reply: RemoteAnswer) -> Mapping[str, str]:
        """Returns an answer's statistics."""
        first, rate = reply.time_to_first_token_s, reply.tokens_per_s
        return {
            "model": session.model,
            "prompt": f"{reply.prompt_tokens:,} tokens",
            "answer": f"{reply.answer_tokens:,} tokens",
            "finish reason": reply.finish,
            "time to first token": "none came" if first is None else f"{first:.3f} s",
            "speed": "one token only" if rate is None else f"{rate:.1f} tokens/s",
        }
