import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from npu_llm import NPUModelForCausalLM
from npu_llm.checkpoint import streamed
from npu_llm.checkpoint.loading import load_model
from npu_llm.checkpoint.source import find_source
from npu_llm.models.entry import STEP_WEIGHTS
from npu_ops.kernel_programs.weights import PackedLinear, read_weights, unpack

from .conftest import as_words

GROUP = 32
CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}}},
}
IDS = torch.tensor([[5, 9, 3, 7, 1, 4]])


@pytest.fixture
def everything_streams(monkeypatch):
    monkeypatch.setattr(streamed, "_SMALL", 16)


@pytest.fixture
def quantized(tmp_path, save_tiny):
    """quantized(name, **config): a folder of 4-bit integers, and one of the same values as floats.

    All matrices of layers with rows divisible by groups are quantized.
    """

    def save(name, **config):
        save_tiny(name, tmp_path / "floats", **config)
        path = tmp_path / "floats" / "model.safetensors"
        floats = load_file(path)
        integers = {}
        for full, value in floats.items():
            is_matrix = ".layers." in full or ".h." in full
            base = full.removesuffix("weight")
            matrix = value.t() if name == "gpt2" and value.dim() == 2 else value
            if not is_matrix or value.dim() != 2 or matrix.shape[1] % GROUP:
                integers[full] = value.half()
                floats[full] = value.half().float()
                continue
            grouped = matrix.reshape(len(matrix), -1, GROUP)
            scale = (grouped.abs().amax(-1) / 7).half()
            whole = (grouped / scale.float()[..., None]).round().clamp(-8, 7)
            exact = (whole * scale.float()[..., None]).view(matrix.shape)
            floats[full] = (exact.t() if matrix is not value else exact).contiguous()
            integers[f"{base}weight_packed"] = as_words(whole.view(matrix.shape).long() + 8, 4)
            integers[f"{base}weight_scale"] = scale
            integers[f"{base}weight_shape"] = torch.tensor(matrix.shape)
        save_file(floats, path, {"format": "pt"})
        folder = tmp_path / "integers"
        folder.mkdir()
        about = json.loads((tmp_path / "floats" / "config.json").read_text())
        about["quantization_config"] = CONFIG
        (folder / "config.json").write_text(json.dumps(about))
        save_file(integers, folder / "model.safetensors")
        return folder, tmp_path / "floats"

    return save


# Matrices of GPT-2's layers are (inputs, outputs), and c_proj's are square; experts' matrices are
# stacked into one parameter.
@pytest.mark.parametrize(
    "name, config",
    [
        ("llama", {"intermediate_size": 64}),
        ("gpt2", {}),
        ("qwen3_moe", {"moe_intermediate_size": 32}),
    ],
)
def test_parameters_stand_for_the_decoded_values(everything_streams, quantized, name, config):
    folder, floats = quantized(name, **config)
    model, weights = load_model(find_source(folder))
    expected = transformers.AutoModelForCausalLM.from_pretrained(floats, dtype=torch.float32)
    values = dict(expected.named_parameters())
    held = 0
    for full, parameter in model.named_parameters():
        turned = name == "gpt2" and ".c_" in full
        integers = weights.integers(parameter, is_transposed=turned)
        held += integers is not None
        exact = name == "qwen3_moe" and ".experts." in full  # computed in float16
        torch.testing.assert_close(
            weights.read(parameter).float(), values[full], rtol=1e-3 if exact else 0, atol=0
        )
        assert weights.integers(parameter, is_transposed=not turned) is None
    assert held >= 8


def test_kernels_take_the_integers_as_they_are(
    everything_streams, quantized, tmp_path, monkeypatch
):
    monkeypatch.setattr("npu_llm.models.kernel_step._FEWEST_ELEMENTS", 16)
    folder, floats = quantized("llama", intermediate_size=64)
    values = load_file(floats / "model.safetensors")
    for dtype in ("int4", "int8", None):
        model = NPUModelForCausalLM.from_pretrained(folder, dtype=dtype, cache_dir=tmp_path / "c")
        assert model.pipeline == "kernels"
        packed = read_weights(model.entry.folder / STEP_WEIGHTS)
        integers = [
            unpack(one)
            for one in packed.values()
            if isinstance(one, PackedLinear) and one.kind == "int4"
        ]
        for full in ("self_attn.o_proj", "mlp.down_proj"):
            expected = values[f"model.layers.1.{full}.weight"]
            assert any(
                one.shape == expected.shape and torch.equal(one, expected) for one in integers
            )
        assert model.entry.facts.integer_bits == 4
        assert model.precision.name == (dtype or "file")
        assert model.report.weights.endswith(
            "14 weights in 4 bits in groups of 32; kept as they are"
        )


def test_logits_are_those_of_the_decoded_values(quantized, tmp_path):
    folder, floats = quantized("llama")
    models = [
        NPUModelForCausalLM.from_pretrained(one, dtype="float32", cache_dir=tmp_path / "cache")
        for one in (folder, floats)
    ]
    torch.testing.assert_close(*[model(IDS).logits for model in models], rtol=1e-4, atol=1e-4)
