"""Compiles models for targets, one or many at a time; caches reports and blobs by content."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import re
import shutil
import struct
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import openvino as ov

from npu_command.host_memory import available_bytes
from npu_command.interrupt import removed_at_interrupt
from npu_command.whole_files import write_json
from npu_compiler.config import read_settings
from npu_compiler.errors import TargetError
from npu_compiler.graph.kept_origins import kept_origins
from npu_compiler.openvino_core import openvino_core
from npu_compiler.programs.kept_files import KeptFiles
from npu_compiler.target_compiler.report import (
    UNEXPLAINED,
    Estimate,
    TargetReport,
    read_estimate,
    read_reason,
    read_schedule,
)
from npu_compiler.target_compiler.sources import CompilerSource, find_source
from npu_compiler.target_compiler.targets import Target, find_target
from npu_compiler.target_compiler.vcl_process import Answer, CompilerProcess, Limits

__all__ = [
    "Content",
    "TargetCompiler",
    "TargetJob",
    "compile_jobs",
    "flags_of",
    "target_compiler",
    "worker_count",
    "write_ir",
]

_BLOB, _SCHEDULE = "program.blob", "schedule.json"
_FORMAT = 3
# Compilers with a model format below this one (OpenVINO 2026.0) fail without a number of tiles.
_ASKS_FOR_TILES = 8


class TargetCompiler:
    """One version of a vendor's compiler; compiles models one at a time.

    The process starts with the first model that is not in the cache, and restarts after it has
    ended. Use it in a `with` statement, which ends the process.
    """

    def __init__(
        self,
        source: CompilerSource,
        *,
        limits: Limits | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Takes the compiler's source; by default the cache is that of compiled programs."""
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
        """Ends the process from another thread; its compilation raises, and caches nothing."""
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
        """Compiles a model, or returns the cached report.

        A refusal, a crash, a hang and a lack of memory are reports with the reason.

        Args:
            model: with static shapes; not changed.
            target: such as "lunar-lake" or "4000".
            options: additional options of the compiler, such as NPU_COMPILER_DYNAMIC_QUANTIZATION.
            limits: instead of the object's limits.

        Raises:
            OptionError: [unknown-target].
            CancelledError: another thread called `stop`.
            TargetError: [target-compiler] if the compiler does not start; [target-cache] if its
                files cannot be written.
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
                    if answer.is_limited:  # more time or memory may change the result
                        return report
                    self._keep(key, report, f"{model.get_friendly_name()}, {chosen}")
        except OSError as failure:
            raise TargetError(
                f"target: the model's file must be written for the compiler, got "
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
    """Returns an installed compiler.

    Args:
        release: OpenVINO's release, such as "2026.3.0"; by default that of the first source.
        limits: limits of each compilation.

    Raises:
        TargetError: [target-absent] if none is installed; [target-wine] if Wine is missing;
            [target-compiler] if it does not start.
    """
    return TargetCompiler(find_source(release), limits=limits)


def _schedule(trace: Path | None, model: ov.Model) -> Path | None:
    """Replaces the compiler's trace by a schedule."""
    schedule = None if trace is None else read_schedule(trace, kept_origins(model))
    if trace is None or schedule is None:
        return None
    write_json(trace, schedule.as_dict())
    return trace


def _named_operation(reason: str, model: ov.Model) -> str:
    """Returns the first operation name in a reason, also of an operation derived by a pass."""
    names = {str(node.get_friendly_name()) for node in model.get_ordered_ops()}
    for word in re.finditer(r"""(["'`]?)([\w.:/]+)""", reason):
        found = word[2]
        if not word[1] and found.isalpha():
            continue  # an English word, which may also be the name of an operation
        while found and found not in names:  # a/b/c derives from a/b
            found = found.rpartition("/")[0]
        if found:
            return found
    return ""


# Memory of one compilation: Wine and the compiler, and some copies of the weights.
_LEAST_BYTES = 1 << 30
_COPIES = 6


@dataclass(frozen=True)
class TargetJob:
    """A program's .xml file (weights next to it), the target to compile it for, and options."""

    program: str
    model: Path
    target: Target
    options: Mapping[str, str] = field(default_factory=dict)


