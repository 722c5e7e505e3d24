"""Conventions are told of once, at the user's line."""

import warnings

import pytest

from npu_llm.compat.intel_npu_acceleration_library import conventions
from npu_llm.compat.intel_npu_acceleration_library.backend import NNFactory


def test_a_convention_is_told_of_once_at_the_line_that_met_it(monkeypatch):
    monkeypatch.setattr(conventions, "_told", set())
    tensor = NNFactory().parameter((2, 3))
    with pytest.warns(conventions.ConventionWarning, match=r"write tensor\[0:1, :\]") as heard:
        assert tensor[0, :].shape == [1, 3]
    assert heard[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tensor[-1, :].shape == [1, 3]
