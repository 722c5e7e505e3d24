"""Compiles a model for a target and keeps the report and the blob by content."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import openvino as ov

from npu_command.interrupt import removed_at_interrupt
from npu_command.whole_files import write_json
from npu_compiler.config import read_settings
from npu_compiler.errors import TargetError
from npu_compiler.graph.kept_origins import kept_origins
from npu_compiler.programs.kept_files import KeptFiles
from npu_compiler.target_compiler.report import (
    UNEXPLAINED,
    Estimate,
    TargetReport,
    read_estimate,
    read_reason,
)
from npu_compiler.target_compiler.schedule import read_schedule
from npu_compiler.target_compiler.sources import CompilerSource, find_source
from npu_compiler.target_compiler.targets import Target, find_target
from npu_compiler.target_compiler.vcl_process import Answer, CompilerProcess, Limits
from npu_compiler.target_compiler.vcl_request import flags_of, write_ir

__all__ = ["TargetCompiler", "target_compiler"]

_BLOB, _SCHEDULE = "program.blob", "schedule.json"
_FORMAT = 3
# Compilers whose model format is below this one (OpenVINO 2026.0) fail without a number of tiles.
_ASKS_FOR_TILES = 8


class TargetCompiler:
    """One version of a vendor's compiler; compiles models one at a time.

    The process starts with the first model that is not in the cache, and starts again after it has
    ended. Use it in a `with` statement, which ends the process.
    """

    def __init__(
        self,
        source: CompilerSource,
        *,
        limits: Limits | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Names the compiler; reports and blobs go where compiled programs are kept by default."""
        self.source = source
        self.version, self.model_format = source.identity()
        self._limits = limits or Limits()
        self.cache = KeptFiles(cache_dir)
        self._process: CompilerProcess | None = None
        self._lock = threading.Lock()
        self._is_stopped = False

    def __enter__(self) -> TargetCompiler:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the compiler's process; a later call starts another."""
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None

    def key(self, *parts: str) -> str:
        """Returns the cache key of a result of this version of the compiler."""
        return hashlib.sha256("\n".join((self.version, *parts)).encode()).hexdigest()[:40]

    def stop(self) -> None:
        """Ends the process from another thread; its compilation raises, and keeps nothing."""
        self._is_stopped = True
        process = self._process
        if process is not None:
            process.kill()

    def compile(
        self,
        model: ov.Model,
        target: str | Target,
        options: Mapping[str, str] | None = None,
        *,
        limits: Limits | None = None,
    ) -> TargetReport:
        """Compiles a model, or returns the report that was kept.

        A refusal, a crash, a hang and a lack of memory are reports with the reason.

        Args:
            model: with static shapes; stays as it is.
            target: such as "lunar-lake" or "4000".
            options: further options of the compiler, such as NPU_COMPILER_DYNAMIC_QUANTIZATION.
            limits: other than the object's own.

        Raises:
            OptionError: [unknown-target].
            CancelledError: another thread called `stop`.
            TargetError: [target-compiler] the compiler does not start; [target-cache] its files
                cannot be written.
        """
        chosen = find_target(target) if isinstance(target, str) else target
        config = dict(options or {})
        if int(self.model_format.partition(".")[0]) < _ASKS_FOR_TILES and chosen.tiles:
            config.setdefault("NPU_MAX_TILES", str(chosen.tiles))
        flags = flags_of(model, chosen.number, config)
        try:
            place = tempfile.TemporaryDirectory(
                prefix="npu-target-", dir=read_settings().temporary_dir
            )
            with place as folder, removed_at_interrupt(Path(folder)):
                ir = Path(folder) / "model.ir"
                key = self.key(str(_FORMAT), flags, write_ir(model, ir, self.model_format))
                kept = self._find(key)
                if kept is not None:
                    return kept
                with self._lock:
                    answer = self._running().compile(ir, flags, limits or self._limits)
                    if answer.is_deadlocked and not self._is_stopped:  # it is not the model
                        answer = self._running().compile(ir, flags, limits or self._limits)
                    if self._is_stopped:
                        raise CancelledError
                    report = self._report(answer, chosen, model)
                    if answer.is_limited:  # more time or memory may give another answer
                        return report
                    self._keep(key, report, f"{model.get_friendly_name()}, {chosen}")
        except OSError as failure:
            raise TargetError(
                f"target: the model's file must be written for the compiler; got "
                f"{failure.strerror}. Make room, or set NPU_COMPILE_TMPDIR.",
                code="target-cache",
            ) from failure
        kept = self._find(key)
        if kept is None:
            raise TargetError(
                f"target: {str(self.cache.directory)!r} must be a folder that can be written, for "
                "reports and blobs. Make room, or set NPU_COMPILE_CACHE_DIR.",
                code="target-cache",
            )
        return kept

    def _find(self, key: str) -> TargetReport | None:
        found = self.cache.find_files(key)
        if found is None:
            return None
        entry, facts = found
        blob, schedule = entry / _BLOB, entry / _SCHEDULE
        estimate = facts["estimate"]
        return TargetReport(
            **facts
            | {
                "blob": blob if blob.exists() else None,
                "schedule": schedule if schedule.exists() else None,
                "estimate": None if estimate is None else Estimate.from_dict(estimate),
            }
        )

    def _keep(self, key: str, report: TargetReport, name: str) -> None:
        def write(place: Path) -> None:
            if report.blob is not None:
                shutil.move(report.blob, place / _BLOB)
            if report.schedule is not None:
                shutil.move(report.schedule, place / _SCHEDULE)

        facts = replace(report, blob=None, schedule=None).as_dict()
        self.cache.store_files(key, write, name=name, facts=facts)

    def _running(self) -> CompilerProcess:
        if self._process is not None and not self._process.is_running:
            self._process.close()
            self._process = None
        if self._process is None:
            self._process = self.source.start()
        if self._is_stopped:
            raise CancelledError
        return self._process

    def _report(self, answer: Answer, target: Target, model: ov.Model) -> TargetReport:
        is_accepted = answer.code == 0
        reason = "" if is_accepted else read_reason(answer.log)
        if answer.ended:
            reason = f"{answer.ended}; {reason}" if reason != UNEXPLAINED else answer.ended
        return TargetReport(
            target=target.number,
            compiler=self.version,
            is_accepted=is_accepted,
            reason=reason,
            operation="" if is_accepted else _named_operation(reason, model),
            blob=answer.blob if is_accepted else None,
            blob_bytes=answer.blob.stat().st_size if is_accepted else 0,
            duration_s=round(answer.duration_s, 3),
            estimate=read_estimate(answer.log) if is_accepted else None,
            schedule=_schedule(answer.schedule, model),
        )


