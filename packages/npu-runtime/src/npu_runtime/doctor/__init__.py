"""``npu-runtime doctor``: diagnoses why the NPU does not work, and gives the fix."""

from npu_runtime.doctor.checks import CHECKS, run_checks
from npu_runtime.doctor.machine import Machine
from npu_runtime.doctor.read_machine import read_machine
from npu_runtime.doctor.report import Check, Status, as_json, as_table, exit_code, verdict

__all__ = [
    "CHECKS",
    "Check",
    "Machine",
    "Status",
    "as_json",
    "as_table",
    "exit_code",
    "read_machine",
    "run_checks",
    "verdict",
]
