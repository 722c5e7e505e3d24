"""Small graphs put together at random: compiled, in every mode, they equal eager.

Graphs are made of the ops that have converters and of attention as models write it by hand.
``python -m npu_compiler.suite.random_graphs`` runs many. Whole models are in npu_compiler.suite.
"""

from npu_compiler.suite.random_graphs.comparison import compare
from npu_compiler.suite.random_graphs.graph import RandomGraph, Ref, Step
from npu_compiler.suite.random_graphs.inputs import InputSpec

__all__ = ["InputSpec", "RandomGraph", "Ref", "Step", "compare"]
