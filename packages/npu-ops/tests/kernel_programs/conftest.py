"""Programs of a few instructions, and the rows that they run on."""

import ctypes
import mmap
from dataclasses import replace

import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from npu_ops.kernel_programs.execution import Execution, kernel_sets
from npu_ops.kernel_programs.program import Columns, Embed, KernelProgram, Linear, Rows
from npu_ops.kernel_programs.weights import PackedLinear, pack, pack_integers


def pytest_generate_tests(metafunc):
    """Runs a test that takes `kernel_set` once for each set that this processor has."""
    if "kernel_set" in metafunc.fixturenames:
        metafunc.parametrize("kernel_set", kernel_sets())


def one_sequence(count, *, start=0, kept=None):
    """Rows of one sequence with tokens 0, 1, ... and consecutive blocks."""
    places = torch.arange(start, start + count)
    return Rows(
        tokens=torch.arange(count),
        positions=places,
        sequences=torch.zeros(count, dtype=torch.int32),
        slots=places.int(),
        block_tables=torch.arange(32, dtype=torch.int32)[None],
        kept=torch.arange(count) if kept is None else torch.tensor(kept, dtype=torch.int64),
    )


def rounded(weight, kind, group):
    """A weight in few bits, by the simplest rounding."""
    if kind not in ("int8", "int4"):
        return pack(weight, kind)
    bits, outputs = (8, len(weight)) if kind == "int8" else (4, len(weight))
    grouped = weight.view(
        outputs, 1 if kind == "int8" else -1, weight.shape[1] if kind == "int8" else group
    )
    low = grouped.amin(-1, keepdim=True).clamp(max=0)
    scale = (grouped.amax(-1, keepdim=True).clamp(min=0) - low) / (2**bits - 1) + 1e-6
    zero = (-low / scale).round()
    values = ((grouped / scale).round() + zero).clamp(0, 2**bits - 1)
    return pack_integers(
        values.to(torch.uint8), scale[..., 0], zero[..., 0].to(torch.uint8), bits=bits
    )


def linear_program(x, weight: PackedLinear, **fields):
    """A program that multiplies the rows of x, and its weights but that of the product."""
    outputs = weight.outputs // 2 if fields.get("gated") else weight.outputs
    width = x.shape[1]
    program = KernelProgram(
        instructions=(
            Embed(out=Columns(0, 0, width), table="x"),
            Linear(
                input=Columns(0, 0, width), out=Columns(1, 0, outputs), weight="weight", **fields
            ),
        ),
        widths=(width, outputs),
        weights={},
        layers=(),
        logits=Columns(1, 0, outputs),
        vocabulary=len(x),
    )
    return program, {"x": pack(x, "float32"), "weight": weight}


def in_levels(x):
    """Rows that kernels of integers do not round: in each 64, levels of 1/64 up to 127 of them."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % 64)).view(len(x), -1, 64)
    levels = (padded / padded.abs().amax(-1, keepdim=True).clamp(min=1e-9) * 127).round()
    return levels.flatten(1)[:, : x.shape[1]] / 64


# The float16 numbers of each type's block, by their offsets; MXFP4 has a byte instead.
_HALVES = {
    "q4_0": [0],
    "q4_1": [0, 2],
    "q5_0": [0],
    "q5_1": [0, 2],
    "q8_0": [0],
    "q2_k": [80, 82],
    "q3_k": [108],
    "q4_k": [0, 2],
    "q5_k": [0, 2],
    "q6_k": [208],
    "iq4_nl": [0],
    "iq4_xs": [0],
    "mxfp4": [],
}


def random_blocks(kind, rows, inputs, generator, scales=None):
    """Blocks (rows, bytes) of ggml's type with random other bits. Scales are the given ones in
    turn, or such that a row has a length of about 1.
    """
    size, bytes_of = GGML_QUANT_SIZES[GGMLQuantizationType[kind.upper()]]
    shape = (rows, inputs // size, bytes_of)
    blocks = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    if scales is None:
        many = {"q3_k": 1e-4, "q6_k": 1e-5, "iq4_xs": 1e-5}.get(kind, 1e-3 if size == 32 else 1e-4)
        exponents = torch.randint(112, 120, shape[:2], generator=generator)
        scales = exponents if kind == "mxfp4" else torch.rand(shape[:2], generator=generator) * many
    else:
        scales = scales[torch.arange(rows * shape[1]) % len(scales)].view(shape[:2])
    return set_scales(kind, blocks.view(rows, -1), scales)


def set_scales(kind, blocks, scales):
    """Writes the floats of each block, all minimums too; MXFP4's are exponents. Returns blocks."""
    bytes_of = GGML_QUANT_SIZES[GGMLQuantizationType[kind.upper()]][1]
    parts = blocks.view(len(blocks), -1, bytes_of)
    for place in _HALVES[kind]:
        parts[..., place : place + 2] = scales.half()[..., None].view(torch.uint8)
    if kind == "mxfp4":
        parts[..., 0] = scales.to(torch.uint8)
    return blocks


def at_the_end_of_memory(tensor):
    """A copy behind which nothing may be read: it ends where a page does that is forbidden."""
    if isinstance(tensor, PackedLinear):
        parts = {name: getattr(tensor, name) for name in ("data", "scales", "zeros")}
        there = {name: part for name, part in parts.items() if part is not None}
        return replace(tensor, **{name: at_the_end_of_memory(there[name]) for name in there})
    page, size = mmap.PAGESIZE, tensor.nbytes
    pages = -(-size // page) * page
    memory = mmap.mmap(-1, pages + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    no_access = 0
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + pages), page, no_access) == 0
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=pages - size)
    return flat.view(tensor.shape).copy_(tensor)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def run(program, weights, kernel_set, rows=None):
    """The logits of a program's step; by default of all its tokens, as one sequence."""
    execution = Execution(program, weights, cache="float32", kernel_set=kernel_set)
    execution.reserve(32)
    return execution.step(one_sequence(program.vocabulary) if rows is None else rows)


def table_program(table: PackedLinear, *, scale):
    """A program with the entries of a table as logits, times a factor."""
    columns = Columns(0, 0, table.inputs)
    return KernelProgram(
        instructions=(Embed(out=columns, table="table", scale=scale),),
        widths=(table.inputs,),
        weights={},
        layers=(),
        logits=columns,
        vocabulary=table.outputs,
    )
