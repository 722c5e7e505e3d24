"""Packed linear weights, in the kernels' memory layout.

Outputs are in blocks of 16, the lanes of a product. Floats: one vector of 16 outputs for each
input. int8: slabs of 64 inputs, each 16 vectors of 16 outputs x 4 inputs. int4: slabs of 64 inputs,
each 8 vectors with 4 inputs in the low nibbles and those 32 later in the high nibbles. Kinds named
after ggml's types keep a GGUF file's values exactly; csrc/kernel_programs/block_forms.h has their
layout.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch

from npu_ops import _C
from npu_ops.errors import OperatorInputError
from npu_ops.kernel_programs.packed import (
    BLOCK_KINDS,
    BLOCK_OUTPUTS,
    FIELDS,
    LAYOUT,
    VERSION,
    BlockKind,
    PackedKind,
    PackedLinear,
    mix,
    read_weights,
)

__all__ = [
    "BLOCK_KINDS",
    "BLOCK_OUTPUTS",
    "BlockKind",
    "PackedKind",
    "PackedLinear",
    "interleave",
    "mix",
    "pack",
    "pack_blocks",
    "pack_integers",
    "read_weights",
    "unpack",
    "write_weights",
]


_SLAB_INPUTS = 64
_FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_GROUPS = (32, 64, 128)


def pack(weight: torch.Tensor, kind: PackedKind) -> PackedLinear:
    """Packs a float weight.

    Args:
        weight: (outputs, inputs), of a float dtype.
        kind: "float32", "bfloat16" or "float16".

    Raises:
        OperatorInputError: [weight-shape] for another dtype or shape.
    """
    if weight.dim() != 2 or kind not in _FLOATS:
        raise OperatorInputError(
            f"pack: `weight` must be a matrix, kind one of {', '.join(_FLOATS)}, got shape "
            f"{tuple(weight.shape)}, kind {kind!r}. Use pack_integers for integers.",
            code="weight-shape",
        )
    outputs, inputs = weight.shape
    padded = _padded(weight.to(_FLOATS[kind]), BLOCK_OUTPUTS, 1)
    blocks = padded.view(-1, BLOCK_OUTPUTS, inputs).transpose(1, 2).contiguous()
    return PackedLinear(kind, outputs, inputs, blocks.view(-1).view(torch.uint8))


def pack_integers(
    values: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    *,
    bits: int,
) -> PackedLinear:
    """Packs an integer weight: (values - zeros) * scales.

    Args:
        values: (outputs, groups, inputs / groups) uint8, below 2**bits; one group for 8 bits.
        scales: (outputs, groups) floats; those of 4 bits are stored as float16.
        zeros: (outputs, groups) uint8; None if all are 2**(bits - 1).
        bits: 8 or 4.

    Raises:
        OperatorInputError: [weight-shape] for shapes or groups without kernels.
    """
    outputs, groups, size = values.shape if values.dim() == 3 else (0, 0, 0)
    fits = groups == 1 if bits == 8 else bits == 4 and size in _GROUPS
    bytes_of = [values] if zeros is None else [values, zeros]
    of_groups = [scales] if zeros is None else [scales, zeros]
    if (
        not fits
        or any(one.dtype is not torch.uint8 for one in bytes_of)
        or any(one.shape != (outputs, groups) for one in of_groups)
    ):
        raise OperatorInputError(
            "pack_integers: `values` must be (outputs, groups, size) uint8 with one group of 8 "
            f"bits or groups of 32, 64 or 128 of 4 bits, got {tuple(values.shape)} {values.dtype}, "
            f"scales {tuple(scales.shape)}, {bits} bits. Quantize it in such groups.",
            code="weight-shape",
        )
    inputs = groups * size
    levels = _padded(values.reshape(outputs, inputs), BLOCK_OUTPUTS, _SLAB_INPUTS)
    blocks, slabs = levels.shape[0] // BLOCK_OUTPUTS, levels.shape[1] // _SLAB_INPUTS
    if bits == 8:
        quads = levels.view(blocks, BLOCK_OUTPUTS, slabs, 16, 4).permute(0, 2, 3, 1, 4)
        return PackedLinear(
            "int8",
            outputs,
            inputs,
            quads.contiguous().view(-1),
            scales[:, 0].float().contiguous(),
            None if zeros is None else zeros[:, 0].contiguous(),
        )
    halves = levels.view(blocks, BLOCK_OUTPUTS, slabs, 2, 8, 4).permute(3, 0, 2, 4, 1, 5)
    data = (halves[0] | (halves[1] << 4)).contiguous().view(-1)
    return PackedLinear(
        "int4",
        outputs,
        inputs,
        data,
        _by_block(scales.to(torch.float16)),
        None if zeros is None else _by_block(zeros),
        group=size,
    )


def pack_blocks(
    kind: str,
    blocks: torch.Tensor,
    *,
    inputs: int,
    order: torch.Tensor | None = None,
) -> PackedLinear:
    """Packs a matrix of a GGUF file exactly, without rounding.

    Args:
        kind: one of BLOCK_KINDS, ggml's type name in lower case.
        blocks: (rows, ...) uint8, the bytes of each row.
        inputs: number of weights per row: a multiple of 32, or of 256 for "q2_k" to "q6_k" and
            "iq4_xs".
        order: (outputs,) int64, the row of each output; None for all rows in order.

    Raises:
        OperatorInputError: [weight-shape] for another kind or size, or an `order` out of range;
            [weight-values] for a scale that is infinite or NaN.
    """
    if kind not in BLOCK_KINDS:
        raise OperatorInputError(
            f"pack_blocks: `kind` must be one of {', '.join(BLOCK_KINDS)}, got {kind!r}. "
            "Dequantize other types.",
            code="weight-shape",
        )
    flat = blocks.contiguous().view(-1)
    try:
        data = _C.pack_blocks(kind, flat, inputs, None if order is None else order.contiguous())
    except ValueError as failure:
        rule = f"pack_blocks: {kind} weights {failure}."
        if "finite" in str(failure):
            raise OperatorInputError(
                f"{rule} Read the file again.", code="weight-values"
            ) from failure
        raise OperatorInputError(
            f"{rule} Pass whole rows of the type's blocks.", code="weight-shape"
        ) from failure
    outputs = len(blocks) if order is None else len(order)
    return PackedLinear(kind, outputs, inputs, data)


def interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with 16 rows of gate, 16 of up, and so on.

    Args:
        gate: (rows, ...), rows a multiple of 16.
        up: of the same shape.

    Raises:
        OperatorInputError: [weight-shape] for other shapes.
    """
    if gate.shape != up.shape or gate.shape[0] % BLOCK_OUTPUTS:
        raise OperatorInputError(
            "interleave: `gate` and `up` must have the same shape and a multiple of 16 rows, got "
            f"{tuple(gate.shape)} and {tuple(up.shape)}. Keep them apart.",
            code="weight-shape",
        )
    pairs = [part.reshape(-1, BLOCK_OUTPUTS, *part.shape[1:]) for part in (gate, up)]
    return torch.stack(pairs, 1).reshape(-1, *gate.shape[1:])


