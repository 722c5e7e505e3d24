"""`npu-llm chat`: a conversation in the terminal, and its commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from npu_command.interrupt import as_exception
from npu_llm.cli.arguments import add_generation, add_model
from npu_llm.cli.display import Display
from npu_llm.cli.lines import LineReader
from npu_llm.errors import LlmError, OptionError

if TYPE_CHECKING:
    from npu_llm.chat.chat_session import ChatSession
    from npu_llm.chat.reply import Reply
    from npu_llm.generation.model import NPUModelForCausalLM

__all__ = ["Chat", "chat", "main"]

_HELP = """\
/help          show this list
/undo          forget the last question and its answer
/retry         answer the last question again
/edit [TEXT]   ask TEXT in place of the last question; without TEXT, edit it
/reset         forget the conversation
/system [TEXT] change the system message; without TEXT, show it
/save FILE     save the conversation
/load FILE     continue a saved one
/exit          leave (also Ctrl-D)
Ctrl-C         stop an answer; the conversation continues
A line that ends in \\ continues on the next; lines between two lines of \"\"\" are one message."""


def main(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs `chat`."""
    parser = argparse.ArgumentParser(
        prog="npu-llm chat",
        description="A chat in the terminal: /help lists its commands, Ctrl-C stops an answer.",
    )
    add_model(parser)
    add_generation(parser)
    parser.add_argument(
        "--session",
        metavar="FILE",
        type=Path,
        help="continue the session in FILE, and save it there at the end",
    )
    return chat(parser.parse_args(arguments))


def chat(options: argparse.Namespace) -> int:
    """Reads turns from standard input until it ends, and writes answers to standard output.

    Returns:
        The exit code.

    Raises:
        NpuError: if the model cannot start, or the session cannot be saved.
    """
    from npu_llm.cli.session import start
    from npu_llm.config import read_settings

    display = Display()
    history = (options.cache_dir or read_settings().cache_dir) / "chat-history"
    lines = LineReader(history)
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


class Chat:
    """The turns of a chat and its commands.

    Attributes:
        session: the conversation.
    """

    def __init__(
        self,
        model: NPUModelForCausalLM,
        options: argparse.Namespace,
        display: Display,
        lines: LineReader,
    ) -> None:
        from npu_llm.cli.session import generation_options

        self._model = model
        self._display = display
        self._lines = lines
        self._options = {**generation_options(options, model), "overflow": "drop_oldest"}
        if options.session is not None and options.session.exists():
            self.session = self._restored(options.session)
        else:
            self.session = self._session_class()(model, **self._options)
        if options.system:
            self.session.system = options.system
        self._commands: dict[str, Callable[[str], None]] = {
            "/edit": self._edit,
            "/help": lambda _: display.line(_HELP),
            "/load": self._load,
            "/reset": self._reset,
            "/retry": self._retry,
            "/save": self._save,
            "/system": self._system,
            "/undo": self._undo,
        }

    def run(self) -> None:
        """Takes turns until the input ends or contains /exit."""
        while True:
            try:
                text = self._lines.read()
            except KeyboardInterrupt:
                self._display.line("\n(/exit leaves)", style="dim")
                continue
            except OptionError as error:
                if not self._lines.can_edit:
                    raise  # in a pipe, the lines that follow would lose their context
                self._display.line(str(error))
                continue
            if text is None or text.strip() in ("/exit", "/quit"):
                return
            try:
                self.take(text.strip())
            except LlmError as error:
                self._display.line(str(error))
            except KeyboardInterrupt:  # not during an answer, which handles it
                self._display.line("\n(interrupted)", style="dim")

    def take(self, text: str) -> None:
        """Answers a line, or runs the command in it.

        Raises:
            LlmError: if the session refuses it.
        """
        name, _, rest = text.partition(" ")
        if not text.startswith("/"):
            if text:
                self.ask(text)
        elif name in self._commands:
            self._commands[name](rest.strip())
        else:
            self._display.line(f"There is no command {name}; /help lists them.")

    def ask(self, text: str) -> None:
        """Answers one turn; Ctrl-C stops the answer, and what was generated stays."""
        from npu_llm.cli.streamer import AnswerStreamer

        streamer = AnswerStreamer(self._model.tokenizer)
        try:
            reply = self.session.ask(text, streamer=streamer)
        except KeyboardInterrupt:
            self._display.line("\n(interrupted)", style="dim")
            last = self.session.last_reply
            assert last is not None, "an answer that was stopped is an answer"
            reply = last
        print(flush=True)
        if reply.dropped_messages:
            note = f"(context full: the {reply.dropped_messages} oldest messages were dropped)"
            self._display.line(note, style="dim")
        self._display.line(f"({figures_of(reply)})", style="dim")

    def _edit(self, text: str) -> None:
        last = next((m["content"] for m in self.session.messages[::-1] if m["role"] == "user"), "")
        if not text and last and self._lines.can_edit:
            text = (self._lines.read(last) or "").strip()
        if not text:
            self._display.line("Say what to ask instead: /edit TEXT")
            return
        self.session.undo()
        self.ask(text)

    def _retry(self, _: str) -> None:
        text = self.session.undo()
        if text is None:
            self._display.line("There is no question yet.")
        else:
            self.ask(text)

    def _undo(self, _: str) -> None:
        text = self.session.undo()
        note = "There is no question yet." if text is None else f"Forgotten: {text}"
        self._display.line(note, style="dim")

    def _reset(self, _: str) -> None:
        self.session.reset()
        self._display.line("The conversation is forgotten.", style="dim")

    def _system(self, text: str) -> None:
        if text:
            self.session.system = text
        self._display.line(f"system: {self.session.system or '(none)'}", style="dim")

    def _save(self, name: str) -> None:
        if not name:
            self._display.line("Say where to: /save FILE")
            return
        self.session.save(Path(name).expanduser())
        self._display.line(f"saved in {name}", style="dim")

    def _load(self, name: str) -> None:
        if not name:
            self._display.line("Say where from: /load FILE")
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


def figures_of(reply: Reply) -> str:
    """Returns an answer's figures in one line."""
    parts = [
        f"read {reply.prefilled_tokens:,} of {reply.prompt_tokens:,} tokens",
        f"{len(reply.tokens):,} out",
    ]
    if reply.time_to_first_token_s is not None:
        parts.append(f"first after {reply.time_to_first_token_s:.2f} s")
    if reply.tokens_per_s is not None:
        parts.append(f"{reply.tokens_per_s:.1f} tokens/s")
    if reply.verification:
        parts.append(reply.verification)
    return ", ".join(parts)
