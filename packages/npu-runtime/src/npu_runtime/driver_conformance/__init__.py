"""The driver conformance test: every function of ``npu_driver``, its success and its refusals.

``python -m npu_runtime.driver_conformance --driver NAME`` runs it. A vendor's module describes its
programs with the two classes that this package hands on.
"""

from npu_runtime.driver_conformance.program_set import ProgramSet, ProgramText

__all__ = ["ProgramSet", "ProgramText"]
