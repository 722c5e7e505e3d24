import dataclasses
import functools
import inspect
import types
from pathlib import Path

import pytest
import torch

import npu_compiler
import npu_llm
import npu_runtime
from npu_llm import NPUModelForCausalLM, OptionError
from npu_llm.checkpoint.facts import ModelFacts
from npu_llm.compat.intel_npu_acceleration_library import compiler, dtypes
from npu_llm.models.load_options import LoadOptions, dtype_in
from npu_llm.precision import PRECISIONS


def test_they_are_the_arguments_of_from_pretrained():
    parameters = inspect.signature(NPUModelForCausalLM.from_pretrained).parameters.values()
    defaults = {item.name: item.default for item in parameters if item.kind is item.KEYWORD_ONLY}
    found = {field.name: field.default for field in dataclasses.fields(LoadOptions)}
    assert found.pop("adapted_modules") == ()  # load_adapter sets it
    assert found.pop("is_for_npus") is False  # export, check and for_device set it
    assert found == defaults


@pytest.mark.parametrize(
    "own, dtype, pipeline, expected",
    [
        ("file", None, "kernels", "file"),
        ("file", "file", "kernels", "file"),
        ("file", "file", "dynamic", "bfloat16"),
        ("file", "int4", "kernels", "int4"),
        ("float32", None, "kernels", "bfloat16"),
        ("float32", "file", "dynamic", "float32"),
    ],
)
def test_the_precision_of_a_folder_that_has_its_own(own, dtype, pipeline, expected):
    facts = types.SimpleNamespace(own_precision=own, is_gguf=False)
    facts.default_precision = functools.partial(ModelFacts.default_precision, facts)
    assert LoadOptions(dtype=dtype).precision_for(facts, pipeline).name == expected


@pytest.mark.parametrize(
    "name, value, code",
    [
        ("dtype", "int3", "unknown-dtype"),
        ("kv_cache", "u3", "unknown-kv-cache"),
        ("verify", "twice", "unknown-verify"),
        ("pipeline", "eager", "unknown-pipeline"),
        ("device", "cuda:0", "other-device"),
        ("device", "no such device", "other-device"),
    ],
)
def test_what_makes_no_sense_is_refused_when_they_are_made(name, value, code):
    with pytest.raises(OptionError, match=f"`{name}` must .*{value}") as caught:
        LoadOptions(**{name: value})
    assert caught.value.code == code


def test_what_was_not_asked_for_is_chosen():
    options = LoadOptions()
    assert options.precision.name == "bfloat16"
    assert options.kept_as is options.cache_folder is None
    assert options.hub == {}
    assert LoadOptions(revision="main").hub == {"revision": "main"}
    assert LoadOptions(cache_dir="here").cache_folder == Path("here")


def test_a_token_is_not_printed():
    assert "hf_secret" not in repr(LoadOptions(token="hf_secret"))


def test_exported_folder_must_be_what_was_asked_for():
    exported = PRECISIONS["int8"], "kernels"
    for fitting in ({}, {"dtype": "auto", "pipeline": "auto"}, {"dtype": "int8"}):
        LoadOptions(**fitting).check_exported(*exported)
    for other, code in (
        ({"dtype": "int4"}, "exported-dtype"),
        ({"pipeline": "static"}, "exported-pipeline"),
    ):
        with pytest.raises(OptionError, match=next(iter(other.values()))) as caught:
            LoadOptions(**other).check_exported(*exported)
        assert caught.value.code == code


def test_an_npu_runs_no_folder_that_was_exported_for_the_dynamic_pipeline(monkeypatch):
    device = dataclasses.replace(npu_runtime.device_info(), device="NPU")
    monkeypatch.setattr(npu_runtime, "device_info", lambda: device)
    with pytest.raises(OptionError, match="export the folder again") as caught:
        LoadOptions().check_exported(PRECISIONS["int8"], "dynamic")
    assert caught.value.code == "npu-dynamic"
    LoadOptions().check_exported(PRECISIONS["int8"], "static")
    with pytest.raises(OptionError) as caught:
        _ = LoadOptions(pipeline="dynamic").pipeline_here
    assert caught.value.code == "npu-dynamic"


@pytest.mark.parametrize("asked, bound", [(0, None), (-1, 8), (9, 8)])
def test_max_context_that_a_model_does_not_have(asked, bound):
    with pytest.raises(OptionError, match=f"got {asked}") as caught:
        LoadOptions(max_context=asked).check_context("tiny", bound)
    assert caught.value.code == "max-context"


@pytest.mark.parametrize("asked, bound", [(None, 8), (8, 8), (9, None)])
def test_max_context_that_a_model_has(asked, bound):
    LoadOptions(max_context=asked).check_context("tiny", bound)


@pytest.mark.parametrize(
    "asked, precision",
    [({}, "int8"), ({"dtype": "float16"}, "float16"), ({"pipeline": "kernels"}, "bfloat16")],
)
def test_programs_for_an_npu_are_int8_unless_asked_otherwise(asked, precision, monkeypatch):
    device = dataclasses.replace(npu_runtime.device_info(), device="NPU")
    monkeypatch.setattr(npu_runtime, "device_info", lambda: device)
    options = LoadOptions(**asked).for_device()
    assert options.precision.name == precision
    assert options.is_for_npus == (options.pipeline_here == "static")


def test_programs_for_another_device_are_as_before():
    options = LoadOptions(pipeline="static")
    if not npu_runtime.device_info().device.startswith("NPU"):
        assert options.for_device() is options


@pytest.mark.parametrize(
    "config, dtype, expected",
    [
        (None, "int8", "int8"),
        (npu_compiler.CompilerConfig(), "int8", "int8"),
        (npu_compiler.CompilerConfig(dtype="int4"), None, "int4"),
        (npu_compiler.CompilerConfig(dtype=torch.float16, use_to=True), "float16", "float16"),
        (compiler.CompilerConfig(dtype=dtypes.int4), None, "int4"),
        (compiler.CompilerConfig(), torch.float16, "float16"),
    ],
)
def test_positional_config_names_the_dtype(config, dtype, expected):
    assert dtype_in(config, dtype) == expected


@pytest.mark.parametrize(
    "config, dtype, received",
    [
        ("int8", None, "got a str"),
        (compiler.CompilerConfig(training=True), None, "got training"),
        (npu_compiler.CompilerConfig(group_size=32), None, "got group_size"),
        (
            npu_compiler.CompilerConfig(dtype="int4"),
            "int8",
            "the argument, got int4",
        ),
    ],
)
def test_config_that_says_something_else_is_refused(config, dtype, received):
    with pytest.raises(OptionError, match=received) as caught:
        npu_llm.NPUModelForCausalLM.from_pretrained("anything", config, dtype=dtype)
    assert caught.value.code == "pretrained-config"
