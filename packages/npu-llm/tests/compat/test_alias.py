"""The import name of intel-npu-acceleration-library: there once a program has asked for it."""

import importlib.util
import sys
from types import ModuleType

import pytest

from npu_llm.compat import activate, is_active
from npu_llm.compat.alias import NAME
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
