import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

import npu_llm
from npu_llm import NPUModelForCausalLM
from npu_llm.entries.entry import MANIFEST
from npu_llm.entries.export_folder import is_exported, open_exported
from npu_llm.entries.exported import export
from npu_llm.errors import ModelError, OptionError

PROMPT = torch.tensor([[5, 9, 3, 7]])


@pytest.fixture(scope="module")
def exported(exported_llama):
    """A Llama of two layers in int8."""
    return exported_llama("int8", "auto")


@pytest.fixture
def copy(exported, tmp_path):
    """A copy somewhere else, its times those of the copying."""
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
    monkeypatch.setattr(npu_llm.entries.exported, "load_pipeline", lambda *_, **__: 1 / 0)
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
