"""The driver conformance test: success and errors of every function of ``npu_driver``.

``python -m npu_runtime.driver_conformance --driver NAME`` runs it. A vendor's module describes its
programs with the two classes exported here.
"""

from npu_runtime.driver_conformance.program_set import ProgramSet, ProgramText

__all__ = ["ProgramSet", "ProgramText"]
