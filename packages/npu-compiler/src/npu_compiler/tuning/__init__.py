"""Measured choices: which way of compiling a graph is fastest on this device, kept for later.

Choosing a kernel for a single eager op is npu_ops.variants' matter.
"""

from npu_compiler.tuning.candidates import CANDIDATES, Candidate
from npu_compiler.tuning.session import TuningReport, tune
from npu_compiler.tuning.store import TuningRecord, TuningStore

__all__ = ["CANDIDATES", "Candidate", "TuningRecord", "TuningReport", "TuningStore", "tune"]
