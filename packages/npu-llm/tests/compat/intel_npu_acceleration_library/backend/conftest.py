"""Silences warnings about conventions, except in tests that check them."""

import pytest

from npu_llm.compat.intel_npu_acceleration_library import dtypes


@pytest.fixture(autouse=True)
def told(monkeypatch):
    """The reported conventions: all; a test clears the set to get reports."""
    names = set(dtypes._TEXTS)
    monkeypatch.setattr(dtypes, "_told", names)
    return names
