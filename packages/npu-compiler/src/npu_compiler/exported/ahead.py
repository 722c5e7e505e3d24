"""Ahead-of-time compilation of an exported program for NPUs."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import openvino as ov

from npu_compiler.errors import ExportError
from npu_compiler.graph.kept_origins import kept_origins
from npu_compiler.npu_rules.operations import Finding, check_operations, check_whole_program
from npu_compiler.npu_rules.rewriting import REWRITTEN, rewrite_for_npu
from npu_compiler.npu_rules.source_rules import GENERATIONS
from npu_compiler.openvino_core import openvino_core
from npu_compiler.programs.blobs import BLOB_FOLDER, AheadBlob, fingerprint
from npu_compiler.target_compiler.compile import TargetJob, compile_jobs, worker_count
from npu_compiler.target_compiler.report import ESTIMATE_NOTE, TargetReport
from npu_compiler.target_compiler.targets import Target, find_target

__all__ = ["BlobProgress", "check_program", "find_targets", "rewrite_program", "write_blobs"]

# Number of refusals that an error lists.
_TOLD = 3


def rewrite_program(model: ov.Model) -> None:
    """Replaces operations that an NPU refuses by equal forms, in place; the model records them."""
    done = rewrite_for_npu(model, generation=GENERATIONS[-1])
    if done:
        model.set_rt_info(json.dumps([str(one) for one in done]), list(REWRITTEN))


def check_program(model: ov.Model, *, name: str) -> None:
    """Raises [export-npu] if a rule of the newest generation refuses the program."""
    findings = [*check_whole_program(model), *check_operations(model, generation=GENERATIONS[-1])]
    refused = [finding for finding in findings if finding.verdict == "refused"]
    if refused:
        raise ExportError(
            f'{name}: with target "NPU", an NPU must accept every operation of an exported '
            f"program, got {_told(refused)} Change these, export without target and rely on the "
            "NPU's driver, or use npu_compiler.compile, which runs such calls on the host.",
            code="export-npu",
        )


def _told(refused: Sequence[Finding]) -> str:
    texts = [
        f"{finding.rule}: {finding.detail}" + (f" [{finding.source}]" if finding.source else "")
        for finding in refused[:_TOLD]
    ]
    more = len(refused) - _TOLD
    return " ".join([*texts, f"And {more} more."] if more > 0 else texts)


# The plugin's raw blobs fill whole pages, so that a driver can read them in place.
_PAGE_BYTES = 4096

# Called with the finished share of the blobs, and the current step.
BlobProgress = Callable[[float, str], None]


def find_targets(names: Sequence[str]) -> tuple[Target, ...]:
    """Returns the targets with these names or numbers, each once; [unknown-target] otherwise."""
    return tuple(dict.fromkeys(find_target(name, graphs=None) for name in names))


def write_blobs(
    folder: Path,
    jobs: Sequence[TargetJob],
    *,
    name: str,
    skip_refused: bool = False,
    on_progress: BlobProgress | None = None,
) -> tuple[AheadBlob, ...]:
    """Compiles programs and writes their blobs into a folder.

    Args:
        folder: the folder under construction.
        jobs: its programs, each for one target.
        name: of the model, for messages.
        skip_refused: omit the blob of a program that a target's compiler refuses; the record has
            the reason.
        on_progress: see BlobProgress.

    Returns:
        The records, in the order of the jobs.

    Raises:
        ExportError: [target-refused] naming program, target, operation and reason.
        TargetError: see npu_compiler.target_compiler.target_compiler.
    """
    tell = on_progress or (lambda share, doing: None)
    count, workers = len(jobs), worker_count(jobs)
    tell(0.0, f"{count} blobs, {workers} at a time")
    done = {}
    for job, report in compile_jobs(jobs):
        if not report.is_accepted and not skip_refused:
            raise _refused(name, job, report)
        done[job.program, job.target] = _record(folder, job, report)
        verdict = "compiled" if report.is_accepted else "refused"
        tell(len(done) / count, f"{len(done)} of {count}, {job.program} {verdict} for {job.target}")
    return tuple(done[job.program, job.target] for job in jobs)


def _record(folder: Path, job: TargetJob, report: TargetReport) -> AheadBlob:
    record = AheadBlob(
        target=job.target.number,
        program=job.program,
        compiler=report.compiler,
        model=fingerprint(job.model),
        refused=report.reason,
    )
    if report.blob is None:
        return record
    place = folder / BLOB_FOLDER / job.target.number / f"{job.program}.blob"
    _copy(report.blob, place)
    estimate = None
    if report.estimate is not None:
        estimate = {"note": ESTIMATE_NOTE, **dataclasses.asdict(report.estimate)}
    return dataclasses.replace(
        record,
        file=str(place.relative_to(folder)),
        blob=fingerprint(place),
        estimate=estimate,
    )


def _copy(blob: Path, place: Path) -> None:
    """Copies a blob and pads it to whole pages."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with blob.open("rb") as made, place.open("wb") as file:
            shutil.copyfileobj(made, file)
            file.write(bytes(-file.tell() % _PAGE_BYTES))
    except OSError as failure:  # the error of a full disk has no file name
        raise OSError(failure.errno, failure.strerror, str(place)) from failure


def _refused(name: str, job: TargetJob, report: TargetReport) -> ExportError:
    at = f"operation {report.operation!r}{_origin(job, report)}: " if report.operation else ""
    return ExportError(
        f"{name}: the compiler of {job.target} must accept each program of the folder; "
        f"{report.compiler} refused {job.program!r}: {at}{report.reason} Change the model there, "
        "leave out this target, or omit its blob with skip_refused=True (--skip-refused): "
        "the device then tries to compile it.",
        code="target-refused",
    )


def _origin(job: TargetJob, report: TargetReport) -> str:
    """Returns the torch module and the Python line of the refused operation."""
    origins = kept_origins(openvino_core().read_model(job.model))
    known = origins.get(report.operation.partition("/")[0], ())
    return f" ({', '.join(filter(None, known))})" if any(known) else ""
