"""The import name of intel-npu-acceleration-library, available once a program activates it."""

import importlib
import importlib.util
import sys
from types import ModuleType

import pytest

from npu_llm.compat import activate, is_active
from npu_llm.compat.alias import _NAMES, NAME, _home_of, absent_module
from npu_llm.errors import CompatError


def test_an_ordinary_process_does_not_have_the_name():
    assert importlib.util.find_spec(NAME) is None
    assert not is_active()


def test_the_library_itself_is_not_replaced_once_it_is_imported(monkeypatch):
    library = ModuleType(NAME)
    library.__file__ = "/there/__init__.py"
    monkeypatch.setitem(sys.modules, NAME, library)
    with pytest.raises(CompatError, match=r"/there/__init__\.py") as caught:
        activate()
    assert caught.value.code == "compat-imported"
    assert not is_active()


@pytest.mark.parametrize("path", sorted(_NAMES))
def test_a_name_left_out_says_what_serves_instead(path):
    module, _, name = path.rpartition(".")
    with pytest.raises(
        CompatError, match=f"{path}` must be a supported name, .*\\. [A-Z`]"
    ) as error:
        getattr(importlib.import_module(_home_of(f"{NAME}.{module}")), name)
    assert error.value.code == "compat-absent"


def test_a_name_that_the_library_never_had_is_no_attribute():
    for module in ("backend", "compiler", "nn"):
        assert not hasattr(importlib.import_module(_home_of(f"{NAME}.{module}")), "nothing")


def test_only_modules_of_the_library_are_told_of():
    assert absent_module("intel_npu_acceleration_library.backend.nothing") is None
    error = absent_module("intel_npu_acceleration_library.backend.base")
    assert "Derive from backend.NNFactory" in str(error)
