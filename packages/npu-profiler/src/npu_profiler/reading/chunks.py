"""The text of a trace file, piece by piece: plain or packed, whole or cut off."""

import codecs
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from npu_profiler.errors import TraceError

__all__ = ["TraceText"]

_CHUNK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class TraceText:
    """The text of a file, to be iterated over once.

    Args:
        path: the file. Whether it is packed is seen in its first bytes, not in its name.

    Attributes:
        is_cut: whether the packed stream ended in the middle, known at the end of the iteration.
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
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            reason = getattr(error, "strerror", None) or error
            raise TraceError(
                f"trace file: must be a file that can be read; got {str(self._path)!a} "
                f"({reason}). Pass a file that npu-profiler trace wrote.",
                code="trace-unreadable",
            ) from None

    def _unpacked(self, file: IO[bytes]) -> Iterator[bytes]:
        # Not the gzip module: of a member that is cut off it gives nothing out.
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
