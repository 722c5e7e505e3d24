"""Checksums in what is kept for another machine, so that damage is not taken for a device's fault.

A sealed document is JSON that holds a checksum of itself and of the files beside it.
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
    """The checksum of some bytes, as text."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def seal(document: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """A document with checksums.

    Args:
        document: what JSON can hold.
        files: name of a file beside it -> its digest.
    """
    sealed = {**document, _FILES: dict(files)}
    return {**sealed, _OWN: _digest_of(sealed)}


def read_sealed(file: Path) -> tuple[Any, bool]:
    """Reads a document.

    Returns:
        What it holds, and whether it is sealed; one without a checksum is not.

    Raises:
        OSError: it cannot be read.
        DamagedFileError: [file-damaged] where it is not JSON, or not what was sealed.
    """
    try:
        document = json.loads(file.read_bytes())
    except ValueError as error:
        raise damaged(file, f"not valid JSON ({error})") from error
    if not isinstance(document, dict) or _OWN not in document:
        return document, False
    own = document.pop(_OWN)
    if own != _digest_of(document):
        raise damaged(file, "its text is not what was written")
    return document, True


def check_file(document: Mapping[str, Any], file: Path, data: bytes) -> None:
    """Compares a file beside a sealed document with what was written.

    Args:
        document: as `read_sealed` gave it.
        file: whose name the document knows.
        data: what the file holds.

    Raises:
        DamagedFileError: [file-damaged].
    """
    if document[_FILES].get(file.name) != digest(data):
        raise damaged(file, f"its {len(data):,} bytes are not what was written")


def damaged(file: Path, problem: str) -> DamagedFileError:
    """The error for a file that is not as it was written."""
    return DamagedFileError(
        f"`{file}` must be as it was written; the file is damaged: {problem}. Copy it again from "
        "where it was made, or make it again.",
        code="file-damaged",
    )


def _digest_of(document: Mapping[str, Any]) -> str:
    # As it will be read: keys are text there, and tuples are lists.
    plain = json.loads(json.dumps(document))
    return digest(json.dumps(plain, sort_keys=True).encode())
