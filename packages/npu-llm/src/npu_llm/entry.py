"""The compile cache: one folder per model, precision and machine, whole or not there at all.

What goes into an entry is npu_llm.build's business. An entry is written under another name and
renamed when it is complete, so that a killed writer leaves nothing that a reader would take.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_llm.errors import CacheError

__all__ = ["CompileCache", "Entry", "make_key"]

_logger = logging.getLogger(__name__)
_MANIFEST = "entry.json"
_BLOB_MANIFEST = "blob.json"
_FORMAT = 1
# Hashing gigabytes at each start costs more than the start. A large file whose size and
# modification time are those that were recorded is taken as unchanged, as git takes it.
_ALWAYS_HASHED_BYTES = 4 << 20
_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class Entry:
    """A complete entry.

    Attributes:
        folder: where it is.
        about: what its writer recorded.
    """

    folder: Path
    about: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.about["name"])

    @property
    def model_path(self) -> Path:
        """The program's IR."""
        return self.folder / "step.xml"

    @property
    def blob_folder(self) -> Path:
        """Where the device's compiled form is kept."""
        return self.folder / "blob"

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model came with a tokenizer."""
        return bool(self.about["has_tokenizer"])

    @property
    def context_length(self) -> int | None:
        """Tokens that prompt and answer may have together; None where the model sets no bound."""
        length = self.about["context_length"]
        return None if length is None else int(length)

    def check_blob(self) -> None:
        """Removes the compiled form unless it is exactly what `record_blob` saw."""
        manifest = self.folder / _BLOB_MANIFEST
        try:
            records = json.loads(manifest.read_text())
        except (OSError, ValueError):
            records = None
        names = {str(file.relative_to(self.blob_folder)) for file in _files(self.blob_folder)}
        is_known = records is not None and names == set(records)
        if not is_known or _first_difference(self.blob_folder, records) is not None:
            shutil.rmtree(self.blob_folder, ignore_errors=True)

    def record_blob(self) -> None:
        """Records the compiled form, after a load has written it."""
        _write_text(self.folder / _BLOB_MANIFEST, json.dumps(_records(self.blob_folder)))


class CompileCache:
    """All entries below one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, key: str) -> Entry | None:
        """Returns the entry of a key; None when there is none, or when it is damaged.

        A damaged entry is removed, and logged as a warning.
        """
        folder = self._root / key
        manifest = folder / _MANIFEST
        if not folder.is_dir():
            return None
        try:
            content = json.loads(manifest.read_text())
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']}")
            problem = _first_difference(folder, content["files"])
            about = content["about"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
            problem, about = f"{_MANIFEST}: {failure}", {}
        if problem is None:
            return Entry(folder, about)
        _logger.warning("compile cache entry %s is damaged (%s): built anew", folder, problem)
        shutil.rmtree(folder, ignore_errors=True)
        return None

    @contextmanager
    def create(self, key: str) -> Iterator[Path]:
        """Gives a folder to fill, and makes it the key's entry when the body ends without error.

        The body writes `about.json`, what Entry.about returns.

        Raises:
            CacheError: [cache-unwritable] when the folder cannot be made or filled.
        """
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
            draft = self._root / f".{key}.{os.getpid()}.{secrets.token_hex(4)}"
            draft.mkdir()
        except OSError as failure:
            raise _unwritable(self._root, failure) from failure
        try:
            yield draft
            self._commit(draft, self._root / key)
        except OSError as failure:
            raise _unwritable(self._root, failure) from failure
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _commit(self, draft: Path, folder: Path) -> None:
        about_file = draft / "about.json"
        about = json.loads(about_file.read_text())
        about_file.unlink()
        content = {"format": _FORMAT, "about": about, "files": _records(draft)}
        _write_text(draft / _MANIFEST, json.dumps(content, indent=1))
        try:
            draft.rename(folder)
        except OSError:
            # Another process was faster. Its entry serves if it is whole, else ours does.
            if self.find(folder.name) is None:
                draft.rename(folder)

    def _remove_abandoned(self) -> None:
        """Removes drafts whose writer is no longer alive."""
        for draft in self._root.glob(".*.*.*"):
            writer = draft.name.split(".")[-2]
            if writer.isdigit() and not Path(f"/proc/{writer}").exists():
                shutil.rmtree(draft, ignore_errors=True)


def make_key(name: str, parts: Mapping[str, Any]) -> str:
    """Returns the key of an entry: a readable name and a digest of what it depends on."""
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    readable = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)
    return f"{readable[:60]}-{digest.hexdigest()[:16]}"


def _records(folder: Path) -> dict[str, dict[str, Any]]:
    return {str(file.relative_to(folder)): _record(file) for file in _files(folder)}


def _record(file: Path) -> dict[str, Any]:
    stat = file.stat()
    return {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": _digest(file)}


def _files(folder: Path) -> Iterable[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _first_difference(folder: Path, records: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Says how a folder differs from its records; None when it does not."""
    for name, record in records.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        stat = file.stat()
        if stat.st_size != record["bytes"]:
            return f"{name} has {stat.st_size} bytes instead of {record['bytes']}"
        touched = stat.st_mtime_ns != record["mtime_ns"]
        suspect = touched or stat.st_size <= _ALWAYS_HASHED_BYTES
        if suspect and _digest(file) != record["sha256"]:
            return f"{name} has other contents"
    return None


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _write_text(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text)
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _unwritable(root: Path, failure: OSError) -> CacheError:
    return CacheError(
        f"{root}: the compile cache must be a folder with room that can be written; got: "
        f"{failure.strerror or failure}. Name another with NPU_LLM_CACHE_DIR or --cache-dir.",
        code="cache-unwritable",
    )
