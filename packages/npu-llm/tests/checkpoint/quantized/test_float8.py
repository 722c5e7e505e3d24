import pytest
import torch

from npu_llm.errors import ModelError

SHAPE = (40, 48)


@pytest.fixture
def stored():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SHAPE, generator=generator).to(torch.float8_e4m3fn)


def of_element(row, column, layout):
    return {
        "tensor": (0, 0),
        "output": (row, 0),
        "blocks": (row // 16, column // 32),
    }[layout]


@pytest.mark.parametrize(
    "layout, shape, name, config",
    [
        ("tensor", (), "a.weight_scale", None),
        ("tensor", (1,), "a.weight_scale_inv", {"quant_method": "fp8"}),
        ("tensor", (1,), "a.scale_weight", None),
        ("output", (40, 1), "a.weight_scale", {"quant_method": "fbgemm_fp8"}),
        ("output", (40,), "a.weight_scale", None),
        (
            "blocks",
            (3, 2),
            "a.weight_scale_inv",
            {"quant_method": "fp8", "weight_block_size": [16, 32]},
        ),
    ],
)
def test_scales_multiply_the_stored_values(folder, stored, layout, shape, name, config):
    scales = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5
    values, _ = folder.decoded({"a.weight": stored, name: scales}, config)
    table = scales.reshape(*(shape if len(shape) == 2 else (-1, 1)))
    for row in range(SHAPE[0]):
        for column in range(SHAPE[1]):
            scale = table[of_element(row, column, layout)]
            assert values[row, column] == stored[row, column].float() * scale


def test_scales_of_experts(folder):
    stored = torch.ones(3, 4, 8).to(torch.float8_e5m2)
    values, _ = folder.decoded(
        {"a.weight": stored, "a.weight_scale": torch.tensor([1.0, 2.0, 4.0])}, None
    )
    assert [float(one.unique()) for one in values] == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("beside", [{}, {"a.input_scale": torch.ones(1)}])
def test_values_without_scales_are_an_error(folder, stored, beside):
    with pytest.raises(
        ModelError, match=r"a.weight` must have scales for float8 weights.*\[weights-scale\]"
    ):
        folder.scheme({"a.weight": stored, **beside}, None)


def test_scales_of_another_shape_are_an_error(folder, stored):
    with pytest.raises(ModelError, match=r"its scale has the shape \(7,\).*\[quantization-parts\]"):
        folder.scheme({"a.weight": stored, "a.weight_scale": torch.ones(7)}, None)


def test_scales_of_activations_are_left_out(folder, stored):
    scheme = folder.scheme(
        {"a.weight": stored, "a.weight_scale": torch.ones(1), "a.input_scale": torch.ones(1)},
        {"quant_method": "modelopt"},
    )
    assert scheme.plain == {}
    assert scheme.integer_bits == 0
    assert str(scheme) == (
        "modelopt: 1 weights in float8 with a scale per tensor, dequantized as kernels do not "
        "support float8"
    )
