"""SDPA and SimpleSDPA against numpy in float64."""

import numpy as np
import pytest

import npu_ops
from npu_ops.errors import OperatorInputError

QUERY, KEY, VALUE = (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)


def draw(*shape, seed=0):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def arrays(dtype=np.float32):
    return [draw(*shape, seed=i).astype(dtype) for i, shape in enumerate((QUERY, KEY, VALUE))]


def reference(query, key, value, mask=0.0, *, is_causal=False):
    query, key, value = (array.astype(np.float64) for array in (query, key, value))
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    if isinstance(mask, np.ndarray) and mask.dtype == bool:
        mask = np.where(mask, 0.0, -np.inf)
    scores = scores + mask
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [(np.float16, 2e-3), (np.float32, 2e-5)])
def test_without_a_mask(dtype, tolerance, is_causal):
    given = arrays(dtype)
    result = npu_ops.SimpleSDPA(QUERY, KEY, VALUE, is_causal).run(*given)
    assert result.dtype == dtype
    expected = reference(*given, is_causal=is_causal)
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (2, 1, 5, 7), (2, 3, 5, 7)], ids=str)
def test_an_added_mask(shape, is_causal):
    given, mask = arrays(), draw(*shape, seed=9)
    result = npu_ops.SDPA(QUERY, KEY, VALUE, shape, is_causal).run(*given, mask)
    expected = reference(*given, mask, is_causal=is_causal)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_mask_of_truth_values(is_causal):
    given, mask = arrays(), draw(5, 7, seed=3) > 0
    mask[:, 0] = True
    attention = npu_ops.SDPA(QUERY, KEY, VALUE, mask.shape, is_causal)
    expected = reference(*given, mask, is_causal=is_causal)
    np.testing.assert_allclose(attention.run(*given, mask), expected, rtol=2e-5, atol=2e-5)


def test_one_head_without_an_axis_of_its_own():
    given = [array[0] for array in arrays()]
    shapes = [array.shape for array in given]
    result = npu_ops.SimpleSDPA(*shapes).run(*given)
    np.testing.assert_allclose(result, reference(*given), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "shapes, said",
    [
        (((5, 8), KEY, VALUE), "`query_shapes` must be a shape of 3 or 4 sizes"),
        ((QUERY, (2, 3, 7, 9), VALUE), r"query must be \(..., queries, d\)"),
        ((QUERY, KEY, (2, 3, 6, 6)), r"query must be \(..., queries, d\)"),
        ((QUERY, (1, 3, 7, 8), VALUE), r"query must be \(..., queries, d\)"),
    ],
)
def test_shapes_that_do_not_fit_are_an_exception(shapes, said):
    with pytest.raises(OperatorInputError, match=said) as error:
        npu_ops.SimpleSDPA(*shapes)
    assert error.value.code == "operator-input"


@pytest.mark.parametrize("shape", [(5, 6), (3, 3, 5, 7), (7,), None])
def test_a_mask_that_does_not_broadcast_is_an_exception(shape):
    with pytest.raises(OperatorInputError, match="`mask_shapes` must"):
        npu_ops.SDPA(QUERY, KEY, VALUE, shape)


def test_a_mask_of_another_dtype_is_an_exception():
    attention = npu_ops.SDPA(QUERY, KEY, VALUE, (5, 7))
    with pytest.raises(OperatorInputError, match=r"`mask` must be of shape .* float32 or bool"):
        attention.run(*arrays(), np.zeros((5, 7), np.int64))
