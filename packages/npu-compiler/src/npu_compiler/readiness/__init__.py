"""npu_compiler.check: whether a model is what an NPU accepts, found out without an NPU."""

from npu_compiler.npu_rules.finding import Finding
from npu_compiler.readiness.checks import check, check_file, check_folder, check_model
from npu_compiler.readiness.report import Readiness, readiness_page

__all__ = [
    "Finding",
    "Readiness",
    "check",
    "check_file",
    "check_folder",
    "check_model",
    "readiness_page",
]