def target_compiler(release: str | None = None, *, limits: Limits | None = None) -> TargetCompiler:
    """Returns the compiler that is installed.

    Args:
        release: of OpenVINO, such as "2026.3.0"; the first source by default.
        limits: of each compilation.

    Raises:
        TargetError: [target-absent] none is installed; [target-wine] Wine is missing;
            [target-compiler] it does not start.
    """
    return TargetCompiler(find_source(release), limits=limits)


def _schedule(trace: Path | None, model: ov.Model) -> Path | None:
    """Reads the compiler's trace and writes the schedule in its place."""
    schedule = None if trace is None else read_schedule(trace, kept_origins(model))
    if trace is None or schedule is None:
        return None
    write_json(trace, schedule.as_dict())
    return trace


def _named_operation(reason: str, model: ov.Model) -> str:
    """Returns the first name of an operation in a reason, also of one that a pass derived."""
    names = {str(node.get_friendly_name()) for node in model.get_ordered_ops()}
    for word in re.finditer(r"""(["'`]?)([\w.:/]+)""", reason):
        found = word[2]
        if not word[1] and found.isalpha():
            continue  # a word of English, which may be the name of an operation as well
        while found and found not in names:  # a/b/c derives from a/b
            found = found.rpartition("/")[0]
        if found:
            return found
    return ""
