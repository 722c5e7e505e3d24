"""Graphs built by hand: tensors without values that record what is done with them."""

from npu_compiler.graph_builder.builder import GraphBuilder
from npu_compiler.graph_builder.recording import GraphTensor

__all__ = ["GraphBuilder", "GraphTensor"]
