"""Why a graph cannot be a kernel program."""

from __future__ import annotations

from torch import fx

from npu_compiler.errors import LoweringError
from npu_compiler.graph.origins import call_place

__all__ = ["no_kernel", "refused", "unordered"]


def refused(node: fx.Node, reason: str) -> LoweringError:
    """Returns the error for a call that no kernel computes, or that mixes rows: [not-row-wise]."""
    return LoweringError(
        f"{call_place(node)}: must treat every token by itself, or be attention to "
        f"the cache; got one that {reason}. Run the model in another pipeline.",
        code="not-row-wise",
        node_name=node.name,
        reason=reason,
    )


def no_kernel(node: fx.Node, reason: str) -> LoweringError:
    """Returns the error for a call of a graph of tensors that no kernel computes: [no-kernel]."""
    place = call_place(node)
    return LoweringError(
        f"{place}: a kernel must compute it row by row; got one that {reason}. Compile it for "
        "OpenVINO.",
        code="no-kernel",
        node_name=node.name,
        reason=f"{place} {reason}",
    )


def unordered(module: str) -> LoweringError:
    """Returns the error for values that are read in an order that no weight can be given."""
    return LoweringError(
        f"{module or 'a layer'}: must give its outputs in runs of columns; got one whose outputs "
        "are read in another order by several calls. Run the model in another pipeline.",
        code="not-row-wise",
        reason="reads columns in an order that no weight can be given",
    )
