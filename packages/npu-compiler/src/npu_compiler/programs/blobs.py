"""Compiled blobs on disk, and fingerprints of files. Does not import torch."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from npu_command.whole_files import write_json

__all__ = [
    "AMENDMENTS",
    "BLOB_FOLDER",
    "AheadBlob",
    "AheadBlobs",
    "are_damaged",
    "check_blobs",
    "fingerprint",
    "read_amendments",
    "read_blob_records",
    "record_blobs",
]

_SAMPLE_BYTES = 1 << 16
_WHOLE_BYTES = 1 << 24


def fingerprint(path: Path) -> dict[str, Any]:
    """Returns size and checksum of a file; for speed, large files are sampled."""
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            digest.update(file.read())
        else:
            for index in range(64):
                file.seek((size - _SAMPLE_BYTES) * index // 63)
                digest.update(file.read(_SAMPLE_BYTES))
    return {"size": size, "sha256": digest.hexdigest()}


# OpenVINO writes and reads the files; this module chooses their place and checks that they are
# unchanged.

_logger = logging.getLogger(__name__)

AMENDMENTS = "options.json"


def check_blobs(blobs: Path) -> None:
    """Removes damaged blobs; the device then compiles again."""
    if are_damaged(blobs):
        _logger.warning("program cache: compiled blob in %s is damaged; compiling again", blobs)
        shutil.rmtree(blobs, ignore_errors=True)


def are_damaged(blobs: Path) -> bool:
    """Whether any compiled blob is damaged."""
    record = blobs / "blobs.json"
    found = [path for path in blobs.glob("*") if path != record] if blobs.is_dir() else []
    if not found:
        return False
    try:
        expected: object = json.loads(record.read_text())
        return {path.name: fingerprint(path) for path in found} != expected
    except (OSError, ValueError):
        return True


def record_blobs(blobs: Path) -> None:
    """Records size and checksum of the blobs, after the device has written one."""
    try:
        record = blobs / "blobs.json"
        found = [path for path in blobs.glob("*") if path != record and path.suffix != ".tmp"]
        if found:
            write_json(record, {path.name: fingerprint(path) for path in found})
    except OSError as failure:
        _logger.warning("program cache: cannot record blobs in %s (%s)", blobs, failure)


def read_amendments(entry: Path) -> dict[str, str]:
    """Returns the extra options that the device's compiler needs for this program."""
    try:
        return dict(json.loads((entry / AMENDMENTS).read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as failure:
        _logger.warning("program cache: %s is damaged (%s)", entry / AMENDMENTS, failure)
        return {}


# A folder lists its blobs as records, one for each program and target. If the target's compiler
# refused a blob, its record has the reason instead of a file.

_Loaded = TypeVar("_Loaded")

BLOB_FOLDER = "blobs"
_MOST_REASON = 300


@dataclass(frozen=True)
class AheadBlob:
    """One program compiled for one target."""

    target: str  # the NPU's platform number, such as "4000"
    program: str  # name of the program in its folder
    compiler: str  # version of the target's compiler
    model: dict[str, Any]  # fingerprint of the .xml file that was compiled
    file: str = ""  # path in the folder; "" if the compiler refused the program
    blob: dict[str, Any] = field(default_factory=dict)  # fingerprint of that file
    refused: str = ""  # the compiler's reason; "" if it took the program
    # The compiler's estimate, not a measurement; with its fields and that note.
    estimate: dict[str, Any] | None = None

    def __str__(self) -> str:
        name = f"{self.program} for NPU {self.target}"
        if self.refused:
            return f"{name}: no blob, the compiler refused it: {self.refused}"
        text = f"{name}: {self.blob['size'] / 1e6:,.1f} MB"
        if self.estimate is None:
            return text
        return f"{text}, {self.estimate['latency_ms']:.3g} ms a run ({self.estimate['note']})"


class AheadBlobs:
    """The blobs of a folder for the NPU in use; none for other devices.

    `compiled_because` is the reason why a program was compiled despite blobs; None if none was.
    """

    def __init__(self, folder: Path, records: Sequence[AheadBlob], architecture: str) -> None:
        """Names the folder, its records, and the NPU, such as "4000"; "" for another device."""
        self._folder = folder
        self._records = records if architecture else ()
        self._target = architecture.removeprefix("NPU")
        self.compiled_because: str | None = None

    def load(
        self,
        program: str,
        model: Path,
        import_blob: Callable[[Path], _Loaded],
        compile_model: Callable[[], _Loaded],
    ) -> _Loaded:
        """Imports the blob of a program, or compiles its .xml file and logs why."""
        if not self._records:
            return compile_model()
        path, reason = self._find(program, model)
        if path is not None:
            try:
                return import_blob(path)
            except RuntimeError as failure:
                text = " ".join(str(failure).split())[:_MOST_REASON]
                reason = f"the device does not take {path.name}: {text}"
        _logger.warning("%s: compiling %s, because %s", self._folder.name, program, reason)
        self.compiled_because = reason
        return compile_model()

    def _find(self, program: str, model: Path) -> tuple[Path | None, str]:
        """Returns the blob of a program, or the reason why there is none."""
        found = [one for one in self._records if one.program == program]
        fitting = [one for one in found if one.target == self._target]
        if not found:
            return None, "there is no blob of it"
        if not fitting:
            have = ", ".join(sorted({one.target for one in found}))
            return None, f"its blobs are for {have}, and the device is NPU {self._target}"
        record, path = fitting[0], self._folder / fitting[0].file
        if record.refused:
            return None, f"the compiler {record.compiler} refused it: {record.refused}"
        try:
            if fingerprint(model) != record.model:
                return None, "its blob is of another program"
            if fingerprint(path) != record.blob:
                return None, f"{record.file} does not match its checksum"
        except OSError as failure:
            return None, f"{record.file} cannot be read: {failure.strerror}"
        return path, ""


def read_blob_records(raw: Any) -> tuple[AheadBlob, ...]:
    """Returns the records of a folder's manifest; TypeError for invalid ones."""
    records = tuple(AheadBlob(**one) for one in raw)
    for one in records:
        texts = (one.target, one.program, one.compiler, one.file, one.refused)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"the blob {one!r}")
        if Path(one.file).is_absolute() or ".." in Path(one.file).parts:
            raise TypeError(f"the file {one.file!r} of a blob")
    return records
