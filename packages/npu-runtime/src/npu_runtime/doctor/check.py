"""The result of one check."""

import enum
import re
from dataclasses import dataclass

__all__ = ["RELEASES", "Check", "Status", "needless", "version_numbers"]

RELEASES = "https://github.com/intel/linux-npu-driver/releases"


class Status(enum.StrEnum):
    """What a check found: in order, worth knowing, in the NPU's way, or not looked at."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: what was looked at.
        status: how it is.
        found: what was found, as a clause.
        fix: what to do, as a sentence; empty where nothing is to be done.
    """

    name: str
    status: Status
    found: str
    fix: str = ""


def needless(name: str, found: str) -> Check:
    """What is missing where there is no NPU is nothing to repair."""
    return Check(name, Status.SKIPPED, f"{found}; there is no NPU to need it")


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, ``(6, 8, 0)`` of ``6.8.0-45-generic``."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()
