"""Graphs of an earlier process, found again before torch traces them a second time.

dynamo hands a graph over; AOTAutograd, passes and planning make one program of it. Where that is
all that came of it, what a call needs is kept beside the program, under the identity of dynamo's
graph, and the next process goes from that graph to the program at once.
"""

from npu_compiler.torch_compile.recall.memory import GraphMemory
from npu_compiler.torch_compile.recall.store import GraphStore

__all__ = ["GraphMemory", "GraphStore"]
