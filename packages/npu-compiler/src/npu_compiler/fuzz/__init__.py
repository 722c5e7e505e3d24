"""Differential fuzzing: random small graphs, compiled in every mode, must equal eager.

Graphs consist of ops with converters, and of attention as models spell it out. ``python -m
npu_compiler.fuzz`` runs many. Whole models are in npu_compiler.suite.
"""

from npu_compiler.fuzz.comparison import compare
from npu_compiler.fuzz.graph import InputSpec, RandomGraph, Ref, Step

__all__ = ["InputSpec", "RandomGraph", "Ref", "Step", "compare"]
