import errno

import numpy as np
import openvino as ov
import openvino.opset15 as ops
import pytest
import torch
import transformers

from npu_llm import NPUModelForCausalLM
from npu_llm.capture.position_remapping import remap_positions
from npu_llm.capture.step import capture_step
from npu_llm.checkpoint import streamed
from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import find_source
from npu_llm.checkpoint.streamed import StreamedWeights

IDS = torch.tensor([[5, 9, 3, 7, 1, 4]])


@pytest.fixture
def everything_streams(monkeypatch):
    monkeypatch.setattr(streamed, "_SMALL", 16)


@pytest.fixture
def checkpoint(tmp_path, save_tiny):
    """checkpoint(name, dtype): a folder with weights that bfloat16 holds, stored in dtype."""

    def save(name, dtype):
        layers = "n_layer" if name in ("gpt2", "bloom") else "num_hidden_layers"
        model = save_tiny(name, tmp_path / "original", **{layers: 1}).to(torch.bfloat16)
        model.to(dtype).save_pretrained(tmp_path / str(dtype))
        return tmp_path / str(dtype)

    return save


@pytest.mark.parametrize(
    "name, dtype", [("llama", "float32"), ("gpt2", "bfloat16"), ("llama", "int4")]
)
def test_streamed_weights_give_the_logits_of_loaded_ones(
    everything_streams, checkpoint, tmp_path, name, dtype
):
    models = [
        NPUModelForCausalLM.from_pretrained(
            checkpoint(name, stored), dtype=dtype, cache_dir=tmp_path / "cache"
        )
        for stored in (torch.bfloat16, torch.float32)
    ]
    assert torch.equal(*[model(IDS).logits for model in models])


@pytest.mark.parametrize("name", ["gpt2", "bloom", "mistral"])
def test_a_step_runs_with_the_stored_values(everything_streams, checkpoint, name):
    """Relocation runs the step, also with weights that are not loaded yet."""
    found, logits = [], []
    for stored in (torch.bfloat16, torch.float32):
        model, weights = load_model(find_source(checkpoint(name, stored)))
        captured = capture_step(model)
        windowed = name == "mistral"
        found.append(remap_positions(captured, windowed=windowed, weights=weights)[1])
        values = {
            "input_ids": IDS,
            "attention_mask": torch.ones_like(IDS),
            "position_ids": torch.arange(6)[None],
            "logits_to_keep": torch.arange(6),
        }
        past = [torch.zeros(1, heads, 0, size) for heads, size in captured.caches]
        inputs = [values[name] for name in captured.inputs]
        with torch.no_grad():
            logits.append(weights.run(captured.graph_module, *inputs, *past)[0])
    assert found[0] == found[1]
    assert torch.equal(*logits)
    assert logits[0].any()


def test_16_bit_checkpoint_in_float32_equals_transformers(everything_streams, checkpoint, tmp_path):
    folder = checkpoint("gemma3", torch.bfloat16)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = NPUModelForCausalLM.from_pretrained(
        folder, dtype="float32", cache_dir=tmp_path / "cache"
    )
    torch.testing.assert_close(model(IDS).logits, reference(IDS).logits, rtol=1e-4, atol=1e-4)


def test_parameters_stand_for_stored_ones(everything_streams, checkpoint):
    model, weights = load_model(find_source(checkpoint("llama", torch.bfloat16)))
    weight = model.model.layers[0].mlp.up_proj.weight
    assert weight.dtype is torch.float32
    assert not weight.any()
    assert weights.read(weight).dtype is torch.bfloat16
    assert torch.equal(weights.read(weight.t()), weights.read(weight).t())
    other = torch.ones(3)
    assert weights.read(other) is other
    exact = weights.read(weight).float()
    weights.fill()
    assert torch.equal(weight, exact)


def test_tied_weights_stay_one(everything_streams, checkpoint):
    model, _ = load_model(find_source(checkpoint("gpt2", torch.bfloat16)))
    assert model.lm_head.weight is model.transformer.wte.weight


def test_checkpoint_in_float32_needs_no_stand_ins(checkpoint):
    model, weights = load_model(find_source(checkpoint("llama", torch.float32)))
    assert list(weights.values()) == []
    assert model.lm_head.weight.any()


def test_file_that_the_disk_cut_short_is_an_error(tmp_path, monkeypatch):
    weight = ops.constant(np.ones((8, 8), np.float32))
    x = ops.parameter([-1, 8], ov.Type.f32)
    model = ov.Model([ops.result(ops.matmul(x, weight, False, False))], [x], "m")

    def write_half(model, path, *, half):
        ov.serialize(model, str(path))
        with path.with_suffix(".bin").open("r+b") as file:
            file.truncate(10)

    monkeypatch.setattr(streamed, "write_model", write_half)
    with pytest.raises(OSError, match="truncated") as caught:
        StreamedWeights().write(model, tmp_path / "m.xml", half=False)
    assert caught.value.errno in (errno.ENOSPC, errno.EIO)
