"""The compiler's log as an estimate and as a reason."""

import pytest

from npu_compiler.target_compiler.report import UNEXPLAINED, read_estimate, read_reason


def test_log_without_a_latency_has_no_estimate():
    assert read_estimate("[INFO] 00:00:00.0 [vpux-compiler] platform = NPU4000") is None


REFUSAL = """\
[ERROR] 00:00:00.1 [vpux-compiler] failed to legalize operation 'IE.Convolution'
[NPU_VCL] Compiler returned msg:
Compilation failed
\0
"""
CRASH = """\
wine: Unhandled division by zero at address 0000000002B3B288
Unhandled exception: divide by zero in 64-bit code (0x00000002b3b288).
"""


@pytest.mark.parametrize(
    "log, reason",
    [
        ("", UNEXPLAINED),
        (
            REFUSAL,
            "Compilation failed [vpux-compiler] failed to legalize operation 'IE.Convolution'",
        ),
        (CRASH, "Unhandled exception: divide by zero in 64-bit code"),
    ],
)
def test_reason_is_the_compilers_words_on_one_line(log, reason):
    assert read_reason(log) == reason
