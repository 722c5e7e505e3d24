"""A suite of small models of many architectures with random weights, compiled and compared.

``python -m npu_compiler.suite`` runs it; it needs transformers, which npu-compiler itself does not.
Random graphs of single ops are in npu_compiler.fuzz.
"""

from npu_compiler.suite.families.architecture import Architecture, make
from npu_compiler.suite.table import ARCHITECTURES, FAMILIES, find, select

__all__ = ["ARCHITECTURES", "FAMILIES", "Architecture", "find", "make", "select"]
