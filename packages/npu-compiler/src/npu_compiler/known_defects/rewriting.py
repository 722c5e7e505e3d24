"""One node of a model in the place of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino as ov

__all__ = ["put_in_place"]


def put_in_place(node: ov.Node, other: ov.Node) -> None:
    """Gives the users of a node's one result another's, with the node's names."""
    other.set_friendly_name(node.get_friendly_name())
    names = node.get_output_tensor(0).get_names()
    node.output(0).replace(other.output(0))
    other.get_output_tensor(0).set_names(names)
