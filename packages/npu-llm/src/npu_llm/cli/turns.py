"""Chat: the turns of a conversation in the terminal, and its slash commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from npu_command.errors import NpuError
from npu_command.output import aligned
from npu_llm.cli.arguments import as_generate, read_markdown, read_setting
from npu_llm.cli.terminal import Display, LineReader, can_render, text_writer, unechoed
from npu_llm.errors import OptionError

__all__ = ["Chat", "Models", "finish_of", "show_deltas", "status_of"]

_COMMANDS = (
    ("/help", "show this list"),
    ("/undo", "forget the last question and its answer"),
    ("/retry", "answer the last question again"),
    ("/edit [TEXT]", "replace the last question by TEXT; without TEXT, edit it"),
    ("/image PATH", "add an image to the next question"),
    (
        "/set [NAME VALUE]",
        "change temperature, top_p, a penalty, max_new_tokens, ...; alone, show changes",
    ),
    ("/model [NAME]", "continue with another model; without NAME, show the current one"),
    ("/stats", "show speed and token counts of the last answer"),
    ("/reset", "forget the conversation"),
    ("/system [TEXT]", "change the system message; without TEXT, show it"),
    ("/save FILE", "save the conversation"),
    ("/load FILE", "continue a saved one"),
    ("/bye", "leave (also /exit, Ctrl-D)"),
    ("Ctrl-C", "stop an answer; the conversation continues"),
)
_LONGER = (
    'A line that ends in \\ continues on the next; lines between two lines of """ form a message.'
)
_LEAVE = ("/bye", "/exit", "/quit")
_NO_FILES = "/save and /load need a text model on this machine."
# Commands that only some chats have, and the replies of the others.
_ABSENT = {
    "/image": "This model does not read images; start `npu-llm chat` with a vision-language model.",
    "/load": _NO_FILES,
    "/save": _NO_FILES,
}


def status_of(reply: Any) -> str:
    """Returns a sentence with token counts and speed of a Reply or a RemoteAnswer."""
    written = reply.answer_tokens
    parts = [f"Wrote {written:,} {'token' if written == 1 else 'tokens'}"]
    if reply.prompt_tokens:
        read = f"{reply.prefilled_tokens:,} of {reply.prompt_tokens:,}"
        parts = [f"Read {read} tokens and wrote {written:,}"]
    if reply.time_to_first_token_s is not None:
        parts.append(f"the first after {reply.time_to_first_token_s:.2f} s")
    if reply.tokens_per_s is not None:
        parts.append(f"then {reply.tokens_per_s:,.1f} per second")
    said = f"{', '.join(parts)}."
    verification = getattr(reply, "verification", "")
    return f"{said} Program: {verification}." if verification else said


def finish_of(reply: Any) -> str:
    """Returns the finish reason of an answer for a table."""
    return "length: the answer was cut" if reply.finish == "length" else str(reply.finish)


def show_deltas(stream: Any, write: Callable[[str], object], display: Display) -> None:
    """Streams an answer: its text to `write`, its reasoning and tool calls to `display`.

    Args:
        stream: a ReplyStream, or another object with `deltas`.
        write: called with each piece of the text.
        display: shows reasoning and tool calls.
    """
    last = ""
    for delta in stream.deltas():
        if last and delta.kind != last and last != "content":
            display.thought("\n\n" if delta.kind == "content" else "\n")
        if delta.kind == "content":
            write(delta.text)
        else:
            display.thought(f"call: {delta.text} " if delta.kind == "call" else delta.text)
        last = delta.kind if delta.kind != "call" else "content"
    if last not in ("", "content"):
        display.thought("\n")


class Models(Protocol):
    """The models of a chat.

    If there are `restore(session, path)`, which returns a saved session, and `savable(session)`,
    which returns one that can be saved, the chat has /save and /load.
    """

    def describe(self, session: Any) -> str:
        """Returns a line about the session's model."""

    def switch(self, session: Any, name: str) -> Any:
        """Returns a session with the same messages and the named model."""

    def figures(self, session: Any, reply: Any) -> Mapping[str, str]:
        """Returns the rows of /stats."""


