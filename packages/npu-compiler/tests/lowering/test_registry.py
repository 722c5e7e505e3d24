"""The table of converters: registration, duplicates, near matches."""

from __future__ import annotations

import pytest
import torch

from npu_compiler.errors import RegistryError
from npu_compiler.lowering import converter, find_converter, near_matches, registered_ops


def test_duplicate_registration_names_both_places():
    key = torch.ops.aten.add.Tensor
    first = find_converter(key)
    with pytest.raises(RegistryError) as error:

        @converter(key)
        def again(ctx, **arguments): ...

    assert error.value.code == "duplicate-converter"
    assert first.place in str(error.value)
    assert "test_registry.py" in str(error.value)
    assert find_converter(key) is first


def test_packet_is_no_key():
    with pytest.raises(RegistryError, match="one overload") as error:
        converter(torch.ops.aten.add)(lambda ctx: None)
    assert error.value.code == "bad-converter"


def test_near_matches_are_spelt_alike():
    assert "aten.native_layer_norm.default" in near_matches(
        torch.ops.aten.native_layer_norm_backward.default
    )


def test_listing_is_sorted_and_has_no_doubles():
    names = registered_ops()
    assert list(names) == sorted(set(names))
    assert len(names) > 250


def test_every_row_says_where_it_is():
    row = find_converter(torch.ops.aten.mm.default)
    assert "matmul.py:" in row.place
    assert row.compute
    assert not find_converter(torch.ops.aten.view.default).compute
