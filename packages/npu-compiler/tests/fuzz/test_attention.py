"""Manual attention: each form equals torch's result, if one call can compute it."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.fuzz.attention import FORMS, Sizes
from npu_compiler.fuzz.drawing import GraphDraft

SIZES = [Sizes(2, 3, 4, 4, 2), Sizes(1, 4, 4, 4, 4)]


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("sizes", SIZES, ids=["apart", "equal"])
def test_a_form_ends_in_finite_numbers_that_depend_on_its_inputs(form, sizes):
    drawn = GraphDraft.of_seed(3, kind="attention")
    result = FORMS[form](drawn, sizes)
    tensor = drawn.tensors[result.value]
    assert tensor.isfinite().all()
    assert tensor.std() > 0


def test_a_packed_form_is_torchs_attention():
    for seed in range(8):
        drawn = GraphDraft.of_seed(seed, kind="attention")
        sizes = Sizes(2, 4, 4, 4, 8)
        FORMS["whole"](drawn, sizes)
        whole = next(s for s in drawn.steps if s.target.endswith("dot_product_attention"))
        q, k, v = (drawn.tensors[ref.value] for ref in whole.arguments)
        assert q.shape == k.shape == v.shape == (2, 4, 4, 8)
        assert not torch.equal(q, k)


def test_axes_that_may_vary_are_named():
    drawn = GraphDraft.of_seed(1, kind="attention")
    FORMS["bert"](drawn, Sizes(2, 3, 4, 4, 2))
    assert [spec.names for spec in drawn.specs if spec.names] == ["bn-", "b--n"]
