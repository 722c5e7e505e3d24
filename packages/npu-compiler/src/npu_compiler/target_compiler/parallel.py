"""Compiles programs for targets, as many at a time as cores and memory allow."""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

from npu_command.host_memory import available_bytes
from npu_compiler.openvino_core import openvino_core
from npu_compiler.target_compiler.compile import TargetCompiler
from npu_compiler.target_compiler.report import TargetReport
from npu_compiler.target_compiler.sources import CompilerSource, find_source
from npu_compiler.target_compiler.targets import Target
from npu_compiler.target_compiler.vcl_process import Limits

__all__ = ["TargetJob", "compile_jobs", "worker_count"]

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
    """Yields each job's report when it is done; raises as target_compiler.

    When the caller stops, running compilers are ended. Reports so far stay in the cache.
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
    """Returns how many compilers run at a time: one for each core, as long as memory lasts."""
    largest = max((_bytes_of(job.model) for job in jobs), default=0)
    fitting = available_bytes() // (_LEAST_BYTES + _COPIES * largest)
    return max(1, min(len(jobs), len(os.sched_getaffinity(0)), fitting))


def _bytes_of(model: Path) -> int:
    files = (model, model.with_suffix(".bin"))
    return sum(file.stat().st_size for file in files if file.exists())
