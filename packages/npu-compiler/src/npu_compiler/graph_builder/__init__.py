"""Graphs built by hand: tensors without values that record what is done with them.

Capturing a module that exists is npu_compiler.in_place's and npu_compiler.exported's work.
"""

from npu_compiler.graph_builder.builder import GraphBuilder
from npu_compiler.graph_builder.recording import GraphTensor

__all__ = ["GraphBuilder", "GraphTensor"]
