"""Tools over ops, as torch dispatches them: capture, compare, time, replace, cast, check, observe.

The commands are `npu-ops run`, `npu-ops replay` and `npu-ops monitor`. Comparing two finished
results is npu_ops.verify_correctness, judging all of torch's ops npu_ops.conformance.
"""

from npu_ops.tools.autocompare import OpAutoCompare
from npu_ops.tools.capture import OpCapture
from npu_ops.tools.dtype_cast import OpDtypeCast
from npu_ops.tools.module_compare import LayerDifference, ModuleCompare, ModuleRun
from npu_ops.tools.monitor import ProcessMonitor, Sample
from npu_ops.tools.observe import OpObserve
from npu_ops.tools.op_fallback import OpFallback
from npu_ops.tools.overflow_check import OpOverflowCheck
from npu_ops.tools.replay import Replay, replay_directory, replay_report
from npu_ops.tools.report import Report
from npu_ops.tools.time_measure import OpTimeMeasure
from npu_ops.tools.tool import OpTool

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
