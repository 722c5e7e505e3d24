from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import npu_llm
from npu_compiler.errors import ExportError, TargetError
from npu_compiler.errors import OptionError as CompilerOptionError
from npu_compiler.exported import ahead
from npu_compiler.openvino_core import openvino_core
from npu_compiler.target_compiler import TargetReport
from npu_llm import NPUModelForCausalLM
from npu_llm.cli import main
from npu_llm.errors import ModelError, OptionError
from npu_llm.kv_cache.static_layout import StaticSizes
from npu_llm.models.entry import MANIFEST, is_exported, open_exported
from npu_llm.models.export import export
from npu_llm.models.program_form import form_of
from npu_runtime import info

PROMPT = torch.tensor([[5, 9, 3, 7]])


@pytest.fixture(scope="module")
def exported(exported_llama):
    """A Llama of two layers in int8."""
    return exported_llama("int8", "auto")


@pytest.fixture
def copy(exported, tmp_path):
    """A copy elsewhere, with the times of the copy."""
    folder = tmp_path / "copy"
    shutil.copytree(exported, folder, copy_function=shutil.copy)
    return folder


@pytest.fixture
def compiled_copy(exported_llama, each_openvino_pipeline, tmp_path):
    """A copy of a compiled folder somewhere else."""
    folder = tmp_path / "compiled copy"
    compiled = exported_llama("int8", each_openvino_pipeline)
    shutil.copytree(compiled, folder, copy_function=shutil.copy)
    return folder


def refusal(error, *arguments, **options):
    with pytest.raises(error) as caught:
        npu_llm.load(*arguments, **options)
    return caught.value


def test_folder_starts_without_compiling_and_gives_the_same_tokens(exported, llama, tmp_path):
    model = npu_llm.load(exported, cache_dir=tmp_path)
    assert model.report.from_cache
    assert model.report.compiled_because is None
    assert model.precision.name == "int8"
    assert list(tmp_path.iterdir()) == []
    ours = model.generate(PROMPT, max_new_tokens=8, do_sample=False)
    other = llama.ours("int8").generate(PROMPT, max_new_tokens=8, do_sample=False)
    assert ours.tolist() == other.tolist()


def test_folder_that_was_copied_starts_without_compiling(copy):
    assert NPUModelForCausalLM.from_pretrained(copy).report.from_cache


def test_compiled_folder_that_was_copied_starts_without_compiling(compiled_copy):
    assert NPUModelForCausalLM.from_pretrained(compiled_copy).report.from_cache


