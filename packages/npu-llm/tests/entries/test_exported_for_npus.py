"""Exported folders with blobs for NPUs: what is compiled, and what a start on an NPU imports."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import npu_llm
from npu_compiler.errors import ExportError, OptionError, TargetError
from npu_compiler.exported import ahead
from npu_compiler.openvino_core import openvino_core
from npu_compiler.target_compiler import TargetReport
from npu_llm import NPUModelForCausalLM
from npu_llm.cli.main import main
from npu_llm.entries import build
from npu_llm.entries.export_folder import open_exported
from npu_llm.entries.exported import export
from npu_llm.errors import OptionError as LlmOptionError
from npu_llm.steps.program_form import form_of
from npu_llm.steps.static_layout import StaticSizes
from npu_runtime import info

PROMPT = torch.tensor([[5, 9, 3, 7]])


class Compiler:
    """Compiles by the CPU plugin, whose blobs the CPU and the stub of an NPU import."""

    def __init__(self, folder):
        self.folder, self.jobs, self.refuses = folder, [], ()

    def __call__(self, jobs):
        for job in jobs:
            self.jobs.append((job.program, job.target.number))
            is_accepted = job.program not in self.refuses
            blob = self.folder / f"{job.program}-{job.target.number}.blob" if is_accepted else None
            if blob is not None:
                options = {"INFERENCE_PRECISION_HINT": "f32"}
                compiled = openvino_core().compile_model(job.model, "CPU", options)
                blob.write_bytes(compiled.export_model().getvalue())
            yield (
                job,
                TargetReport(
                    target=job.target.number,
                    compiler="cpu-1",
                    is_accepted=is_accepted,
                    reason="" if is_accepted else "[pass] cannot split",
                    operation="" if is_accepted else "mul_3",
                    blob=blob,
                    blob_bytes=0,
                    duration_s=0.0,
                    estimate=None,
                ),
            )


@contextmanager
def compiled_by(folder):
    """Within it, the compiler for targets is one that needs no Wine."""
    folder.mkdir()
    found = Compiler(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "compile_jobs", found)
        patch.setattr("npu_compiler.target_compiler.sources.find_source", lambda: Source)
        yield found


@pytest.fixture
def compiler(tmp_path):
    with compiled_by(tmp_path / "made") as found:
        yield found


@pytest.fixture(scope="module")
def written(llama, tmp_path_factory):
    """A folder with blobs for two NPUs."""
    place = tmp_path_factory.mktemp("written")
    with compiled_by(place / "made"):
        return write(llama, place / "model", targets=("lunar-lake", "5010"), blob_context=100)


@pytest.fixture
def folder(written, tmp_path):
    return Path(shutil.copytree(written, tmp_path / "model", symlinks=True))


class Source:
    """The compiler's place, which is not started."""

    @staticmethod
    def version():
        return "cpu-1"


@pytest.fixture
def on_4000(monkeypatch):
    """The device counts as an NPU 4000."""
    monkeypatch.setattr(info, "npu_architecture", lambda: "4000")


def write(llama, folder, **how):
    return export(llama.folder, folder, **{"dtype": "float32", "targets": ("4000",), **how})


def test_static_programs_up_to_the_context_have_blobs(folder):
    programs = ["1x128x1", "16x128x1", "128x128x1"]
    wanted = [(program, target) for program in programs for target in ("4000", "5010")]
    entry = open_exported(folder)
    assert [(blob.program, blob.target) for blob in entry.blobs] == wanted
    assert entry.pipeline == "static"
    assert entry.static_layout.dtype == "float16"  # what an NPU computes in
    assert all((folder / blob.file).is_file() for blob in entry.blobs)
    assert sorted(path.name for path in folder.glob("tmp*")) == []


def test_npu_starts_from_its_blobs_and_computes_the_model(on_4000, llama, folder, tmp_path):
    # The CPU plugin computes what it imports in the precision that it likes best.
    model = NPUModelForCausalLM.from_pretrained(folder, cache_dir=tmp_path / "cache", verify="off")
    assert model.report.from_cache
    assert model.report.compiled_because is None
    ours, other = (one(PROMPT, logits_to_keep=1).logits for one in (model, llama.ours("float32")))
    assert (ours - other).norm() < 0.05 * other.norm()
    assert model._pipeline.programs.compiled == 0