def unpack(weight: PackedLinear, rows: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the float32 matrix of a packed weight.

    Blocks of a GGUF file give the same values as gguf's `quants.dequantize`, bit for bit.

    Args:
        weight: of any kind.
        rows: (count,) int64, indices of outputs; None for all.

    Returns:
        (count, inputs).
    """
    if weight.kind in BLOCK_KINDS:
        return _C.unpack_blocks(weight.kind, weight.data, weight.outputs, weight.inputs, rows)
    values = _unpacked(weight)
    return values if rows is None else values[rows]


def _unpacked(weight: PackedLinear) -> torch.Tensor:
    outputs, inputs = weight.outputs, weight.inputs
    if weight.kind == "mixed":
        parts = [unpack(part) for part in weight.parts]
        return interleave(*parts) if weight.alternating else torch.cat(parts)
    if weight.kind in _FLOATS:
        elements = weight.data.view(_FLOATS[weight.kind]).view(-1, inputs, BLOCK_OUTPUTS)
        return elements.transpose(1, 2).reshape(-1, inputs)[:outputs].float()
    blocks, slabs = -(-outputs // BLOCK_OUTPUTS), -(-inputs // _SLAB_INPUTS)
    assert weight.scales is not None
    if weight.kind == "int8":
        quads = weight.data.view(blocks, slabs, 16, BLOCK_OUTPUTS, 4).permute(0, 3, 1, 2, 4)
        levels = quads.reshape(blocks * BLOCK_OUTPUTS, -1)[:outputs, :inputs].float()
        zero = 128.0 if weight.zeros is None else weight.zeros.float()[:, None]
        return (levels - zero) * weight.scales[:, None]
    data = weight.data.view(blocks, slabs, 8, BLOCK_OUTPUTS, 4)
    halves = torch.stack([data & 15, data >> 4]).permute(1, 4, 2, 0, 3, 5)
    levels = halves.reshape(blocks * BLOCK_OUTPUTS, -1)[:outputs, :inputs].float()
    groups = -(-inputs // weight.group)

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        by_output = tensor.view(blocks, groups, BLOCK_OUTPUTS).transpose(1, 2)
        rows = by_output.reshape(-1, groups)[:outputs].float()
        return rows.repeat_interleave(weight.group, 1)[:, :inputs]

    zeros = 8.0 if weight.zeros is None else spread(weight.zeros)
    return (levels - zeros) * spread(weight.scales)


def _padded(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Returns a matrix with zeros up to multiples of rows and columns."""
    more = (-matrix.shape[1] % columns, -matrix.shape[0] % rows)
    if more == (0, 0):
        return matrix.contiguous()
    return torch.nn.functional.pad(matrix, (0, more[0], 0, more[1]))


def _by_block(of_groups: torch.Tensor) -> torch.Tensor:
    """Returns (outputs, groups) as (blocks, groups, 16)."""
    padded = _padded(of_groups, BLOCK_OUTPUTS, 1)
    return padded.view(-1, BLOCK_OUTPUTS, padded.shape[1]).transpose(1, 2).contiguous()


_ALIGNMENT = 64
_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint8: "U8",
    torch.int32: "I32",
    torch.int64: "I64",
}
# Minimum header bytes per weight; most need a third of it.
_HEADER_BYTES = 400
# Files that Linux has in huge pages are read faster: a step of SmolLM2-135M in Q8_0 takes 3.1 ms
# instead of 3.9 (two cores, 2026-11-28). Their cache is made of such pages as writes fill them.
_PIECE_BYTES = 2 << 20


