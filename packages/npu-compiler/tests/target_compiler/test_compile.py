"""Reports of a compiler: verdicts, and which of them are cached."""

from __future__ import annotations

import json
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import openvino as ov
import openvino.opset15 as ops
import pytest

from npu_compiler.errors import OptionError, TargetError
from npu_compiler.programs import ProgramCache
from npu_compiler.target_compiler import TARGETS, TargetCompiler, target_compiler
from npu_compiler.target_compiler import compile as compiling
from npu_compiler.target_compiler.compile import (
    TargetJob,
    _named_operation,
    compile_jobs,
    worker_count,
    write_ir,
)
from npu_compiler.target_compiler.sources import CompilerSource
from npu_compiler.target_compiler.vcl_process import Limits


@pytest.fixture
def compiler(installed):
    with target_compiler() as compiler:
        yield compiler


def entries():
    return [one.name for one in ProgramCache().entries()]


def test_accepted_model_has_a_blob_an_estimate_and_a_schedule(compiler, model):
    report = compiler.compile(model, "lunar-lake")
    assert (report.is_accepted, report.reason, report.target) == (True, "", "4000")
    assert report.compiler == "fake-1"
    assert report.blob.read_bytes() == b"blob"
    assert json.loads(report.schedule.read_text()) == {"layers": [], "tasks": []}
    assert report.estimate.latency_ms == 1.5
    assert report.estimate.shares == {"DMA": 60.0, "DPU": 50.0, "SHAVE": 0.0}
    assert report.estimate.unmodeled == ("Convert", "Sin")
    assert "not a measurement" in str(report.estimate)
    assert entries() == ["little, NPU 4000 (Lunar Lake)"]


def test_refusal_is_in_the_compilers_words_and_names_the_operation(compiler, model):
    report = compiler.compile(model, "4000", {"FAKE": "refuse"})
    assert not report.is_accepted
    assert report.reason == "[pass] layer `the_sum` cannot be split"
    assert report.operation == "the_sum"
    assert (report.blob, report.estimate, report.schedule) == (None, None, None)


@pytest.mark.parametrize("fake, words", [("crash", "SIGSEGV"), ("exit", "exit code 5")])
def test_compiler_that_ends_refuses_and_the_next_request_starts_another(
    compiler, model, fake, words
):
    report = compiler.compile(model, "4000", {"FAKE": fake})
    assert not report.is_accepted
    assert words in report.reason
    assert compiler.compile(model, "4000").is_accepted


@pytest.mark.parametrize(
    "fake, limits, words",
    [
        ("hang", Limits(duration_s=0.5), "did not answer within 0 s"),
        ("memory", Limits(memory_bytes=200 << 20), "needed more than 0.2 GB of memory"),
        ("shortage", Limits(), "SIGKILL"),
    ],
)
def test_what_more_time_or_memory_may_change_is_not_kept(compiler, model, fake, limits, words):
    report = compiler.compile(model, "4000", {"FAKE": fake}, limits=limits)
    assert words in report.reason
    assert entries() == []
    assert compiler.compile(model, "4000").is_accepted


def test_report_is_kept_by_content_target_options_and_version(compiler, model, monkeypatch):
    first = compiler.compile(model, "4000")
    assert compiler.compile(model.clone(), "lunar-lake") == first
    others = [
        compiler.compile(model, "5010"),
        compiler.compile(model, "4000", {"NPU_TURBO": "YES"}),
    ]
    monkeypatch.setattr(compiler, "version", "fake-2")
    others.append(compiler.compile(model, "4000"))
    assert len({first.blob, *(one.blob for one in others)}) == 4


def test_report_is_read_without_starting_the_compiler(compiler, model, monkeypatch):
    refused = compiler.compile(model, "4000", {"FAKE": "refuse"})
    with target_compiler() as another:
        monkeypatch.setattr(CompilerSource, "start", lambda _: pytest.fail("started"))
        assert another.compile(model, "4000", {"FAKE": "refuse"}) == refused


def test_damaged_blob_is_made_again(compiler, model):
    first = compiler.compile(model, "4000")
    first.blob.write_bytes(b"blo")
    second = compiler.compile(model, "4000")
    assert second == replace(first, duration_s=second.duration_s)
    assert second.blob.read_bytes() == b"blob"


def test_two_compilers_at_once_keep_one_whole_report(installed, model):
    with (
        target_compiler() as first,
        target_compiler() as second,
        ThreadPoolExecutor() as threads,
    ):
        jobs = [threads.submit(one.compile, model, "4000") for one in (first, second)]
        assert len({job.result().blob for job in jobs}) == 1
    assert entries() == ["little, NPU 4000 (Lunar Lake)"]


def test_reports_are_bounded_with_programs(installed, model, monkeypatch):
    monkeypatch.setenv("NPU_COMPILE_CACHE_SIZE_MB", "0")
    with target_compiler() as compiler:
        compiler.compile(model, "4000")
        last = compiler.compile(model, "5010")
    assert last.blob.exists()
    assert len(entries()) == 1


def test_cache_that_cannot_be_written_is_an_error(installed, model, tmp_path):
    (tmp_path / "file").write_text("")
    compiler = TargetCompiler(target_compiler().source, cache_dir=tmp_path / "file")
    with compiler, pytest.raises(TargetError, match="folder that can be written") as error:
        compiler.compile(model, "4000")
    assert error.value.code == "target-cache"


def test_unknown_target_is_refused_before_anything_starts(compiler, model, monkeypatch):
    monkeypatch.setattr(CompilerSource, "start", lambda _: pytest.fail("started"))
    with pytest.raises(OptionError, match=r"got 'lunar-lak'.*Did you mean 'lunar-lake'"):
        compiler.compile(model, "lunar-lak")


@pytest.mark.parametrize(
    "reason, operation",
    [
        ('loc(fused<{name = "add_1/Add"}>["add_1/Add/cast"])', "add_1/Add"),
        ("Upper bounds are not specified for node 'add'", "add"),
        ("cannot add shapes", ""),
        ("Unsupported operation add_1/Add with type Add", "add_1/Add"),
    ],
)
def test_operation_is_found_in_the_compilers_words(reason, operation):
    x = ops.parameter([2], name="x")
    first, second = ops.add(x, x), ops.add(x, x)
    first.set_friendly_name("add")
    second.set_friendly_name("add_1/Add")
    model = ov.Model([first, second], [x], "names")
    assert _named_operation(reason, model) == operation


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
    monkeypatch.setattr(compiling, "available_bytes", lambda: int(available_gb * 1e9))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert worker_count([TargetJob("little", path, target) for target in TARGETS[:3]]) == workers


def test_ir_begins_with_the_compilers_format(tmp_path):
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    model = ov.Model([ops.result(ops.relu(x))], [x], "model")
    digests = {write_ir(model, tmp_path / form, form) for form in ("7.26", "8.4")}
    assert len(digests) == 2
    for form in ("7.26", "8.4"):
        major, minor, parts, size = struct.unpack_from("<HHIQ", (tmp_path / form).read_bytes())
        assert f"{major}.{minor}" == form
        assert parts == 2
        assert (tmp_path / form).read_bytes()[16:].startswith(b"<?xml")
        assert size < (tmp_path / form).stat().st_size
