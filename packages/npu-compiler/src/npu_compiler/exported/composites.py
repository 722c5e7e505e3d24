"""The composite ops of a captured program, taken apart unless a program has them whole.

`ExportedProgram.run_decompositions` overrides each of torch's 469 composite ops under 13 dispatch
keys, and back, whatever the graph holds: 70 ms for a graph of three calls. What decomposes by
torch's own rule needs no override, so that here only those are that stay whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._export.utils import (
    _collect_all_valid_cia_ops_for_aten_namespace,
    _is_preservable_cia_op,
    _special_op_to_preserve_cia,
)
from torch.export import ExportedProgram, default_decompositions
from torch.export.exported_program import _decompose_exported_program

from npu_compiler.graph.whole_ops import decompositions
from npu_compiler.lowering import find_converter

__all__ = ["without_composites"]

_Decomposition = Callable[..., Any]


def without_composites(program: ExportedProgram) -> ExportedProgram:
    """Returns a program in which torch has taken apart what has no converter."""
    own = decompositions()
    kept = dict.fromkeys(_whole(program), _special_op_to_preserve_cia)
    kept |= {op: made for op, made in own.items() if op in _composites()}
    table = {op: made for op, made in _by_torch().items() if find_converter(op) is None} | own
    return _decompose_exported_program(  # type: ignore[no-any-return]
        program,
        cia_to_decomp=kept,
        python_decomp_table={op: made for op, made in table.items() if op not in kept},
        joint_loss_index=None,
        decompose_custom_triton_ops=False,
    )


def _whole(program: ExportedProgram) -> Iterator[Any]:
    """Yields composite ops with a converter: torch's, which others may call, and the graph's."""
    called = {node.target for node in program.graph.nodes if node.op == "call_function"}
    for op in _composites() | {op for op in called if isinstance(op, torch._ops.OpOverload)}:
        if find_converter(op) is not None and _is_preservable_cia_op(op):
            yield op


def _composites() -> set[Any]:
    return _collect_all_valid_cia_ops_for_aten_namespace()


@functools.cache
def _by_torch() -> dict[Any, _Decomposition]:
    """What torch decomposes by a rule in Python; composite ops decompose without one."""
    every = default_decompositions().items()  # type: ignore[no-untyped-call]
    return {op: made for op, made in every if op not in _composites()}
