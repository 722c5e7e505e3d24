"""Records of tuning, their store on disk, and the report of a run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openvino as ov
from torch import fx

import npu_runtime
from npu_command.whole_files import write_json
from npu_compiler.config import read_settings
from npu_compiler.errors import TuningError
from npu_compiler.graph.origins import graph_text
from npu_compiler.options import CompilerConfig

__all__ = ["TuningRecord", "TuningReport", "TuningStore", "tuning_key"]

_logger = logging.getLogger(__name__)

_FORMAT = 1


@dataclass(frozen=True)
class TuningRecord:
    """The measurements of one graph on one device, or estimates for one target.

    Attributes:
        key: of the graph, its configuration and the device; see tuning_key.
        chosen: name of the candidate to use from now on.
        times_us: candidate -> shortest time of a call in microseconds, or its estimate.
        errors: candidate -> largest difference from the default's result, divided by its largest
            value.
        refused: candidate -> reason why it was not measured or cannot be chosen.
        device: full name of the device, or the target of the estimates.
        openvino: its version.
        estimated_by: version of the compiler that estimated the times; "" if they were measured.
    """

    key: str
    chosen: str
    times_us: dict[str, float]
    errors: dict[str, float]
    refused: dict[str, str]
    device: str
    openvino: str
    estimated_by: str = ""

    @property
    def speedup(self) -> float:
        """Time of the default divided by the time of the chosen candidate: 1 or more."""
        return self.times_us["default"] / self.times_us[self.chosen]


def tuning_key(
    graph: fx.Graph, *, kind: str, config: CompilerConfig, target: str | None = None
) -> str:
    """Returns the key of a captured graph. Only the shapes of weights count, as they do for speed.

    Estimates pass their `target`, so that their keys differ from a measurement's; None measures.
    """
    serving = npu_runtime.device_info() if target is None else None
    facts = {
        "graph": graph_text(graph),
        "kind": kind,
        "config": [str(getattr(config, name)) for name in _CONFIG],
        "device": "estimate" if serving is None else serving.device,
        "hardware": target if serving is None else serving.full_name,
        "openvino": ov.__version__,
        "format": _FORMAT,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:40]


_CONFIG = (
    "computed_in", "compression", "group_size", "symmetric", "strict", "freeze", "fallback_ops",
    "keep_float32", "enabled_passes", "disabled_passes", "device_options",
)  # fmt: skip


class TuningStore:
    """The records in a directory, which processes may share."""

    def __init__(self, cache_dir: str | os.PathLike[str] | None = None) -> None:
        """Sets the directory: `tuning` in the cache directory (NPU_COMPILE_CACHE_DIR)."""
        self.directory = Path(cache_dir or read_settings().cache_dir) / "tuning"

    def read(self, key: str) -> TuningRecord | None:
        """Returns the record of a key, or None; a damaged one is logged and ignored."""
        path = self.directory / f"{key}.json"
        try:
            return _record(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as failure:
            _logger.warning("tuning: record %s cannot be read (%s); ignoring it", path, failure)
            return None

    def write(self, record: TuningRecord) -> None:
        """Stores a record, replacing an older one of its key; OSError if it cannot be written."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_json(self.directory / f"{record.key}.json", dataclasses.asdict(record), indent=1)

    def records(self) -> tuple[TuningRecord, ...]:
        """Returns all readable records, by key."""
        keys = sorted(path.stem for path in self.directory.glob("*.json"))
        return tuple(record for key in keys if (record := self.read(key)) is not None)

    def export(self, path: str | os.PathLike[str]) -> int:
        """Writes all records to one file and returns their number; [tuning-file] on failure."""
        records = self.records()
        content = {"format": _FORMAT, "records": [dataclasses.asdict(one) for one in records]}
        try:
            write_json(Path(path), content, indent=1)
        except OSError as failure:
            raise _file_error(path, "a file that can be written", failure.strerror) from failure
        return len(records)

    def import_(self, path: str | os.PathLike[str]) -> int:
        """Imports the records of a file and returns their number; [tuning-file] for other files.

        Records of other devices are harmless, because their keys include the device.
        """
        try:
            content = json.loads(Path(path).read_text())
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']}, not {_FORMAT}")
            records = [_record(one) for one in content["records"]]
        except OSError as failure:
            raise _file_error(path, "a file of records", failure.strerror) from failure
        except (ValueError, KeyError, TypeError, AttributeError) as failure:
            raise _file_error(path, "a file of records", repr(failure)) from failure
        for record in records:
            self.write(record)
        return len(records)


def _record(content: Mapping[str, Any]) -> TuningRecord:
    record = TuningRecord(**content)
    names = (record.key, record.chosen, record.device, record.openvino, record.estimated_by)
    if not all(isinstance(name, str) for name in names) or not record.key.isalnum():
        raise ValueError("a name is not text")
    if record.chosen not in record.times_us or "default" not in record.times_us:
        raise ValueError("the chosen way was not measured")
    return record


def _file_error(path: str | os.PathLike[str], rule: str, received: str | None) -> TuningError:
    return TuningError(
        f"tuning records {os.fspath(path)}: {rule}, got {received}. Write one with "
        "npu-compiler tune --export.",
        code="tuning-file",
    )


@dataclass(frozen=True)
class TuningReport:
    """The results of a session.

    Attributes:
        records: one per graph.
        skipped: graph -> reason why it was not tuned.
    """

    records: tuple[TuningRecord, ...]
    skipped: dict[str, str]

    def __str__(self) -> str:
        # Late: every graph asks for its tuning record, and few have an estimate.
        from npu_compiler.target_compiler.report import ESTIMATE_NOTE

        lines = [f"{len(self.records)} graphs tuned, {len(self.skipped)} not"]
        for record in self.records:
            chosen = f"{record.key[:12]}: {record.chosen}, {record.speedup:.2f}x the default"
            if record.estimated_by:
                note = f"{ESTIMATE_NOTE}; compiler {record.estimated_by}"
                chosen += f" on {record.device} ({note})"
            lines.append(chosen)
            lines += [
                f"  {name:18} {time_us:10.1f} us  error {record.errors[name]:.1e}"
                for name, time_us in sorted(record.times_us.items(), key=lambda item: item[1])
            ]
            lines += [f"  {name:18} {reason}" for name, reason in record.refused.items()]
        lines += [f"{name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join(lines)
