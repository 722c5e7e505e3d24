"""The program of one op that differs from torch: fixed, or reported and left to the host."""

from __future__ import annotations

import pytest
import torch

import npu_runtime
from npu_compiler.errors import LoweringError, WrongResultWarning
from npu_compiler.verification import op_check
from npu_compiler.verification.result import Verdict
from npu_ops.variants import OpCall, TensorSpec

CALL = OpCall("aten::relu", (TensorSpec(torch.float32, (2,)),))


@pytest.fixture
def build(monkeypatch, tmp_path):
    """Builds a wrong program on a device that refuses further options; counts the requests."""
    asked = []

    def built(options):
        asked.append(dict(options))
        if options:
            raise npu_runtime.ProgramError("Unsupported option SNIPPETS_MODE", "program-load")
        return "wrong"

    monkeypatch.setenv("NPU_COMPILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(op_check, "judge_op", lambda *_, **__: Verdict("wrong", "off by 1"))
    built.asked = asked
    return built


def test_a_device_that_refuses_the_workaround_has_its_wrong_program_told_once(build):
    with (
        pytest.warns(WrongResultWarning, match="off by 1"),
        pytest.raises(LoweringError, match="off by 1"),
    ):
        op_check.verified_op(CALL, build, dtype=torch.float32, key="relu")
    assert build.asked == [{}, {"SNIPPETS_MODE": "DISABLE"}]
    with pytest.raises(LoweringError, match="off by 1"):
        op_check.verified_op(CALL, build, dtype=torch.float32, key="relu")
    assert len(build.asked) == 2
