"""Names of that library that are not served."""

import importlib

import pytest

from npu_llm.compat.absent import _NAMES, absent_module
from npu_llm.errors import CompatError

HOME = "npu_llm.compat.intel_npu_acceleration_library"


@pytest.mark.parametrize("path", sorted(_NAMES))
def test_a_name_left_out_says_what_serves_instead(path):
    module, _, name = path.rpartition(".")
    with pytest.raises(CompatError, match=f"{path}: must be a part .* not\\. [A-Z`]") as error:
        getattr(importlib.import_module(f"{HOME}.{module}"), name)
    assert error.value.code == "compat-absent"


def test_a_name_that_the_library_never_had_is_no_attribute():
    for module in ("backend", "compiler", "nn"):
        assert not hasattr(importlib.import_module(f"{HOME}.{module}"), "nothing")


def test_only_modules_of_the_library_are_told_of():
    assert absent_module("intel_npu_acceleration_library.backend.nothing") is None
    error = absent_module("intel_npu_acceleration_library.backend.base")
    assert "Derive from backend.NNFactory" in str(error)
