"""Chat: the turns of a conversation in the terminal, and its commands."""

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

__all__ = ["Chat", "Models", "show_deltas", "status_of"]

_COMMANDS = (
    ("/help", "show this list"),
    ("/undo", "forget the last question and its answer"),
    ("/retry", "answer the last question again"),
    ("/edit [TEXT]", "ask TEXT in place of the last question; without TEXT, edit it"),
    ("/image PATH", "show an image with the next question"),
    (
        "/set [NAME VALUE]",
        "change temperature, top_p, a penalty, max_new_tokens, ...; alone, show them",
    ),
    ("/model [NAME]", "go on with another model; without NAME, show which one answers"),
    ("/stats", "show the figures of the last answer"),
    ("/reset", "forget the conversation"),
    ("/system [TEXT]", "change the system message; without TEXT, show it"),
    ("/save FILE", "save the conversation"),
    ("/load FILE", "continue a saved one"),
    ("/exit", "leave (also Ctrl-D)"),
    ("Ctrl-C", "stop an answer; the conversation continues"),
)
_LONGER = (
    'A line that ends in \\ continues on the next; lines between two lines of """ are one message.'
)
_NO_FILES = "Conversations are saved and loaded in a chat about text with a model on this machine."
# What only some chats have, and what to say in the others.
_ABSENT = {
    "/image": "The model of this chat takes no images; npu-llm chat --model takes one that does.",
    "/load": _NO_FILES,
    "/save": _NO_FILES,
}


def status_of(reply: Any) -> str:
    """Returns the figures of a Reply, or of another object with its attributes, as a sentence."""
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


def show_deltas(stream: Any, write: Callable[[str], object], display: Display) -> None:
    """Shows an answer as it comes: its text, and its reasoning and tool calls beside it.

    Args:
        stream: a ReplyStream, or another object with `deltas`.
        write: called with the pieces of the text.
        display: for everything else.
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
    """The models that a chat can continue with.

    With `restore(path, session)`, which returns a saved session, the chat has /save and /load.
    """

    def describe(self, session: Any) -> str:
        """Returns a line about the session's model."""

    def switch(self, session: Any, name: str) -> Any:
        """Returns a session with the same messages and another model."""

    def figures(self, session: Any, reply: Any) -> Mapping[str, str]:
        """Returns the rows of /stats."""


class Chat:
    """The turns of a chat and its commands.

    Attributes:
        session: the conversation: messages, system, undo(), reset() and stream(), as ChatSession
            has them, and show() if it is about images.
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
        """Begins with a session.

        Args:
            session: as above.
            models: for /model and /stats.
            display: for everything but answers.
            lines: reads the input.
            is_plain: whether Markdown is shown as it was written.
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
        """Returns the list of commands that there are."""
        absent = _ABSENT.keys() - self._commands.keys()
        rows = [row for row in _COMMANDS if row[0].split()[0] not in absent]
        width = self._display.console.width if self._display.console.is_terminal else None
        return "\n".join([*aligned(rows, width=width), _LONGER])

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
                self._display.reply(str(error))
                continue
            if text is None or text.strip() in ("/exit", "/quit"):
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
            NpuError: if the session refuses it.
        """
        name, _, rest = text.partition(" ")
        if name in self._commands:
            self._commands[name](rest.strip())
        else:
            said = _ABSENT.get(name, f"There is no command {name}; /help lists them.")
            self._display.reply(said)

    def ask(self, text: str) -> None:
        """Answers one turn; Ctrl-C stops the answer, and what was generated stays.

        Raises:
            NpuError: if the session refuses it.
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
        self._last = self._models.figures(self.session, reply)
        if dropped := getattr(reply, "dropped_messages", 0):
            note = f"(context full: the {dropped} oldest messages were dropped)"
            self._display.line(note, style="dim")
        self._display.line(status_of(reply), style="dim")

    @contextmanager
    def _answering(self) -> Iterator[Callable[[str], object]]:
        """Yields what writes pieces of an answer, and ends the answer's last line."""
        if not (self._renders_markdown and can_render()):
            yield text_writer()
            print(flush=True)
            return
        # Late: rich's Markdown takes 0.1 s.
        from npu_llm.cli.markdown import MarkdownWriter

        writer = MarkdownWriter()
        try:
            yield writer.write
        finally:  # an error stands on a line of its own
            writer.end()

    def _model_named(self, name: str) -> None:
        if name:
            self.session = self._models.switch(self.session, name)
        self._display.reply(self._models.describe(self.session))

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
        models: Any = self._models
        self.session = models.restore(self.session, Path(name).expanduser())

    def _image(self, name: str) -> None:
        if not name:
            self._display.reply("Name the file: /image PATH")
            return
        self.session.show(Path(name))
        self._display.line(f"{name} is shown with the next question.", style="dim")

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
        self._display.reply(f"set: {said or 'nothing; as the chat was started'}", style="dim")

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
            self._display.reply("Say what to ask instead: /edit TEXT")
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
