"""Puts functional forms in the place of calls that write to an argument, for their converters.

On the host's cores such a call stays as it is, and its own kernel writes in place. A program
returns what is written, and the copies at the graph's end carry it into the inputs.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2

from npu_compiler.passes.base import Facts, GraphPass
from npu_compiler.passes.write_in_place import written_arguments

__all__ = ["UseFunctionalForms"]


@dataclass(frozen=True)
class UseFunctionalForms(GraphPass):
    """Replaces writing calls that have a converter, where each written tensor is one of its own.

    A call that writes to a view of a larger tensor stays as it is.
    """

    name = "use_functional_forms"
    stage = "normalize"

    def call(self, graph: fx.Graph, facts: Facts) -> int:
        return sum(
            _replace(graph, node, facts.functional_forms[cast(Any, node.args[0])])
            for node in list(graph.nodes)
            if node.op == "call_function"
            and node.target is auto_functionalized_v2
            and node.args[0] in facts.functional_forms
            and not facts.is_kept(node)
        )


def _replace(graph: fx.Graph, node: fx.Node, form: torch._ops.OpOverload) -> bool:
    op = cast(torch._ops.OpOverload, node.args[0])
    plans = written_arguments(op, node)
    if plans is None or any(view is not None for _, view in plans.values()):
        return False
    indices = [index for index, _ in plans.values()]
    if len(set(indices)) < len(indices):
        return False
    bases = cast(Any, node.kwargs["_all_bases"])
    given = {
        item.name: bases[plans[item.name][0]] if item.name in plans else node.kwargs[item.name]
        for item in op._schema.arguments
    }
    ordered = tuple(given.pop(item.name) for item in op._schema.arguments if not item.kwarg_only)
    own = len(op._schema.returns)
    # An op that returns nothing has None in the first place.
    former = [*range(own), *(max(own, 1) + index for index in indices)]
    values = tuple(node.meta["val"][place] for place in former)
    with graph.inserting_before(node):
        call = graph.call_function(form, ordered, given)
        call.meta = {**node.meta, "val": values if len(values) > 1 else values[0]}
        for user in list(node.users):
            place = former.index(cast(int, user.args[1]))
            result = call
            if len(values) > 1:
                result = graph.call_function(operator.getitem, (call, place))
                result.meta = {**user.meta, "val": values[place]}
            user.replace_all_uses_with(result)
            graph.erase_node(user)
    graph.erase_node(node)
    return True
