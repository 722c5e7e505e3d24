"""Graph tensors with that library's conventions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from npu_compiler.errors import GraphError
from npu_llm.compat.intel_npu_acceleration_library import dtypes
from npu_llm.compat.intel_npu_acceleration_library.backend import NNFactory, Tensor
from npu_llm.compat.intel_npu_acceleration_library.dtypes import float16, float32, int4, int32
from npu_llm.errors import OptionError


def test_shape_is_a_list_length_counts_elements_and_a_tensor_is_true():
    tensor = NNFactory().parameter((2, 3, 4))
    assert type(tensor) is Tensor
    assert tensor.shape == [2, 3, 4]
    assert (len(tensor), tensor.dim(), tensor.size()) == (24, 3, torch.Size((2, 3, 4)))
    assert tensor
    assert tensor.dtype == float16
    assert tensor.node is tensor
    assert tensor.T.shape == [2, 4, 3]
    assert tensor.view(4, -1).shape == tensor.view([4, -1]).shape == [4, 6]
    assert tensor.transpose(0, 1).view(24).shape == [24]


def test_a_comparison_has_no_truth_before_the_graph_runs():
    tensor = NNFactory().parameter((1,))
    assert (tensor > 0).dtype is np.bool_
    with pytest.raises(GraphError) as error:
        bool(tensor > 0)
    assert error.value.code == "graph-value"


@pytest.mark.parametrize(
    "key, shape",
    [
        ((0, slice(None), slice(1, 3)), [1, 3, 2]),
        ((-1, slice(0, 3, 2), ...), [1, 2, 4]),
        ((..., 2), [2, 3, 1]),
        ((None, 1), [2, 1, 4]),
        (1, [1, 3, 4]),
    ],
)
def test_an_index_keeps_its_axis(key, shape):
    graph = NNFactory()
    assert graph.parameter((2, 3, 4))[key].shape == shape
    x = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    plain = tuple(slice(None) if k is None else k for k in (key if type(key) is tuple else (key,)))
    assert np.array_equal(graph.run(x), x[plain].reshape(shape))


@pytest.mark.parametrize("key", [slice(None, None, -1), True, [0, 1], "0"])
def test_other_indices_are_refused(key):
    with pytest.raises(OptionError, match="integers, slices") as error:
        NNFactory().parameter((2, 3))[key]
    assert error.value.code == "tensor-index"


def test_maxima_come_without_places_and_reductions_take_keep_dims():
    graph = NNFactory()
    x = graph.parameter((2, 3), np.float32)
    made = [
        torch.max(x, dim=1), x.min(0), torch.min(x), torch.max(x, x * 2), x.mean(keep_dims=True),
        x.sum((0, 1)), x.prod(1, keep_dims=True, dtype=float16), x.max(),
    ]  # fmt: skip
    shapes = [[2], [3], [], [2, 3], [1, 1], [], [2, 1], []]
    assert [tensor.shape for tensor in made] == shapes
    given = torch.tensor([[1.0, -2.0, 3.0], [-1.0, 5.0, 0.5]])
    expected = [
        given.amax(1), given.amin(0), given.min(), torch.maximum(given, given * 2),
        given.mean().reshape(1, 1), given.sum(), given.prod(1, keepdim=True).half(), given.max(),
    ]  # fmt: skip
    for found, wanted in zip(graph(given), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_methods_and_dtypes_of_that_library_are_served():
    graph = NNFactory()
    x = graph.parameter((2, 4), float32)
    names = ("ceiling", "elu", "grn", "hsigmoid", "hswish", "mish", "softplus")
    for name in names:
        getattr(x, name)()
    softmax = F.softmax(x, dim=-1, dtype=float16)
    assert softmax.dtype == x.type(float16).dtype == float16
    assert x.to(int32).dtype == int32
    given = torch.tensor([[-1.5, 0.0, 0.3, 2.0], [1.0, -3.0, 0.7, 4.0]])
    functions = (
        torch.ceil, F.elu, lambda x: F.normalize(x, dim=1), F.hardsigmoid, F.hardswish, F.mish,
        F.softplus, lambda x: x.softmax(-1).half(), torch.Tensor.half, torch.Tensor.int,
    )  # fmt: skip
    for found, function in zip(graph(given), functions, strict=True):
        torch.testing.assert_close(found, function(given), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("key", [4, -5, (0, 2), (..., 2), (..., -5, 0)])
def test_a_number_outside_its_axis_is_refused(key):
    x = NNFactory().parameter((4, 2))
    with pytest.raises(OptionError, match="must be inside its axis") as error:
        _ = x[key]
    assert error.value.code == "tensor-index"


def test_a_refused_call_names_the_line_of_the_program():
    graph = NNFactory()
    x = graph.parameter((4, 2))
    for call in (lambda: x.view(3, 3), lambda: x @ x, lambda: graph.concat(x, x, axis=5)):
        with pytest.raises(GraphError, match=r"test_tensor\.py"):
            call()


def test_a_tensor_knows_its_graph_as_long_as_that_is():
    graph = NNFactory()
    x = graph.parameter((4, 2))
    assert x.relu().factory is graph
    del graph
    assert x.factory is None


def test_one_chunk_is_the_tensor_itself_and_more_are_a_list():
    graph = NNFactory()
    x = graph.parameter((5, 2))
    assert x.chunk(1) is x
    given = torch.randn(5, 2).half()
    assert torch.equal(graph(given), given)
    parts = x.chunk(3)
    assert [type(parts), *[part.shape for part in parts]] == [list, [2, 2], [2, 2], [1, 2]]
    for found, expected in zip(graph(given), given.chunk(3), strict=True):
        assert torch.equal(found, expected)


def test_a_mask_does_not_count_under_is_causal(told):
    told.clear()
    graph = NNFactory()
    x, mask = graph.parameter((1, 2, 4, 8), np.float32), graph.parameter((4, 4), np.float32)
    with pytest.warns(dtypes.ConventionWarning, match="ignores attention's mask"):
        F.scaled_dot_product_attention(x, x, x, attn_mask=mask, is_causal=True)
    given = torch.randn(1, 2, 4, 8)
    expected = F.scaled_dot_product_attention(given, given, given, is_causal=True)
    torch.testing.assert_close(graph(given, torch.randn(4, 4)), expected, atol=1e-4, rtol=1e-4)


def test_a_parameter_of_4_bits_is_unpacked():
    graph = NNFactory()
    x = graph.parameter((3, 5), int4)
    assert (x.shape, x.dtype) == ([3, 5], int4)
    graph.convert_to_fp16(x)
    numbers = np.array([*range(-8, 8)])
    packed = ((numbers[0::2] & 15) | ((numbers[1::2] & 15) << 4)).astype(np.uint8)
    assert np.array_equal(graph.run(packed), numbers[:15].reshape(3, 5))
