"""The stored verdict on a program, next to the compiled form; read without torch."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from npu_command.whole_files import write_json
from npu_compiler.programs.blobs import AMENDMENTS
from npu_compiler.verification.result import Verdict

__all__ = ["VERDICT", "keep_verdict", "read_kept"]

_logger = logging.getLogger(__name__)
VERDICT = "verdict.json"


def read_kept(folder: Path) -> Verdict | None:
    """Returns the verdict stored next to a compiled form, if there is one."""
    try:
        return Verdict.from_json(json.loads((folder / VERDICT).read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as failure:
        _logger.warning("the verdict in %s cannot be read (%s): comparing again", folder, failure)
        return None


def keep_verdict(folder: Path, verdict: Verdict) -> None:
    """Stores a verdict and the options that it requires, if the folder is writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if verdict.workaround:
            write_json(folder / AMENDMENTS, dict(verdict.workaround))
        write_json(folder / VERDICT, verdict.as_json())
    except OSError as failure:
        _logger.debug("%s: cannot store the verdict (%s): the next start compares", folder, failure)
