"""Wrong programs are rejected; the verdict on right ones is reused."""

import functools
import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest
import torch

import npu_runtime
from npu_compiler.errors import WrongResultError, WrongResultWarning
from npu_llm import NPUModelForCausalLM, export
from npu_llm import load as load_exported
from npu_llm.choices import parse_verify
from npu_llm.errors import OptionError
from npu_llm.models import lower_step, step_check
from npu_llm.models.entry import REFERENCE
from npu_llm.models.load import LoadedModel, load_entry
from npu_llm.verification.kept_verdict import VERDICT

IDS = torch.tensor([[5, 9, 3, 7, 1, 4, 11, 6, 2, 8]])
# Precisions with a pipeline each, where it has them: each precision, and each pipeline twice.
PAIRS = [("bfloat16", True), ("float16", False), ("int8", True), ("int4", False)]
# Wide enough for its weights to be compressed.
WIDE = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 400}


@pytest.fixture(scope="session")
def wide(shared, saved_tiny):
    """wide(dtype, pipeline): a Llama that is built once for each."""
    folder = saved_tiny("llama", **WIDE)

    @functools.cache
    def get(dtype, pipeline):
        return shared.load(NPUModelForCausalLM, folder, dtype=dtype, pipeline=pipeline)

    return get


@pytest.fixture
def changed(tmp_path, core):
    """changed(model, change): its entry with an altered program that nothing was compiled of."""

    def make(model, change):
        folder = tmp_path / "changed"
        shutil.copytree(model._entry.folder, folder, symlinks=True)
        for name in ("blob", "variants"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for file in [*folder.rglob(VERDICT), folder / "blob.json"]:
            file.unlink(missing_ok=True)
        program = core.read_model(model._entry.model_path)
        change(program)
        program.validate_nodes_and_infer_types()
        ov.serialize(program, folder / "step.xml", folder / "step.bin")
        return replace(model._entry, folder=folder)

    return make


@pytest.fixture
def checks(monkeypatch):
    """The names of the checks that run, in order."""
    ran = []

    def watch(name):
        original = getattr(step_check, name)

        def watched(*args, **kwargs):
            ran.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(step_check, name, watched)

    watch("check_dynamic")
    watch("check_static")
    return ran


def nothing(program):
    del program


def flip_a_product(program):
    """Negates the result of the last product before the head."""
    products = [node for node in program.get_ordered_ops() if node.get_type_name() == "MatMul"]
    _negate(products[-2])


def flip_attention(program):
    """Negates the result of the first layer's attention."""
    kinds = ("ScaledDotProductAttention", "Softmax")
    nodes = program.get_ordered_ops()
    _negate(next(node for node in nodes if node.get_type_name() in kinds))


def flip_a_rotation(program):
    """Has positions turn keys and queries the other way."""
    _negate(next(node for node in program.get_ordered_ops() if node.get_type_name() == "Sin"))


def shift_the_vocabulary(program):
    """Has each token have the logit of its neighbour."""
    result = program.get_results()[0]
    one, axis = ops.constant([1], ov.Type.i64), ops.constant([2], ov.Type.i64)
    moved = ops.roll(result.input_value(0), one, axis)
    moved.output(0).get_tensor().set_names({"logits"})
    result.input(0).replace_source_output(moved.output(0))


def _negate(node):
    users = list(node.output(0).get_target_inputs())
    minus = ops.multiply(node, ops.constant(np.array(-1, np.float32)))
    for user in users:
        user.replace_source_output(minus.output(0))


FAULTS = (flip_a_product, flip_attention, flip_a_rotation, shift_the_vocabulary)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_program_is_not_served(wide, changed, each_openvino_pipeline, fault):
    entry = changed(wide("float32", each_openvino_pipeline), fault)
    with pytest.raises(WrongResultError) as caught:
        load_entry(entry, entry.compiled)
    assert caught.value.code == "wrong-result"
    assert "token" in str(caught.value)
    assert "off by" in str(caught.value)
    assert "SNIPPETS_MODE=DISABLE" in str(caught.value)


@pytest.mark.parametrize("dtype, is_dynamic", PAIRS)
def test_a_wrong_layer_is_seen_in_each_precision(
    wide, changed, openvino_pipeline, dtype, is_dynamic
):
    entry = changed(wide(dtype, openvino_pipeline if is_dynamic else "static"), flip_a_product)
    with pytest.raises(WrongResultError, match=r"\[wrong-result\]"):
        load_entry(entry, entry.compiled)


def test_a_wrong_program_is_seen_beside_a_cache_in_8_bits(wide, changed):
    entry = replace(changed(wide("bfloat16", "dynamic"), flip_a_product), kv_cache="u8")
    with pytest.raises(WrongResultError, match=r"\[wrong-result\]"):
        load_entry(entry, entry.compiled)


@pytest.mark.parametrize("dtype, is_dynamic", [("float32", True), ("float32", False), *PAIRS])
def test_a_right_program_is_served(wide, changed, openvino_pipeline, dtype, is_dynamic):
    entry = changed(wide(dtype, openvino_pipeline if is_dynamic else "static"), nothing)
    pipeline = load_entry(entry, entry.compiled).programs
    assert pipeline.program.inputs
    assert pipeline.verdict.status == "right"


def test_every_architecture_is_right(tiny, sampled_architecture):
    """No false alarm: also of experts, windows, bent scores, positions that are counted."""
    assert tiny(sampled_architecture).ours("bfloat16").verification.status == "right"


def test_a_wrong_mask_is_seen(tmp_path, save_tiny, monkeypatch, openvino_pipeline):
    def see_everything(graph_module):
        for node in graph_module.graph.nodes:
            if node.target is torch.ops.aten.scaled_dot_product_attention.default:
                mask, zeros = node.args[3], torch.ops.aten.zeros_like.default
                with graph_module.graph.inserting_before(node):
                    made = graph_module.graph.call_function(zeros, (mask,), {"dtype": torch.float})
                with mask.meta["val"].fake_mode:
                    made.meta["val"] = torch.zeros_like(mask.meta["val"], dtype=torch.float)
                node.replace_input_with(mask, made)
        graph_module.recompile()

    monkeypatch.setattr(lower_step, "share_masks", see_everything)
    save_tiny("llama", tmp_path / "model")
    step = "a prompt of 4 tokens" if openvino_pipeline == "dynamic" else "1 token after"
    with pytest.raises(WrongResultError, match=step):
        NPUModelForCausalLM.from_pretrained(
            tmp_path / "model",
            dtype="float32",
            pipeline=openvino_pipeline,
            cache_dir=tmp_path / "cache",
        )


def test_a_second_start_compares_nothing(wide, changed, checks, each_openvino_pipeline):
    entry = changed(wide("float32", each_openvino_pipeline), nothing)
    for _ in range(2):
        loaded = load_entry(entry, entry.compiled).programs
        assert loaded.program.inputs
        assert loaded.verdict.status == "right"
    assert len(checks) == 1


def test_always_compares_at_each_start(wide, changed, checks, openvino_pipeline):
    entry = changed(wide("float32", openvino_pipeline), nothing)
    for _ in range(2):
        load_entry(entry, entry.compiled, verify="always")
    assert checks == [f"check_{openvino_pipeline}"] * 2


def test_off_serves_what_nobody_looked_at_and_says_so(wide, changed, checks, openvino_pipeline):
    entry = changed(wide("float32", openvino_pipeline), flip_a_product)
    loaded = load_entry(entry, entry.compiled, verify="off").programs
    assert loaded.verdict.status == "unchecked"
    assert 'verify is "off"' in str(loaded.verdict)
    assert checks == []
    with pytest.raises(WrongResultError):
        load_entry(entry, entry.compiled)


def test_an_entry_without_torch_s_results_says_that_it_was_not_compared(
    wide, changed, openvino_pipeline
):
    entry = changed(wide("float32", openvino_pipeline), nothing)
    (entry.folder / REFERENCE).unlink()
    assert load_entry(entry, entry.compiled).programs.verdict.status == "unchecked"


def test_each_program_of_the_static_pipeline_is_compared(wide, changed, checks):
    model = wide("float32", "static")
    entry = changed(model, nothing)
    pipeline = load_entry(entry, entry.compiled).programs
    other = type(model)(LoadedModel(entry, pipeline, model.report))
    other(IDS)
    other(IDS, logits_to_keep=1)
    assert checks == ["check_static"] * 3
    assert other.verification.status == "right"


def test_what_is_right_without_snippets_is_served_so(wide, changed, monkeypatch):
    """The workaround is reported, kept, and not searched for again."""
    entry = changed(wide("float32", "dynamic"), nothing)
    asked = []
    original = npu_runtime.load_program
    finding = step_check.Finding("a prompt of 4 tokens", step_check.Difference(0, "is off by 1", 1))

    def load(*args, options, **kwargs):
        asked.append(options.get("SNIPPETS_MODE"))
        return original(*args, options=options, **kwargs)

    def check(*_, **__):
        return None if asked[-1] == "DISABLE" else finding

    monkeypatch.setattr(npu_runtime, "load_program", load)
    monkeypatch.setattr(step_check, "check_dynamic", check)
    with pytest.warns(WrongResultWarning, match="SNIPPETS_MODE=DISABLE"):
        first = load_entry(entry, entry.compiled).programs
    assert first.verdict.status == "mended"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = load_entry(entry, entry.compiled).programs
    assert second.verdict == first.verdict
    assert second.program.loaded_from_cache
    assert asked == [None, "DISABLE", "DISABLE"]


def test_what_is_right_when_it_runs_again_is_told_and_judged_again(
    wide, changed, monkeypatch, openvino_pipeline
):
    entry = changed(wide("float32", openvino_pipeline), nothing)
    finding = step_check.Finding("1 token after 4", step_check.Difference(0, "is off by 1", 1))
    answers = [finding, None]
    check = f"check_{openvino_pipeline}"
    monkeypatch.setattr(step_check, check, lambda *_, **__: answers.pop(0))
    with pytest.warns(WrongResultWarning, match="1 token after 4"):
        assert load_entry(entry, entry.compiled).programs.verdict.status == "unsteady"
    assert list(entry.folder.rglob(VERDICT)) == []


def test_an_exported_folder_is_compared_when_it_is_written(tmp_path, save_tiny, checks, core):
    save_tiny("llama", tmp_path / "model")
    folder = export(tmp_path / "model", tmp_path / "out", dtype="float32")
    (check,) = checks
    (verdict,) = folder.rglob(VERDICT)
    assert json.loads(verdict.read_text())["status"] == "right"
    assert load_exported(folder).verification.status == "right"
    assert checks == [check]


def test_a_copy_of_torch_s_results_is_the_original(wide, tmp_path, openvino_pipeline):
    from npu_llm.verification.reference import read_reference

    reference = read_reference(wide("float32", openvino_pipeline)._entry.reference_path)
    reference.write(tmp_path / REFERENCE)
    again = read_reference(tmp_path / REFERENCE)
    assert torch.equal(again.logits, reference.logits)
    assert torch.equal(again.rounded, reference.rounded)
    assert again.rows == reference.rows
    assert again.heads == 4
    assert read_reference(tmp_path / "absent") is None


@pytest.mark.parametrize("wrong", ["yes", "", None, True])
def test_a_way_that_there_is_not_is_refused(wrong):
    with pytest.raises(OptionError) as caught:
        parse_verify(wrong)
    assert caught.value.code == "unknown-verify"
    assert repr(wrong) in str(caught.value)
