"""The file of a trace: written in pieces while the program runs, readable at every moment.

While it grows it is Chrome's array form, whose closing bracket may be missing, so that a program
killed without a word leaves a trace that Perfetto opens. The end makes it the object form, by
writing over the head and adding a tail.
"""

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_profiler.trace_format.chrome import finite

__all__ = ["TraceFile"]

# Level 9 takes eight times as long for 15 % less (2026-11, an eager Llama step).
GZIP_LEVEL = 3

# Both forms of the head have this length, also packed: the second is written over the first.
_HEAD_BYTES = 96


class TraceFile:
    """A trace that grows. To be used by one thread at a time.

    Args:
        path: where it stands, from now on; a file that was there is replaced. Compressed if the
            name ends in .gz, each piece for itself.
        start_ns: what the times of its events count from, Unix epoch.
        first: the first events, as `chrome.py` gives them.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, *, start_ns: int, first: bytes) -> None:
        self._path = path
        self._start_ns = start_ns
        self._is_packed = path.suffix == ".gz"
        # Unlinked first: a program may still read the older file, or it may be a link elsewhere.
        path.unlink(missing_ok=True)
        self._file = path.open("wb", buffering=0)
        self._put(self._head(b"["))
        self.write(first.removeprefix(b","))

    def write(self, events: bytes) -> None:
        """Adds events, each after a comma and a line break.

        Raises:
            OSError: the disk takes no more, for example.
        """
        if events:
            self._put(gzip.compress(events, GZIP_LEVEL, mtime=0) if self._is_packed else events)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Makes the file whole and closes it.

        Args:
            facts: what a reader should know of the trace as a whole; JSON-like.

        Raises:
            OSError: it cannot be written, or is no longer where it was.
        """
        with self._file:
            # A directory that was removed takes the file with it, and no write would say so.
            if not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                raise FileNotFoundError(2, "the file was replaced", str(self._path))
            tail = json.dumps(finite(dict(facts)), default=str)
            self.write(f'\n],"otherData":{tail}}}\n'.encode())
            # Small numbers keep their nanoseconds in a double, so times count from here.
            head = f'{{"displayTimeUnit":"ms","baseTimeNanoseconds":{self._start_ns},'
            self._file.seek(0)
            self._put(self._head(head.encode(), b'"traceEvents":['))

    def close(self) -> None:
        """Leaves it as it is, which is readable."""
        self._file.close()

    def _head(self, begin: bytes, end: bytes = b"") -> bytes:
        text = begin + b" " * (_HEAD_BYTES - len(begin) - len(end)) + end
        assert len(text) == _HEAD_BYTES
        return gzip.compress(text, 0, mtime=0) if self._is_packed else text

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
