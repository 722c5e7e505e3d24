"""Views among the results of graphs with sizes that vary: strides and memory are torch's."""

from __future__ import annotations

import pytest
import torch

VIEWS = {
    "cut": lambda x: x[:, : x.shape[1] - 1],
    "row_from_the_end": lambda x: x[x.shape[0] - 1],
    "expanded": lambda x: x[:, :1].expand(x.shape[0], x.shape[1]),
    "narrowed_and_turned": lambda x: x.narrow(1, x.shape[1] - 2, 2).t(),
    "beside_a_result": lambda x: (x[:, : x.shape[1] - 1], x[:, : x.shape[1] - 1] * 2),
    "of_a_result": lambda x: (lambda y: (y, y[:, : y.shape[1] - 1], y[1:]))(x * 2),
}
INPUTS = {
    "contiguous": lambda: torch.arange(35.0).reshape(5, 7),
    "every_second": lambda: torch.arange(48.0).reshape(6, 8)[:, ::2],
    "inside": lambda: torch.arange(48.0).reshape(6, 8)[1:4, 2:5],
}


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="npu", dynamic=True, options={"buckets": [4, 8]})


@pytest.mark.parametrize("layout", INPUTS)
@pytest.mark.parametrize("view", VIEWS)
def test_views_have_the_values_and_strides_of_torchs(view, layout):
    function, x = VIEWS[view], INPUTS[layout]()
    expected, found = function(x), compiled(function)(x)
    pairs = (
        zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
    )
    for theirs, ours in pairs:
        assert torch.equal(ours, theirs)
        if theirs._base is x or theirs._base is x._base is not None:
            assert ours.stride() == theirs.stride()
            assert ours.data_ptr() == theirs.data_ptr()


def test_a_view_that_joins_dimensions_with_gaps():
    x = torch.arange(12.0).reshape(3, 4)[:, ::2]
    found = compiled(lambda x: x.view(-1))(x)
    assert torch.equal(found, x.reshape(-1))
    assert found.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_view_with_a_dimension_of_none(rows):
    fast = compiled(lambda x: (x.reshape(x.shape[0], 2, 2) * 2, x[:0].reshape(0, 2, 2) + 1))
    x = torch.ones(rows, 4)
    doubled, nothing = fast(x)
    assert torch.equal(doubled, torch.full((rows, 2, 2), 2.0))
    assert nothing.shape == (0, 2, 2)
