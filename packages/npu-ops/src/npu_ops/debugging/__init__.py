"""Tools over ops, as torch dispatches them: capture, compare, time, replace, cast, check, observe.

The commands are `npu-ops run`, `npu-ops replay` and `npu-ops monitor`. Comparing two finished
results is npu_ops.verify_correctness, judging all of torch's ops npu_ops.op_conformance.
"""

from npu_ops.debugging.autocompare import OpAutoCompare
from npu_ops.debugging.capture import OpCapture
from npu_ops.debugging.module_compare import LayerDifference, ModuleCompare, ModuleRun
from npu_ops.debugging.monitor import ProcessMonitor, Sample
from npu_ops.debugging.observe import OpObserve, OpTimeMeasure
from npu_ops.debugging.overflow_check import OpOverflowCheck
from npu_ops.debugging.override import OpDtypeCast, OpFallback
from npu_ops.debugging.replay import Replay, replay_directory, replay_report
from npu_ops.debugging.report import Report
from npu_ops.debugging.tool import OpTool

__all__ = [
    "LayerDifference",
    "ModuleCompare",
    "ModuleRun",
    "OpAutoCompare",
    "OpCapture",
    "OpDtypeCast",
    "OpFallback",
    "OpObserve",
    "OpOverflowCheck",
    "OpTimeMeasure",
    "OpTool",
    "ProcessMonitor",
    "Replay",
    "Report",
    "Sample",
    "replay_directory",
    "replay_report",
]