def test_blob_is_imported_whatever_options_its_form_was_compiled_with(
    on_4000, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(build, "form_here", lambda: form_of("4000"))
    assert form_of("4000").options(1)
    model = NPUModelForCausalLM.from_pretrained(folder, cache_dir=tmp_path / "cache", verify="off")
    assert model.report.compiled_because is None
    assert model._pipeline.programs.compiled == 0


def test_npu_compiles_what_its_blobs_do_not_serve_and_says_so(on_4000, folder, tmp_path, caplog):
    for blob in open_exported(folder).blobs:
        (folder / blob.file).write_bytes(b"spoilt")
    model = npu_llm.load(folder, cache_dir=tmp_path / "cache")
    assert "1x128x1.blob is not what was written" in model.report.compiled_because
    assert "1x128x1.blob is not what was written" in caplog.text
    assert model.generate(PROMPT, max_new_tokens=2, do_sample=False).shape == (1, 6)


def test_cpu_ignores_blobs(llama, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(info, "npu_architecture", lambda: "")
    model = npu_llm.load(folder, cache_dir=tmp_path / "cache")
    assert model.report.compiled_because is None
    ours = model.generate(PROMPT, max_new_tokens=4, do_sample=False)
    other = llama.ours("float32").generate(PROMPT, max_new_tokens=4, do_sample=False)
    assert ours.tolist() == other.tolist()


def test_refusal_leaves_no_folder(compiler, llama, tmp_path):
    compiler.refuses = ("16x128x1",)
    with pytest.raises(ExportError, match=r"'mul_3'.*cannot split.*target-refused") as caught:
        write(llama, tmp_path / "place" / "model", blob_context=1)
    assert "16x128x1" in str(caught.value)
    assert [*(tmp_path / "place").iterdir()] == []
    folder = write(llama, tmp_path / "place" / "model", blob_context=1, skip_refused=True)
    refused = {blob.program: blob.refused for blob in open_exported(folder).blobs}
    assert refused == {"1x128x1": "", "16x128x1": "[pass] cannot split", "128x128x1": ""}


@pytest.mark.parametrize(
    "how, error, code",
    [
        ({"pipeline": "dynamic"}, LlmOptionError, "target-pipeline"),
        ({"blob_context": 0}, LlmOptionError, "blob-context"),
        ({"targets": ("5011",)}, OptionError, "unknown-target"),
    ],
)
def test_wrong_options_are_told_before_the_work(compiler, llama, tmp_path, how, error, code):
    with pytest.raises(error, match=code):
        export(llama.folder, tmp_path / "model", **{"targets": ("4000",), **how})


def test_without_a_compiler_nothing_is_built(llama, tmp_path, monkeypatch):
    monkeypatch.setattr("npu_compiler.target_compiler.sources.list_sources", lambda: iter(()))
    with pytest.raises(TargetError, match="target-absent"):
        write(llama, tmp_path / "model")


def test_command_tells_of_each_blob(compiler, llama, tmp_path, capsys):
    folder = tmp_path / "model"
    arguments = ["export", str(llama.folder), "-o", str(folder), "--target", "lunar-lake"]
    code = main([*arguments, "--blob-context", "9", "--json"])
    said = capsys.readouterr()
    assert code == 0
    about = json.loads(said.out)
    assert about["dtype"] == open_exported(folder).precision.name == "int8"
    assert {"1x128x1", "128x0x1"} <= {blob["program"] for blob in about["blobs"]}
    assert "1x128x1 for NPU 4000: " in said.err
    assert "compiling for NPUs" in said.err


@pytest.mark.parametrize(
    "context, capacities", [(1, {256}), (256, {256}), (257, {256, 512}), (9999, {256, 512, 700})]
)
def test_programs_cover_the_context(llama_layout, context, capacities):
    sizes = [*StaticSizes(700).programs(context, llama_layout)]
    assert {one.capacity for one in sizes} - {0} == capacities
    assert {one.tokens for one in sizes} == {1, 16, 128}
    assert {one.kept for one in sizes} == {1}


@pytest.fixture
def llama_layout(exported_llama):
    return open_exported(exported_llama("int8", "static")).static_layout
