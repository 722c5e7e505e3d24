"""ServedSpeech: a model that writes down what is said, one sound after the other."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

from npu_llm.serving.models.turns import Turns
from npu_llm.speech.wave_file import read_samples

if TYPE_CHECKING:
    from npu_llm.speech.transcriber import Transcriber, Transcript
    from npu_llm.speech.transcript import TranscriptOptions

__all__ = ["ServedSpeech"]


class ServedSpeech:
    """A model of speech that answers.

    Attributes:
        name: what clients call it.
        context_length: None: a sound may be of any length.
    """

    context_length: int | None = None

    def __init__(self, name: str, transcriber: Transcriber, *, most_waiting: int = 256) -> None:
        """Takes the model.

        Args:
            name: what clients call it.
            transcriber: the model with what prepares its inputs.
            most_waiting: requests that are taken at once; more are refused.
        """
        self.name = name
        self.transcriber = transcriber
        self._turns = Turns("npu-llm speech", most_waiting=most_waiting)
        self._is_closing = threading.Event()

    @property
    def is_alive(self) -> bool:
        """Whether it can answer."""
        return not self._turns.is_closed

    @property
    def waiting(self) -> int:
        """How many requests are read or wait for it."""
        return self._turns.waiting

    async def transcribe(self, content: bytes, options: TranscriptOptions) -> Transcript:
        """Returns what is said in a WAV file; a call that is cancelled ends at the next token.

        Args:
            content: the file's bytes.
            options: of the transcript.

        Raises:
            OptionError: as npu_llm.speech.wave_file.read_samples does; [speech-option] for what the
                model does not know.
            ServerError: [server-busy], [server-stopping].
        """
        self.transcriber.check(options)
        left = threading.Event()
        with self._turns.place():
            try:
                return await self._turns.do(partial(self._run, content, options, left))
            except asyncio.CancelledError:
                left.set()
                raise

    def close(self, *, grace_s: float = 0.0) -> None:
        """Ends it at the next token; `grace_s` has no other effect."""
        self._is_closing.set()
        self._turns.close()

    def _run(self, content: bytes, options: TranscriptOptions, left: threading.Event) -> Transcript:
        sound = read_samples("file", content, rate=self.transcriber.rate)
        return self.transcriber.run(sound, options, ends=(left, self._is_closing))
