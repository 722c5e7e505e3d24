"""What a finding on a whole program says."""

from __future__ import annotations

import pytest

from npu_compiler.npu_rules import whole_programs as module


@pytest.mark.parametrize("names, text", [(["a"], "a"), (list("abcde"), "a, b, c and 2 more")])
def test_long_lists_are_cut(names, text):
    assert module._some(names) == text
