"""Several compilers at a time: reports of all jobs, how many run, and what an end leaves."""

from __future__ import annotations

import time

import openvino as ov
import pytest

from npu_compiler.programs import ProgramCache
from npu_compiler.target_compiler import parallel
from npu_compiler.target_compiler.parallel import TargetJob, compile_jobs, worker_count
from npu_compiler.target_compiler.targets import TARGETS


@pytest.fixture
def path(tmp_path, model):
    ov.save_model(model, tmp_path / "little.xml")
    return tmp_path / "little.xml"


def test_each_job_has_its_report(installed, path):
    jobs = [TargetJob("little", path, target) for target in TARGETS]
    found = {job.target.number: report for job, report in compile_jobs(jobs)}
    assert {number: report.target for number, report in found.items()} == {
        target.number: target.number for target in TARGETS
    }
    assert all(report.is_accepted for report in found.values())


def test_caller_that_stops_ends_compilers_and_keeps_no_verdict_on_what_ran(installed, path):
    hanging = [TargetJob("little", path, target, {"FAKE": "hang"}) for target in TARGETS[:2]]
    quick = TargetJob("little", path, TARGETS[2])
    reports = compile_jobs([quick, *hanging])
    assert next(reports)[0] is quick
    time.sleep(0.2)  # the others have started, or start now
    started = time.monotonic()
    reports.close()
    assert time.monotonic() - started < 10
    assert len([*ProgramCache().entries()]) == 1


@pytest.mark.parametrize(
    "available_gb, cores, workers", [(100, 2, 2), (100, 8, 3), (2.5, 8, 2), (0.1, 8, 1)]
)
def test_workers_are_as_many_as_cores_memory_and_jobs_allow(
    path, monkeypatch, available_gb, cores, workers
):
    monkeypatch.setattr(parallel, "available_bytes", lambda: int(available_gb * 1e9))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert worker_count([TargetJob("little", path, target) for target in TARGETS[:3]]) == workers
