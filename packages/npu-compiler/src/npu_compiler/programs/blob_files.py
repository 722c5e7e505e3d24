"""The device's compiled form of a program on disk, known without torch.

OpenVINO writes and reads the files; here it is said where, and that they are what was written.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

from npu_command.whole_files import write_json
from npu_compiler.programs.fingerprint import fingerprint

__all__ = ["AMENDMENTS", "are_damaged", "check_blobs", "read_amendments", "record_blobs"]

_logger = logging.getLogger(__name__)

AMENDMENTS = "options.json"


def check_blobs(blobs: Path) -> None:
    """Removes compiled blobs that are not what was written; the device then compiles again."""
    if are_damaged(blobs):
        _logger.warning("program cache: compiled blob in %s is damaged; compiling again", blobs)
        shutil.rmtree(blobs, ignore_errors=True)


def are_damaged(blobs: Path) -> bool:
    """Whether there are compiled blobs that are not what was written."""
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
    """Writes down what the blobs are, after the device has written one."""
    try:
        record = blobs / "blobs.json"
        found = [path for path in blobs.glob("*") if path != record and path.suffix != ".tmp"]
        if found:
            write_json(record, {path.name: fingerprint(path) for path in found})
    except OSError as failure:
        _logger.warning("program cache: cannot record blobs in %s (%s)", blobs, failure)


def read_amendments(entry: Path) -> dict[str, str]:
    """Options without which the device's compiler failed on this program."""
    try:
        return dict(json.loads((entry / AMENDMENTS).read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as failure:
        _logger.warning("program cache: %s is damaged (%s)", entry / AMENDMENTS, failure)
        return {}
