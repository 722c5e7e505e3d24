"""Tools over ops, as torch dispatches them: capture, compare, time, replace, cast, check, observe.

The commands are `npu-ops run`, `npu-ops replay` and `npu-ops monitor`. Comparing two finished
results is npu_ops.verify_correctness, judging all of torch's ops npu_ops.conformance.
"""

from .autocompare import OpAutoCompare
from .capture import OpCapture
from .dtype_cast import OpDtypeCast
from .module_compare import LayerDifference, ModuleCompare, ModuleRun
from .monitor import ProcessMonitor, Sample
from .observe import OpObserve
from .op_fallback import OpFallback
from .overflow_check import OpOverflowCheck
from .replay import Replay, replay_directory, replay_report
from .report import Report
from .time_measure import OpTimeMeasure
from .tool import OpTool

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
