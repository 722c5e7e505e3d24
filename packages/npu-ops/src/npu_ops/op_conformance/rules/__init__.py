"""Rules of a device's limits, as data, and cases adapted to them.

A rules file replaces dtypes and layouts of cases for the device. Cases remain unchanged: arguments
are converted on the way to the device, and results are compared with the CPU's, converted likewise.
"""

from npu_ops.op_conformance.rules.adaptation import LayoutRule, Rules, TypeRule, load_rules

__all__ = ["LayoutRule", "Rules", "TypeRule", "load_rules"]
