"""The table of converters: registration, duplicates, near matches."""

from __future__ import annotations

import pytest
import torch

from npu_compiler import register_fx_node_converter
from npu_compiler.errors import RegistryError
from npu_compiler.lowering import find_converter, near_matches, registered_ops, registry


def test_duplicate_registration_names_both_places():
    key = torch.ops.aten.add.Tensor
    first = find_converter(key)
    with pytest.raises(RegistryError) as error:

        @register_fx_node_converter(key)
        def again(ctx, **arguments): ...

    assert error.value.code == "duplicate-converter"
    assert first.place in str(error.value)
    assert "test_registry.py" in str(error.value)
    assert find_converter(key) is first


def test_packet_is_no_key():
    with pytest.raises(RegistryError, match="must be overloads") as error:
        register_fx_node_converter(torch.ops.aten.add)(lambda ctx: None)
    assert error.value.code == "bad-converter"


def test_a_second_key_that_is_taken_registers_none():
    free = torch.ops.aten.special_airy_ai.default
    assert find_converter(free) is None
    with pytest.raises(RegistryError):
        register_fx_node_converter(free, torch.ops.aten.add.Tensor)(lambda ctx, **_: None)
    assert find_converter(free) is None


def test_what_is_no_function_is_refused():
    with pytest.raises(RegistryError, match="must decorate a function, got 7") as error:
        register_fx_node_converter(torch.ops.aten.special_airy_ai.default)(7)
    assert error.value.code == "bad-converter"


def test_near_matches_are_spelt_alike():
    assert "aten.native_layer_norm.default" in near_matches(
        torch.ops.aten.native_layer_norm_backward.default
    )


def test_listing_is_sorted_and_has_no_doubles():
    names = registered_ops()
    assert list(names) == sorted(set(names))
    assert "aten.mm.default" in names


def test_every_row_says_where_it_is():
    row = find_converter(torch.ops.aten.mm.default)
    assert "matmul.py:" in row.place
    assert row.compute
    assert not find_converter(torch.ops.aten.view.default).compute


def test_a_name_stands_for_an_op_that_its_library_defines_later():
    name = "npu_compiler_test_later.double.default"

    @register_fx_node_converter(name)
    def convert(ctx, **_):
        return None

    library = torch.library.Library("npu_compiler_test_later", "DEF")
    library.define("double(Tensor x) -> Tensor")
    try:
        found = find_converter(torch.ops.npu_compiler_test_later.double.default)
        assert found is not None
        assert found.function is convert
        assert name in registered_ops()
    finally:
        library._destroy()
        registry._TABLE.pop(name)


def test_a_name_without_its_overload_is_no_key():
    with pytest.raises(RegistryError, match="must be overloads") as error:
        register_fx_node_converter("aten.add")(lambda ctx: None)
    assert error.value.code == "bad-converter"
