"""Rules of a device's limits, as data, and cases adapted to them.

A rules file says which dtypes and layouts are given to the device instead of a case's own. A case
stays as its user wrote it: its arguments are converted on the way to the device, and its results
are held against the CPU's, converted likewise.
"""

from npu_ops.op_conformance.rules.adaptation import LayoutRule, Rules, TypeRule, load_rules

__all__ = ["LayoutRule", "Rules", "TypeRule", "load_rules"]
