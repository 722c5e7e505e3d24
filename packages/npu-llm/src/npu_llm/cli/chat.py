"""`npu-llm chat`: a conversation in the terminal.

Starting the model is npu_llm.cli.session's work.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from npu_llm.cli.display import Display

__all__ = ["Conversation", "chat"]

_HELP = """\
/help    this list
/reset   forget the conversation
/exit    leave (also Ctrl-D)
Ctrl-C   stop an answer; the conversation goes on"""


def chat(options: argparse.Namespace) -> int:
    """Reads turns from standard input until it ends; answers go to standard output.

    Returns:
        The exit code.

    Raises:
        NpuError: for whatever keeps the model from starting.
    """
    from npu_llm.cli.session import start

    display = Display()
    conversation = Conversation(start(options, display), options, display)
    display.line("/help lists the commands.", style="dim")
    while True:
        try:
            line = _read_line()
        except KeyboardInterrupt:
            display.line("\n(/exit leaves)", style="dim")
            continue
        if line is None or line.strip() in ("/exit", "/quit"):
            return 0
        text = line.strip()
        if text == "/help":
            display.line(_HELP)
        elif text == "/reset":
            conversation.reset()
            display.line("The conversation is forgotten.", style="dim")
        elif text.startswith("/"):
            display.line(f"There is no command {text}; /help lists them.")
        elif text:
            conversation.ask(text)


class Conversation:
    """The turns so far, and the cache of what the model has read of them."""

    def __init__(self, model: Any, options: argparse.Namespace, display: Display) -> None:
        self._model = model
        self._options = options
        self._display = display
        self._system = [{"role": "system", "content": options.system}] if options.system else []
        self._turns: list[dict[str, str]] = []
        self._cache: Any = None
        self._read: list[int] = []  # the tokens that the cache holds

    @property
    def turns(self) -> list[dict[str, str]]:
        """Role and content of each turn, oldest first."""
        return list(self._turns)

    def reset(self) -> None:
        """Forgets all turns."""
        self._turns = []
        self._forget_cache()

    def ask(self, text: str) -> None:
        """Answers one turn; Ctrl-C ends the answer, and what came of it stays in the history."""
        from npu_llm.cli.session import generation_options
        from npu_llm.cli.streamer import AnswerStreamer

        self._turns.append({"role": "user", "content": text})
        inputs = self._encoded()
        if inputs is None:
            self._turns.pop()
            return
        streamer = AnswerStreamer(self._model.tokenizer)
        try:
            output = self._model.generate(
                **inputs,
                past_key_values=self._cache_for(inputs["input_ids"][0].tolist()),
                streamer=streamer,
                return_dict_in_generate=True,
                **generation_options(self._options, self._model),
            )
        except KeyboardInterrupt:
            # Where the step was broken off, nobody knows what the cache holds.
            self._forget_cache()
            self._display.line("\n(interrupted)", style="dim")
        else:
            self._cache = output.past_key_values
            self._read = output.sequences[0, : self._cache.get_seq_length()].tolist()
        print(flush=True)
        self._turns.append({"role": "assistant", "content": streamer.text})
        self._show_figures(inputs["input_ids"].shape[1], streamer)

    def _encoded(self) -> dict[str, Any] | None:
        """The inputs of the next answer; the oldest turns go where the context has no room."""
        from npu_llm.cli.session import encode

        context = self._model.context_length
        reserve = 0 if context is None else min(self._options.max_new_tokens, context // 2)
        dropped = 0
        while True:
            inputs = encode(self._model, self._system + self._turns)
            length = inputs["input_ids"].shape[1]
            if context is None or length < context - reserve:
                break
            if len(self._turns) < 3:
                if length < context:
                    break
                self._display.line(
                    f"That is {length:,} tokens, and the model's context holds {context:,}. "
                    "Say it shorter."
                )
                return None
            del self._turns[:2]
            dropped += 1
        if dropped:
            self._display.line(f"(context full: {dropped} oldest turns dropped)", style="dim")
        return inputs

    def _cache_for(self, tokens: list[int]) -> Any:
        """The cache, when what it holds is how the next prompt begins; else None for a new one."""
        held = len(self._read)
        if self._cache is not None and 0 < held < len(tokens) and tokens[:held] == self._read:
            return self._cache
        self._forget_cache()
        return None

    def _forget_cache(self) -> None:
        self._cache, self._read = None, []

    def _show_figures(self, prompt_tokens: int, streamer: Any) -> None:
        first, rate = streamer.time_to_first_token_s, streamer.tokens_per_s
        parts = [f"{prompt_tokens:,} tokens in", f"{len(streamer.tokens):,} out"]
        if first is not None:
            parts.append(f"first after {first:.2f} s")
        if rate is not None:
            parts.append(f"{rate:.1f} tokens/s")
        self._display.line(f"({', '.join(parts)})", style="dim")


def _read_line() -> str | None:
    """The next line from standard input; None at its end."""
    if not sys.stdin.isatty():
        return sys.stdin.readline() or None
    if not sys.stdout.isatty():
        # input() would write its prompt among the answers.
        print("> ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline() or None
    import readline  # noqa: F401  # line editing and recall for input()

    try:
        return input("> ")
    except EOFError:
        print(file=sys.stderr)
        return None