def _described(item: PackedLinear) -> list[Any]:
    """Returns a weight's entry in the header."""
    own = [item.kind, item.outputs, item.inputs, item.group]
    if item.kind != "mixed":
        return own
    return [*own, item.alternating, [_described(part) for part in item.parts]]


def _plain_parts(name: str, item: PackedLinear) -> list[tuple[str, PackedLinear]]:
    """Returns the weights that have tensors, and their names in a file."""
    if item.kind != "mixed":
        return [(name, item)]
    return [(f"{name}.{number}", part) for number, part in enumerate(item.parts)]


@dataclass
class _Writer:
    """The tensors written so far."""

    file: BinaryIO
    header: dict[str, Any]
    offset: int = 0
    pending: bytearray = field(default_factory=bytearray)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        content: Any = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
        self._append(content)
        end = self.offset + len(content)
        self.header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [self.offset, end],
        }
        padding = -end % _ALIGNMENT
        if padding:
            # The format does not allow gaps: padding is a tensor too.
            self._append(bytes(padding))
            self.header[f"{name}.padding"] = {
                "dtype": "U8",
                "shape": [padding],
                "data_offsets": [end, end + padding],
            }
        self.offset = end + padding

    def finish(self) -> None:
        """Writes the bytes that fill no piece."""
        self.file.write(self.pending)

    def _append(self, content: Any) -> None:
        """Writes whole pieces, at multiples of their size, so that each gets a huge page."""
        room = -(self.file.tell() + len(self.pending)) % _PIECE_BYTES
        if len(content) < room:
            self.pending += content
            return
        self.file.write(self.pending + content[:room])
        end = room + (len(content) - room) // _PIECE_BYTES * _PIECE_BYTES
        self.file.write(content[room:end])
        self.pending = bytearray(content[end:])


def write_weights(
    path: Path, items: Iterable[tuple[str, PackedLinear | torch.Tensor]], *, count: int = 0
) -> None:
    """Writes weights one by one, so that only one is in memory at a time.

    Args:
        path: the file; tensors go to a temporary file next to it until the header is known.
        items: names and weights.
        count: number of weights to reserve header space for. If the header needs more, the file is
            written twice.

    Raises:
        OSError: the disk is full.
    """
    packed: dict[str, Any] = {}
    draft = path.with_name(f"{path.name}.tensors")
    room = _aligned(count * _HEADER_BYTES)
    try:
        with draft.open("wb") as file:
            file.seek(room)
            writer = _Writer(file, {})
            for name, item in items:
                if isinstance(item, torch.Tensor):
                    writer.write(name, item)
                    continue
                packed[name] = _described(item)
                for key, part in _plain_parts(name, item):
                    for field in FIELDS:
                        tensor = getattr(part, field)
                        if tensor is not None:
                            writer.write(f"{key}.{field}", tensor)
            writer.finish()
            metadata = {"version": str(VERSION), "layout": LAYOUT, "packed": json.dumps(packed)}
            header = json.dumps({"__metadata__": metadata, **writer.header}).encode()
            size = max(room, _aligned(len(header) + 8))
            header = (size - 8).to_bytes(8, "little") + header.ljust(size - 8)
            if size == room:
                file.seek(0)
                file.write(header)
        if size == room:
            draft.replace(path)
        else:
            _prepend(header, draft, room, path)
    finally:
        draft.unlink(missing_ok=True)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _prepend(header: bytes, draft: Path, start: int, path: Path) -> None:
    with path.open("wb") as file, draft.open("rb") as tensors:
        file.write(header)
        tensors.seek(start)
        while chunk := tensors.read(1 << 24):
            file.write(chunk)
