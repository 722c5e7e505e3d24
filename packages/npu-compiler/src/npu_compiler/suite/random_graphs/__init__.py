"""Small graphs put together at random from the ops that have converters: compiled equals eager.

``python -m npu_compiler.suite.random_graphs`` runs many; it needs hypothesis, which npu-compiler
itself does not. Whole models are in npu_compiler.suite.
"""

from npu_compiler.suite.random_graphs.comparison import compare
from npu_compiler.suite.random_graphs.graph import InputSpec, RandomGraph, Ref, Step

__all__ = ["InputSpec", "RandomGraph", "Ref", "Step", "compare"]