def compile_jobs(
    jobs: Sequence[TargetJob], *, source: CompilerSource | None = None
) -> Iterator[tuple[TargetJob, TargetReport]]:
    """Yields each job's report when it is done; raises like target_compiler.

    If the caller stops early, running compilers are ended. Finished reports stay in the cache.
    """
    source = source or find_source()
    workers = worker_count(jobs)
    limits = replace(Limits(), memory_bytes=Limits().memory_bytes // workers)
    idle: queue.SimpleQueue[TargetCompiler] = queue.SimpleQueue()

    def run(job: TargetJob) -> TargetReport:
        compiler = idle.get()
        try:
            model = openvino_core().read_model(job.model)
            return compiler.compile(model, job.target, job.options)
        finally:
            idle.put(compiler)

    with contextlib.ExitStack() as owned:
        compilers = [
            owned.enter_context(TargetCompiler(source, limits=limits)) for _ in range(workers)
        ]
        for compiler in compilers:
            idle.put(compiler)
        pool = owned.enter_context(ThreadPoolExecutor(workers, thread_name_prefix="npu-target"))
        futures = {pool.submit(run, job): job for job in jobs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()
            for compiler in compilers:
                compiler.stop()


def worker_count(jobs: Sequence[TargetJob]) -> int:
    """Returns the number of parallel compilers: one per core, limited by memory."""
    largest = max((_bytes_of(job.model) for job in jobs), default=0)
    fitting = available_bytes() // (_LEAST_BYTES + _COPIES * largest)
    return max(1, min(len(jobs), len(os.sched_getaffinity(0)), fitting))


def _bytes_of(model: Path) -> int:
    files = (model, model.with_suffix(".bin"))
    return sum(file.stat().st_size for file in files if file.exists())


Content = str  # a digest of an IR

_PARTS = 2  # the graph and the weights
_LAYOUTS = {0: "C", 1: "C", 2: "NC", 3: "CHW", 4: "NCHW", 5: "NCDHW"}
_TYPES = {"F32": "FP32", "F16": "FP16", "F64": "FP64", "BOOLEAN": "BOOL"}
_CHUNK = 1 << 22


def write_ir(model: ov.Model, path: Path, model_format: str) -> Content:
    """Writes a model in a compiler's format (such as "8.4"); returns a digest of the file.

    The file's folder temporarily needs twice the model's size.
    """
    model = model.clone()
    model.set_rt_info(True, "is_new_api")
    model.set_rt_info(True, "use_indices_for_io_metadata")
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, path.open("wb") as file:

        def put(part: bytes) -> None:
            digest.update(part)
            file.write(part)

        graph, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
        ov.serialize(model, str(graph), str(weights))
        put(struct.pack("<HHI", *map(int, model_format.split(".")), _PARTS))
        for source in (graph, weights):
            put(struct.pack("<Q", source.stat().st_size))
            with source.open("rb") as content:
                while part := content.read(_CHUNK):
                    put(part)
    return digest.hexdigest()


def flags_of(model: ov.Model, platform: str, options: Mapping[str, str]) -> str:
    """Returns the compiler's flags: types and layouts of the ports, and options."""
    config = {
        "NPU_PLATFORM": platform,
        "PERFORMANCE_HINT": "LATENCY",
        "LOG_LEVEL": "LOG_INFO",
        "NPU_COMPILATION_MODE_PARAMS": "enable-schedule-trace=true",
        **options,
    }
    ports = {"inputs": model.inputs, "outputs": model.outputs}
    described = [
        f'--{side}_{kind}="{" ".join(f"{i}:{show(port)}" for i, port in enumerate(found))}"'
        for side, found in ports.items()
        for kind, show in (("precisions", _type), ("layouts", _layout))
    ]
    return " ".join(
        [*described, "--config", *(f'{name}="{value}"' for name, value in config.items())]
    )


def _type(port: Any) -> str:
    name = str(port.get_element_type().get_type_name()).upper()
    return _TYPES.get(name, name)


def _layout(port: Any) -> str:
    return _LAYOUTS.get(len(port.get_partial_shape()), "NCDHW")
