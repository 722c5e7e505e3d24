"""Tools for dispatched ops: capture, compare, time, replace, cast, check, observe.

The commands are `npu-ops run`, `npu-ops replay` and `npu-ops monitor`. To compare two results, use
npu_ops.verify_correctness; to test all of torch's ops, npu_ops.op_conformance.
"""

from typing import TYPE_CHECKING

from npu_command.import_hooks import lazy_names

if TYPE_CHECKING:
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

_HOMES = {
    "OpAutoCompare": "autocompare",
    "OpCapture": "capture",
    "LayerDifference": "module_compare",
    "ModuleCompare": "module_compare",
    "ModuleRun": "module_compare",
    "ProcessMonitor": "monitor",
    "Sample": "monitor",
    "OpObserve": "observe",
    "OpTimeMeasure": "observe",
    "OpOverflowCheck": "overflow_check",
    "OpDtypeCast": "override",
    "OpFallback": "override",
    "Replay": "replay",
    "replay_directory": "replay",
    "replay_report": "replay",
    "Report": "report",
    "OpTool": "tool",
}

__getattr__ = lazy_names(__name__, _HOMES)
