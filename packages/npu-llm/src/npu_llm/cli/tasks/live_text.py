"""Shows how much of a sound was read, and the words as they come, while a model transcribes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from transformers.generation.streamers import BaseStreamer

from npu_llm.cli.display import Display

__all__ = ["live_text"]

_WIDTH = 60  # characters of the latest words


@contextmanager
def live_text(
    display: Display, tokenizer: Any, *, monitors: bool, streams: bool
) -> Iterator[dict[str, Any]]:
    """Shows a bar and the latest words on a terminal; nothing elsewhere.

    Args:
        display: where.
        tokenizer: decodes tokens.
        monitors: whether the model's generate reports how many frames were read.
        streams: whether it can report words.

    Yields:
        Arguments of the model's generate.
    """
    if not display.console.is_terminal:
        yield {}
        return
    columns = (
        TextColumn("{task.percentage:>3.0f} %"), BarColumn(bar_width=20), TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=display.console, transient=True) as bar:
        task = bar.add_task("listening", total=1.0)

        def show(words: str) -> None:
            bar.update(task, description=" ".join(words.split())[-_WIDTH:])

        def monitor(progress: Any) -> None:
            read, total = progress[progress[:, 1].argmax()].tolist()
            bar.update(task, completed=read / max(total, 1))

        reports: dict[str, Any] = {"monitor_progress": monitor} if monitors else {}
        yield reports | ({"streamer": _Words(tokenizer, show)} if streams else {})


class _Words(BaseStreamer):  # type: ignore[misc]
    """A streamer that keeps the tokens of the part that is being read."""

    def __init__(self, tokenizer: Any, show: Any) -> None:
        self._tokenizer = tokenizer
        self._show = show
        self._tokens: list[int] = []

    def put(self, value: Any) -> None:
        """Adds tokens."""
        self._tokens += value.reshape(-1).tolist()
        self._show(self._tokenizer.decode(self._tokens, skip_special_tokens=True))

    def end(self) -> None:
        """Ends a part."""
        self._tokens = []
