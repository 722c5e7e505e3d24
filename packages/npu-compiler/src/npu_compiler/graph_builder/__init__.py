"""Graphs built by hand from tensors without values, which record calls."""

from npu_compiler.graph_builder.builder import GraphBuilder
from npu_compiler.graph_builder.recording import GraphTensor

__all__ = ["GraphBuilder", "GraphTensor"]