class Chat:
    """The turns of a chat and its slash commands.

    Attributes:
        session: the conversation, with messages, system, undo(), reset() and stream() as in
            ChatSession, and show() if it reads images.
    """

    def __init__(
        self,
        session: Any,
        models: Models,
        display: Display,
        lines: LineReader,
        *,
        is_plain: bool,
    ) -> None:
        """Starts with a session.

        Args:
            session: the conversation.
            models: for /model and /stats.
            display: shows everything except answers.
            lines: reads the input.
            is_plain: whether to print Markdown without rendering it.
        """
        self.session = session
        self._models = models
        self._display = display
        self._lines = lines
        self._chosen: dict[str, int | float] = {}
        self._renders_markdown = not is_plain
        self._last: Mapping[str, str] = {}
        self._commands: dict[str, Callable[[str], None]] = {
            "/edit": self._edit,
            "/help": lambda _: display.reply(self._help()),
            "/model": self._model_named,
            "/reset": self._reset,
            "/retry": self._retry,
            "/set": self._set,
            "/stats": self._stats,
            "/system": self._system,
            "/undo": self._undo,
        }
        if hasattr(session, "show"):
            self._commands["/image"] = self._image
        if hasattr(models, "restore"):
            self._commands |= {"/load": self._load, "/save": self._save}

    def _help(self) -> str:
        """Returns the list of this chat's commands."""
        absent = _ABSENT.keys() - self._commands.keys()
        rows = [row for row in _COMMANDS if row[0].split()[0] not in absent]
        width = self._display.console.width if self._display.console.is_terminal else None
        return "\n".join([*aligned(rows, width=width), _LONGER])

    def run(self) -> None:
        """Runs turns until the input ends or contains /bye."""
        while True:
            try:
                text = self._lines.read()
            except KeyboardInterrupt:
                self._display.line("\n(/bye leaves)", style="dim")
                continue
            except OptionError as error:
                if not self._lines.can_edit:
                    raise  # in a pipe, the lines that follow would lose their context
                self._display.reply(str(error))
                continue
            if text is None or text.strip() in _LEAVE:
                return
            try:
                if text.startswith("/"):
                    self.command(text.strip())
                elif text.strip():
                    self.ask(text.strip())
            except NpuError as error:
                self._display.reply(str(error))
            except KeyboardInterrupt:  # not during an answer, which handles it
                self._display.line("\n(interrupted)", style="dim")

    def command(self, text: str) -> None:
        """Runs a command.

        Raises:
            NpuError: if the session rejects it.
        """
        name, _, rest = text.partition(" ")
        if name in self._commands:
            self._commands[name](rest.strip())
        else:
            said = _ABSENT.get(name, f"There is no command {name}; /help lists them.")
            self._display.reply(said)

    def ask(self, text: str) -> None:
        """Answers one turn; Ctrl-C stops the answer and keeps the generated part.

        Raises:
            NpuError: if the session rejects the question.
        """
        stream = self.session.stream(text, **as_generate(self._chosen))
        with unechoed(), self._answering() as write:
            try:
                show_deltas(stream, write, self._display)
            except KeyboardInterrupt:
                stream.close()
        reply = stream.reply
        if reply.finish == "cancelled":
            self._display.line("(interrupted)", style="dim")
        elif reply.finish == "length":
            note = "(the answer was cut; /set max_new_tokens N changes its maximum length)"
            self._display.line(note, style="dim")
        self._last = self._models.figures(self.session, reply)
        if dropped := getattr(reply, "dropped_messages", 0):
            note = f"(context full: the {dropped} oldest messages were dropped)"
            self._display.line(note, style="dim")
        self._display.line(status_of(reply), style="dim")

    @contextmanager
    def _answering(self) -> Iterator[Callable[[str], object]]:
        """Yields the writer of an answer's pieces, and ends the answer's last line."""
        if not (self._renders_markdown and can_render()):
            yield text_writer()
            print(flush=True)
            return
        # Late: rich's Markdown takes 0.1 s.
        from npu_llm.cli.markdown import MarkdownWriter

        writer = MarkdownWriter()
        try:
            yield writer.write
        finally:  # an error starts on a new line
            writer.end()

    def _model_named(self, name: str) -> None:
        if name:
            self.session = self._models.switch(self.session, name)
        self._display.reply(self._models.describe(self.session))

    def _save(self, name: str) -> None:
        if not name:
            self._display.reply("Name the file: /save FILE")
            return
        models: Any = self._models
        self.session = models.savable(self.session)
        self.session.save(Path(name).expanduser())
        self._display.line(f"saved in {name}", style="dim")

    def _load(self, name: str) -> None:
        if not name:
            self._display.reply("Name the file: /load FILE")
            return
        models: Any = self._models
        self.session = models.restore(self.session, Path(name).expanduser())

    def _image(self, name: str) -> None:
        if not name:
            self._display.reply("Name the file: /image PATH")
            return
        self.session.show(Path(name))
        self._display.line(f"{name} is part of the next question.", style="dim")

    def _set(self, text: str) -> None:
        renders = read_markdown(text)
        if renders is not None:
            self._renders_markdown = renders
            self._display.reply(f"set: {text.replace('=', ' ')}", style="dim")
            return
        if text:
            name, value = read_setting(text)
            self._chosen[name] = value
        said = ", ".join(f"{name} {value:g}" for name, value in self._chosen.items())
        self._display.reply(f"set: {said or 'nothing since the start'}", style="dim")

    def _stats(self, _: str) -> None:
        if self._last:
            with self._display.asked_for():
                self._display.table(self._last)
        else:
            self._display.reply("There is no answer yet.")

    def _edit(self, text: str) -> None:
        last = next((m["content"] for m in self.session.messages[::-1] if m["role"] == "user"), "")
        if not text and last and self._lines.can_edit:
            text = (self._lines.read(last) or "").strip()
        if not text:
            self._display.reply("Type the new question: /edit TEXT")
            return
        self.session.undo()
        self.ask(text)

    def _retry(self, _: str) -> None:
        text = self.session.undo()
        if text is None:
            self._display.reply("There is no question yet.")
        else:
            self.ask(text)

    def _undo(self, _: str) -> None:
        text = self.session.undo()
        note = "There is no question yet." if text is None else f"Forgotten: {text}"
        self._display.reply(note, style="dim")

    def _reset(self, _: str) -> None:
        self.session.reset()
        self._display.reply("The conversation is forgotten.", style="dim")

    def _system(self, text: str) -> None:
        if text:
            self.session.system = text
        self._display.reply(f"system: {self.session.system or '(none)'}", style="dim")