def test_start_imports_no_model_code_and_no_tracing(exported):
    code = (
        "import sys, npu_llm\n"
        f"model = npu_llm.load({str(exported)!r})\n"
        "assert model.report.from_cache\n"
        "found = [name for name in sys.modules if name.startswith('transformers.models.')\n"
        "         and name.split('.')[3:] and name.split('.')[3].startswith('modeling_')\n"
        "         and name.split('.')[2] != 'auto']\n"
        "found += [name for name in sys.modules if name in ('npu_llm.capture.step', 'openvino')]\n"
        "print(found)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_other_device_compiles_from_the_program_and_says_so(compiled_copy, tmp_path):
    copy = compiled_copy
    manifest = copy / MANIFEST
    content = json.loads(manifest.read_text())
    content["about"]["made_with"]["device"] = ["NPU", "another machine", "1.0"]
    manifest.write_text(json.dumps(content))
    before = sorted(copy.rglob("*"))
    first = npu_llm.load(copy, cache_dir=tmp_path / "cache")
    assert not first.report.from_cache
    assert "another machine" in first.report.compiled_because
    assert sorted(copy.rglob("*")) == before
    assert npu_llm.load(copy, cache_dir=tmp_path / "cache").report.from_cache


def test_compiled_form_that_is_damaged_is_made_again_elsewhere(compiled_copy, tmp_path):
    copy = compiled_copy
    (blob,) = copy.rglob("*.blob")
    blob.chmod(0o600)
    blob.write_bytes(blob.read_bytes()[:-7])
    model = npu_llm.load(copy, cache_dir=tmp_path / "cache")
    assert not model.report.from_cache
    assert "damaged" in model.report.compiled_because
    assert model.generate(PROMPT, max_new_tokens=2, do_sample=False).shape == (1, 6)


@pytest.mark.parametrize(
    "damage", ["cut weights", "no program", "manifest", "no facts", "other format"]
)
def test_damaged_folder_is_one_readable_error(copy, damage):
    manifest = copy / MANIFEST
    content = json.loads(manifest.read_text())
    is_kernels = (copy / "step.json").exists()
    if damage == "cut weights":
        os.truncate(copy / ("step.safetensors" if is_kernels else "step.bin"), 1000)
    elif damage == "no program":
        (copy / ("step.json" if is_kernels else "step.xml")).unlink()
    elif damage == "manifest":
        manifest.write_text("{")
    elif damage == "no facts":
        del content["about"]["facts"]
        manifest.write_text(json.dumps(content))
    else:
        content["format"] = 99
        manifest.write_text(json.dumps(content))
    error = refusal(ModelError, copy)
    assert error.code == "exported-damaged"
    assert str(copy) in str(error)
    assert "export the model again" in str(error)


def test_dtype_that_the_folder_does_not_have(exported):
    error = refusal(OptionError, exported, dtype="int4")
    assert error.code == "exported-dtype"
    assert "int8" in str(error)
    assert npu_llm.load(exported, dtype="int8").dtype is torch.int8


def test_folder_appears_whole_or_not_at_all(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(npu_llm.models.export, "load_entry", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(llama.folder, tmp_path / "out", dtype="int8")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_holds_something_is_left_alone(llama, tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(OptionError) as caught:
        export(llama.folder, tmp_path)
    assert caught.value.code == "output-exists"
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_max_context_lowers_the_context(exported):
    model = npu_llm.load(exported, max_context=20)
    assert model.context_length == 20
    with pytest.raises(npu_llm.ContextError):
        model(torch.ones(1, 21, dtype=torch.int64))


@pytest.mark.parametrize("wrong", [0, -1, 129])
def test_max_context_that_the_model_was_not_made_for(exported, llama, wrong):
    for path in (exported, llama.folder):
        error = refusal(OptionError, path, max_context=wrong, cache_dir=llama.cache_dir)
        assert error.code == "max-context"
        assert "128" in str(error)


def test_max_context_needs_no_entry_of_its_own(llama, openvino_pipeline):
    llama.ours("float32", openvino_pipeline)
    before = sorted(llama.cache_dir.iterdir())
    model = npu_llm.load(
        llama.folder,
        dtype="float32",
        max_context=9,
        pipeline=openvino_pipeline,
        cache_dir=llama.cache_dir,
    )
    assert model.context_length == 9
    assert model.report.entry_from_cache
    assert sorted(llama.cache_dir.iterdir()) == before


def test_what_is_exported_is_known_by_its_manifest(exported, llama):
    assert is_exported(exported)
    assert not is_exported(llama.folder)
    entry = open_exported(exported)
    assert entry.about["made_with"]["versions"]["openvino"]
    assert entry.about["facts"]["layers"] == 2


def test_group_size_that_no_kernel_has(llama, tmp_path):
    with pytest.raises(OptionError) as caught:
        export(llama.folder, tmp_path / "out", dtype="int4", group_size=48)
    assert caught.value.code == "group-size"
    assert "48" in str(caught.value)


class Compiler:
    """Compiles by the CPU plugin; the CPU and the stub of an NPU import its blobs."""

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
    assert entry.static_layout.dtype == "float16"  # the dtype in which an NPU computes
    assert all((folder / blob.file).is_file() for blob in entry.blobs)
    assert sorted(path.name for path in folder.glob("tmp*")) == []


def test_npu_starts_from_its_blobs_and_computes_the_model(on_4000, llama, folder, tmp_path):
    # The CPU plugin computes imported blobs in its preferred precision.
    model = NPUModelForCausalLM.from_pretrained(folder, cache_dir=tmp_path / "cache", verify="off")
    assert model.report.from_cache
    assert model.report.compiled_because is None
    ours, other = (one(PROMPT, logits_to_keep=1).logits for one in (model, llama.ours("float32")))
    assert (ours - other).norm() < 0.05 * other.norm()
    assert model._pipeline.programs.compiled == 0


def test_blob_is_imported_whatever_options_its_form_was_compiled_with(
    on_4000, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr("npu_llm.models.load.form_here", lambda: form_of("4000"))
    assert form_of("4000").options(1)
    model = NPUModelForCausalLM.from_pretrained(folder, cache_dir=tmp_path / "cache", verify="off")
    assert model.report.compiled_because is None
    assert model._pipeline.programs.compiled == 0


def test_npu_compiles_what_its_blobs_do_not_serve_and_says_so(on_4000, folder, tmp_path, caplog):
    for blob in open_exported(folder).blobs:
        (folder / blob.file).write_bytes(b"spoilt")
    model = npu_llm.load(folder, cache_dir=tmp_path / "cache")
    assert "1x128x1.blob does not match its checksum" in model.report.compiled_because
    assert "1x128x1.blob does not match its checksum" in caplog.text
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
        ({"pipeline": "dynamic"}, OptionError, "target-pipeline"),
        ({"blob_context": 0}, OptionError, "blob-context"),
        ({"targets": ("5011",)}, CompilerOptionError, "unknown-target"),
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
