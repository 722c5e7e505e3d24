"""A call that runs a few others token after token, as a graph and as OpenVINO's TensorIterator.

The NPU's compiler unrolls a TensorIterator before it does anything else, for each generation; the
CPU plugin runs it as a loop.
"""

from __future__ import annotations

from typing import Any

import openvino.opset15 as ops
import torch
from torch import fx

from npu_compiler.lowering import lower
from npu_compiler.lowering.context import Context
from npu_compiler.lowering.registry import converter

__all__ = ["TokenLoop"]


class TokenLoop:
    """The target of the call: runs a body for each token, and hands states from one to the next.

    Its arguments are the states before the first token, (1, ...) each; what differs from token to
    token, (tokens, ...) each; and what is the same for all. Its results are the states after the
    last token, then what the body tells of each, (tokens, ...).

    Attributes:
        body: takes states, rows (1, ...) of the token, and the rest; returns the next states, then
            what it tells, (1, ...) each.
        states: how many states there are.
        rows: how many arguments differ from token to token; at least one.
    """

    # Its name in the table of converters.
    __module__ = "npu_llm"
    __name__ = "token_loop.default"

    def __init__(self, body: fx.GraphModule, *, states: int, rows: int) -> None:
        self.body = body
        self.states = states
        self.rows = rows

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Computes it with torch."""
        states = values[: self.states]
        rows = values[self.states :][: self.rows]
        shared = values[self.states + self.rows :]
        told = []
        for token in range(rows[0].shape[0]):
            found = self.body(*states, *(one[token : token + 1] for one in rows), *shared)
            states = found[: self.states]
            told.append(found[self.states :])
        return (*states, *(torch.cat(parts) for parts in zip(*told, strict=True)))


@converter("npu_llm.token_loop.default")
def convert_token_loop(ctx: Context, **given: Any) -> Any:
    """Lowers the body to a model of its own, around which OpenVINO's loop stands."""
    loop = ctx.node.target
    assert isinstance(loop, TokenLoop), "a call of this name has such a target"
    values = [ctx.get(value) for value in given.values()]
    lowered = lower(loop.body, name=ctx.node.name)
    ctx.keep_alive.extend(lowered.keep_alive)
    parameters, results = lowered.model.get_parameters(), lowered.model.get_results()
    made = ops.tensor_iterator()
    made.set_function(lowered.model)
    for index, (parameter, value) in enumerate(zip(parameters, values, strict=True)):
        if index < loop.states:
            made.set_merged_input(parameter, value, results[index].output(0))
        elif index < loop.states + loop.rows:
            made.set_sliced_input(parameter, value, 0, 1, 1, -1, 0)
        else:
            made.set_invariant_input(parameter, value)
    outputs = [made.get_iter_value(one.output(0), -1) for one in results[: loop.states]]
    outputs += [
        made.get_concatenated_slices(one.output(0), 0, 1, 1, -1, 0)
        for one in results[loop.states :]
    ]
    return tuple(outputs)
