"""Index checks stored with a program: attached to a loaded program, or run on arrays.

Does not import torch when imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from npu_compiler.errors import IndexRangeError

if TYPE_CHECKING:
    import npu_runtime

__all__ = ["NARROW", "check_arrays", "check_indices", "read_records"]

# Error text for an integer that exceeds the program's bits.
NARROW = "is computed in"

# Node -> its op and its Python line.
_Lines = Mapping[str, tuple[str, str | None]]

_PORTS = ("port", "is_output", "size", "size_port", "size_dim", "is_size_output", "wraps")


def read_records(raw: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Reads the checks of a file; KeyError, TypeError or ValueError for other content."""
    records = []
    for one in raw:
        record = {name: one[name] for name in ("node", "op", "line", "source", *_PORTS)}
        numbers = [record["port"], record["size_port"]]
        numbers += [record[name] for name in ("size", "size_dim") if record[name] is not None]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"a check of indices with {numbers}")
        records.append(record)
    return tuple(records)


def check_indices(
    program: npu_runtime.Program, records: Iterable[Mapping[str, Any]], lines: _Lines | None = None
) -> npu_runtime.Program:
    """Attaches index checks to a loaded program before its first run; returns the program.

    Records are IndexRecords as mappings. `lines` maps nodes of the current graph to op and Python
    line; a cached program may stem from another graph with the same text.
    """
    from npu_runtime import IndexCheck  # late: exported models run without torch

    checks = [
        IndexCheck(what=_whose(record, lines or {}), **{name: record[name] for name in _PORTS})
        for record in records
    ]
    if checks:
        program.check_indices(checks)
    return program


def check_arrays(
    name: str,
    records: Iterable[Mapping[str, Any]],
    inputs: Sequence[np.ndarray[Any, Any]],
    outputs: Sequence[np.ndarray[Any, Any]] | None,
) -> None:
    """Checks the indices of one run, as npu_runtime does with torch; raises [index-range].

    Without outputs, before the run, it checks indices in inputs; with outputs, the computed ones.
    """
    for record in records:
        if bool(record["is_output"] or record["is_size_output"]) != (outputs is not None):
            continue
        indices = (outputs or ()) if record["is_output"] else inputs
        values = indices[record["port"]]
        if values.size == 0:
            continue
        end = _size(record, inputs, outputs or ())
        low = -end if record["wraps"] else 0
        least, most = int(values.min()), int(values.max())
        if least < low or most >= end:
            raise IndexRangeError(
                f"program {name}: {_whose(record, {})} must be from {low} to {end - 1}, got "
                f"{least if least < low else most}. Check the source of these integers.",
                code="index-range",
            )


def _size(record: Mapping[str, Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    if record["size"] is not None:
        return int(record["size"])
    if record["size_dim"] is not None:
        return int(inputs[record["size_port"]].shape[record["size_dim"]])
    held = outputs if record["is_size_output"] else inputs
    return int(held[record["size_port"]].max())


def _whose(record: Mapping[str, Any], lines: _Lines) -> str:
    op, line = lines.get(record["node"], (record["op"], record["line"]))
    where = f"{op} ({line})" if line else op
    if record["source"] is None:
        return f"an index of {where}"
    if record["size"] is not None and record["size"] < 1 << 31:
        how = f"{NARROW} narrow integers unless it is among fallback_ops"
        return f"{record['source']}, from which {where} {how},"
    return f"{record['source']}, from which an index of {where} {NARROW} 32 bits,"
