"""Small graphs put together at random: compiled, in every mode, they equal eager.

Graphs are made of the ops that have converters and of attention as models write it by hand.
``python -m npu_compiler.fuzz`` runs many. Whole models are in npu_compiler.suite.
"""

from npu_compiler.fuzz.comparison import compare
from npu_compiler.fuzz.graph import InputSpec, RandomGraph, Ref, Step

__all__ = ["InputSpec", "RandomGraph", "Ref", "Step", "compare"]
