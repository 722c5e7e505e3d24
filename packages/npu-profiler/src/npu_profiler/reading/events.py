"""The events of a Chrome trace, one at a time: both forms of the file, and their cut-off ends.

Format: "Trace Event Format" (Google, public document): an array of events, or an object with them
in `traceEvents`.
"""

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from npu_profiler.errors import TraceError

__all__ = ["Event", "PlainSlice", "TraceEvents", "TraceText"]

_CHUNK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class TraceText:
    """The text of a file, to be iterated over once.

    Args:
        path: the file; its first bytes, not its name, show whether it is compressed.

    Attributes:
        is_cut: whether the compressed stream was truncated; known after the iteration.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_cut = False

    def __iter__(self) -> Iterator[str]:
        """Yields pieces of text.

        Raises:
            TraceError: [trace-unreadable] The file cannot be opened or read.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        try:
            with self._path.open("rb") as file:
                is_packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
                file.seek(0)
                for data in self._unpacked(file) if is_packed else _pieces(file):
                    yield decoder.decode(data)
        except (OSError, ValueError) as error:  # ValueError: an invalid file name
            reason = getattr(error, "strerror", None) or error
            raise TraceError(
                f"the trace file must be a readable file, got {str(self._path)!a} "
                f"({reason}). Pass a file that npu-profiler trace wrote.",
                code="trace-unreadable",
            ) from None

    def _unpacked(self, file: IO[bytes]) -> Iterator[bytes]:
        # Not the gzip module: it returns nothing of a truncated member.
        member = zlib.decompressobj(_GZIP_WINDOW)
        for data in _pieces(file):
            is_full = False  # the member may hold more than it was asked for
            while data or is_full:
                try:
                    text = member.decompress(data, _CHUNK_BYTES)
                except zlib.error:
                    self.is_cut = True
                    return
                yield text
                is_full = len(text) == _CHUNK_BYTES and not member.eof
                data = member.unconsumed_tail
                self.is_cut = not member.eof
                if member.eof:
                    data = member.unused_data
                    member = zlib.decompressobj(_GZIP_WINDOW)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while data := file.read(_CHUNK_BYTES):
        yield data


# Category, name, pid, tid, start and duration in microseconds, as text.
PlainSlice = tuple[str | Any, ...]
Event = dict[str, Any]

# An op without arguments as the recorder writes it: nine of ten events, and this reads them three
# times as fast as the JSON decoder (2026-11). Sequence numbers are in the arrows already.
_PLAIN = re.compile(
    r'[\s,]*\{"ph":"X","cat":"([^"\\]*)","name":"([^"\\]*)","pid":(\d+),"tid":(\d+),'
    r'"ts":(\d+\.\d{3}),"dur":(\d+\.\d{3})(?:,"args":\{"Sequence number":\d+\})?\}'
)
_BEGIN = re.compile(r'\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', re.DOTALL)
_BETWEEN = re.compile(r"[\s,]*")

# Maximum size of the head of a file, and of one event.
_MAX_HEAD_CHARS = 1 << 20
_MAX_EVENT_CHARS = 1 << 24


class TraceEvents:
    """The events of a file, to be iterated over once.

    Args:
        path: the file, packed or not.

    Attributes:
        path: the file.
        head: the keys before the events: `baseTimeNanoseconds`, for example.
        tail: the keys after them: `otherData`, for example.
        is_complete: whether the file is complete.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text = TraceText(path)
        self._chunks = iter(self._text)
        self.head: dict[str, Any] = {}
        self.tail: dict[str, Any] = {}
        self.is_complete = False

    def __iter__(self) -> Iterator[PlainSlice | Event]:
        """Yields events in the order of the file; slices without arguments as tuples of text.

        Raises:
            TraceError: [trace-unreadable] it cannot be read, [trace-invalid] it is not a trace.
        """
        rest = self._read_head()
        decode, match_plain = json.JSONDecoder().raw_decode, _PLAIN.match
        is_more = True
        while is_more:
            chunk = next(self._chunks, None)
            is_more = chunk is not None
            text = rest + (chunk or "")
            at = 0
            while True:
                plain = match_plain(text, at)
                while plain is not None:
                    yield plain.groups()
                    at = plain.end()
                    plain = match_plain(text, at)
                at = _skip(text, at)
                if text.startswith("]", at):
                    self._read_tail(text[at + 1 :])
                    return
                try:
                    event, at = decode(text, at)
                except json.JSONDecodeError:
                    break  # it continues in the next chunk, or was truncated
                if not isinstance(event, dict):
                    raise self._invalid(f"its events are {type(event).__name__} values")
                yield event
            rest = text[at:]
            if len(rest) > _MAX_EVENT_CHARS:
                raise self._invalid(f"an event has no end: {rest[:40]!r}")

    def _read_head(self) -> str:
        """Reads up to the first event; returns the rest of the read text."""
        text = ""
        for chunk in self._chunks:
            text += chunk
            found = _BEGIN.match(text)
            if found is not None:
                begin = found.group()
                if "{" in begin:
                    try:
                        self.head = json.loads(begin + "]}")
                    except json.JSONDecodeError:
                        raise self._invalid("its head is not valid JSON") from None
                return text[found.end() :]
            if len(text) > _MAX_HEAD_CHARS:
                break
        start = text[:40].strip()
        raise self._invalid(f"it begins with {start!r}" if start else "it is empty")

    def _read_tail(self, text: str) -> None:
        text += "".join(self._chunks)
        if not self.head and not text.strip():
            self.is_complete = not self._text.is_cut
            return
        try:
            self.tail = json.loads("{" + text.strip().removeprefix(","))
        except json.JSONDecodeError:
            return
        self.is_complete = not self._text.is_cut

    def _invalid(self, received: str) -> TraceError:
        return TraceError(
            f"the trace file must be a Chrome trace in JSON, got {self.path}, and {received}. "
            "Pass a file that npu-profiler trace wrote.",
            code="trace-invalid",
        )


def _skip(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found else at
