"""Execution: runs a kernel program on the cores of this machine, and keeps its keys and values."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch

from npu_ops import _C
from npu_ops.errors import OperatorInputError, OpsError
from npu_ops.kernel_programs.layers import StageLayers
from npu_ops.kernel_programs.program import KernelProgram
from npu_ops.kernel_programs.rows import Rows
from npu_ops.kernel_programs.sparse_attention import SparseAttention, why_not_sparse
from npu_ops.kernel_programs.weights import PackedLinear
from npu_runtime import layer_recording, observe

__all__ = [
    "CacheKind",
    "Execution",
    "kernel_sets",
    "members",
    "native_program",
    "translated",
]

CacheKind = Literal["float32", "bfloat16", "u8"]


def kernel_sets() -> list[str]:
    """Returns the instruction sets that have kernels and that this processor has, best first."""
    return list(_C.kernel_sets())


class Execution:
    """A program that is ready to run, with blocks for keys and values.

    A step is run by as many threads as the process may use, at most torch.get_num_threads(). Steps
    that several Python threads ask for at once run one after the other.

    Attributes:
        program: what it runs.
        block_bytes: how many bytes a block takes.
    """

    def __init__(
        self,
        program: KernelProgram,
        weights: Mapping[str, PackedLinear | torch.Tensor],
        *,
        cache: CacheKind,
        name: str = "kernels",
        kernel_set: str | None = None,
        sparse_attention: SparseAttention | None = None,
    ) -> None:
        """Makes a program ready.

        Args:
            program: what to run.
            weights: each weight that it names; their memory is used where it is.
            cache: what keys and values are stored as.
            name: what its spans are called.
            kernel_set: a name of kernel_sets; None for the best.
            sparse_attention: which keys a step of one token per sequence attends to; None for all.

        Raises:
            OperatorInputError: [kernel-program] if something does not fit together,
                [sparse-attention] if that would break the program's attention.
        """
        broken = None if sparse_attention is None else why_not_sparse(program)
        if broken is not None:
            raise OperatorInputError(
                f"sparse_attention: must be omitted for a program that {broken}; got "
                f"{sparse_attention}. Omit it for dense attention.",
                code="sparse-attention",
            )
        self.program = program
        self._name = name
        self._kernel_set = kernel_set or kernel_sets()[0]
        self._native = native_program(
            program, weights, cache=cache, kernel_set=kernel_set, sparse_attention=sparse_attention
        )
        self._layers = StageLayers(
            program, self._native.stages, weights, kernel_set=self._kernel_set
        )
        self.block_bytes: int = self._native.block_bytes

    def step(self, rows: Rows) -> torch.Tensor:
        """Runs a step: appends keys and values of all rows, and computes the logits asked for.

        Args:
            rows: the tokens.

        Returns:
            logits (kept, vocabulary) float32.

        Raises:
            OperatorInputError: [kernel-program] for an index out of range, or a tensor of another
                dtype or shape; nothing was run then.
            OpsError: [out-of-memory] if the machine has none left; later steps may succeed.
        """
        if not observe.is_enabled():
            return self._run(rows, None)
        return self._observed(rows)

    def timed_step(self, rows: Rows) -> tuple[torch.Tensor, list[tuple[str, int]]]:
        """Runs a step; returns logits, and for each stage its instructions and its nanoseconds.

        Raises:
            OperatorInputError, OpsError: as `step` does.
        """
        names = self._layers.names
        times = torch.zeros(len(names), dtype=torch.int64)
        logits = self._run(rows, times)
        return logits, list(zip(names, times.tolist(), strict=True))

    def reserve(self, blocks: int) -> None:
        """Makes the blocks 0 to blocks - 1 usable; those that are stay as they are.

        Raises:
            MemoryError: if the machine has no memory left for them.
        """
        self._native.reserve(blocks)

    def copy_block(self, source: int, target: int) -> None:
        """Copies one block, keys and values of all layers.

        Raises:
            OperatorInputError: [kernel-program] for a block that was not reserved.
        """
        with translated():
            self._native.copy_block(source, target)

    def read_blocks(self, ids: Sequence[int]) -> torch.Tensor:
        """Returns copies of blocks: (len(ids), block_bytes) uint8; raises as copy_block does."""
        with translated():
            content: torch.Tensor = self._native.read_blocks(list(ids))
        return content

    def write_blocks(self, ids: Sequence[int], content: torch.Tensor) -> None:
        """Writes what read_blocks returned; raises as copy_block does."""
        with translated():
            self._native.write_blocks(list(ids), content.contiguous())

    def _observed(self, rows: Rows) -> torch.Tensor:
        """Runs a step, and emits the span of a program, and of its layers if they are wanted."""
        start_ns = time.time_ns()
        place = {"device_index": 0, "stream": 0}
        if not layer_recording.is_wanted():
            with observe.span("program", self._name, **place):
                return self._run(rows, None)
        logits, layers = self.timed_step(rows)
        observe.span_between("program", self._name, start_ns, time.time_ns(), **place)
        self._layers.emit(
            [time_ns for _, time_ns in layers], start_ns,
            rows=len(rows.tokens), kept=len(rows.kept), **place,
        )  # fmt: skip
        return logits

    def _run(self, rows: Rows, times: torch.Tensor | None) -> torch.Tensor:
        with translated():
            logits: torch.Tensor = self._native.step(
                rows.tokens,
                rows.positions,
                rows.sequences,
                rows.slots,
                rows.block_tables,
                rows.kept,
                members(),
                times,
                rows.is_decode,
            )
        return logits


def native_program(
    program: KernelProgram,
    weights: Mapping[str, PackedLinear | torch.Tensor],
    *,
    cache: CacheKind = "float32",
    kernel_set: str | None = None,
    sparse_attention: SparseAttention | None = None,
) -> _C.KernelProgram:
    """Returns the native program; see Execution for the arguments, and for what is raised."""
    content = program.as_dict()
    with translated():
        return _C.KernelProgram(
            content["instructions"],
            content["widths"],
            content["layers"],
            content["logits"],
            dict(weights),
            cache,
            kernel_set,
            0 if sparse_attention is None else sparse_attention.blocks,
            0 if sparse_attention is None else sparse_attention.dense_up_to,
        )


def members() -> int:
    """Returns how many threads run a step."""
    return max(1, min(_C.usable_processors(), torch.get_num_threads()))


@contextmanager
def translated() -> Iterator[None]:
    """Turns what native code raises into this package's errors."""
    try:
        yield
    except MemoryError as failure:
        raise OpsError(
            "kernel program: needs memory that the machine does not have left. "
            "Run fewer rows in a step, or free some.",
            code="out-of-memory",
        ) from failure
    except (ValueError, RuntimeError, KeyError) as failure:
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        raise OperatorInputError(
            f"kernel program: {lines[0].rstrip('.')}. Pass what the program was made for.",
            code="kernel-program",
        ) from failure
