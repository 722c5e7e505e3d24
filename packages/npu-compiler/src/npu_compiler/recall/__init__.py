"""Graphs of an earlier process, found again before torch traces them a second time.

dynamo hands a graph over; AOTAutograd, passes and planning make one program of it. Where that is
all that came of it, what a call needs is kept beside the program, under the identity of dynamo's
graph, and the next process goes from that graph to the program at once. The programs themselves are
npu_compiler.programs' matter, the full way is npu_compiler.tracing's.
"""

from npu_compiler.recall.memory import GraphMemory
from npu_compiler.recall.store import GraphStore

__all__ = ["GraphMemory", "GraphStore"]
