"""Checksums of files for other machines, so that a damaged file is not taken for a device error.

A sealed document is JSON with a checksum of itself and of the files next to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_ops.errors import DamagedFileError

__all__ = ["check_file", "damaged", "digest", "read_sealed", "seal"]

_OWN, _FILES = "checksum", "files"


def digest(data: bytes) -> str:
    """Returns the checksum of bytes as text."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def seal(document: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """Adds checksums to a document.

    Args:
        document: JSON-compatible values.
        files: name of a file next to it -> its digest.
    """
    sealed = {**document, _FILES: dict(files)}
    return {**sealed, _OWN: _digest_of(sealed)}


def read_sealed(file: Path) -> tuple[Any, bool]:
    """Reads a document.

    Returns:
        The document, and whether it has a checksum.

    Raises:
        OSError: the file cannot be read.
        DamagedFileError: [file-damaged] if it is not JSON, or does not match its checksum.
    """
    try:
        document = json.loads(file.read_bytes())
    except ValueError as error:
        raise damaged(file, f"not valid JSON ({error})") from error
    if not isinstance(document, dict) or _OWN not in document:
        return document, False
    own = document.pop(_OWN)
    if own != _digest_of(document):
        raise damaged(file, "its text has another checksum")
    return document, True


def check_file(document: Mapping[str, Any], file: Path, data: bytes) -> None:
    """Checks a file next to a sealed document against its checksum.

    Args:
        document: result of `read_sealed`.
        file: name of the file in the document.
        data: contents of the file.

    Raises:
        DamagedFileError: [file-damaged] if they differ.
    """
    if document[_FILES].get(file.name) != digest(data):
        raise damaged(file, f"its {len(data):,} bytes have another checksum")


def damaged(file: Path, problem: str) -> DamagedFileError:
    """Returns the error of a damaged file."""
    return DamagedFileError(
        f"`{file}` must match its checksum, got a damaged file: {problem}. Copy it again from its "
        "source, or create it again.",
        code="file-damaged",
    )


def _digest_of(document: Mapping[str, Any]) -> str:
    # Same types as after reading: keys become strings, and tuples lists.
    plain = json.loads(json.dumps(document))
    return digest(json.dumps(plain, sort_keys=True).encode())
