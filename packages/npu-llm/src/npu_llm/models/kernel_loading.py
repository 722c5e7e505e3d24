"""Loads the kernel program of an entry; does not need torch."""

from __future__ import annotations

import json
from pathlib import Path

from npu_llm.checkpoint.requirements import SHORT_CONTEXT, spare_bytes
from npu_llm.errors import ModelError, OptionError
from npu_llm.kv_cache.blocks import BlockPool
from npu_llm.models.entry import KERNEL_PROGRAM, STEP_WEIGHTS, CompiledForm, Entry
from npu_llm.precision import kernels_cache
from npu_llm.verification.kept_verdict import read_kept
from npu_ops.errors import DamagedFileError, OperatorInputError
from npu_ops.kernel_programs.execution import Execution, kernel_sets
from npu_ops.kernel_programs.packed import read_weights
from npu_ops.kernel_programs.program import BLOCK_SLOTS, KernelProgram
from npu_ops.kernel_programs.sparse_attention import why_not_sparse

__all__ = ["is_compared", "load_kernels", "verdict_folder"]

# A comparison with torch uses some; they come in groups of 16.
_FEWEST_BLOCKS = 16


def load_kernels(entry: Entry) -> tuple[KernelProgram, BlockPool]:
    """Returns an entry's kernel program and its block pool.

    Raises:
        ModelError: [exported-damaged] if the files are inconsistent.
        OptionError: [sparse-attention] for a model that does not support it.
    """
    try:
        program = KernelProgram.from_dict(json.loads((entry.folder / KERNEL_PROGRAM).read_text()))
        _check_sparse(entry, program)
        weights = read_weights(entry.folder / STEP_WEIGHTS)
        cache = kernels_cache(entry.precision, entry.kv_cache)
        execution = Execution(
            program, weights, cache=cache, name=entry.name, sparse_attention=entry.sparse_attention
        )
    except OptionError:  # the user's mistake, not the files'
        raise
    except (DamagedFileError, OperatorInputError, OSError, KeyError, TypeError, ValueError) as why:
        raise ModelError(
            f"`{entry.folder}` must contain a kernel program and its weights, unchanged, got: "
            f"{why}. Export the model again, or remove the folder.",
            code="exported-damaged",
        ) from why
    return program, BlockPool(execution, most=_most_blocks(entry, execution.block_bytes))


def is_compared(form: CompiledForm) -> bool:
    """Whether a program was compared with torch for this processor's kernels."""
    return read_kept(verdict_folder(form)) is not None


def verdict_folder(form: CompiledForm) -> Path:
    """Returns the folder of a kernel program's verdict for this processor."""
    return form.folder / f"kernels-{kernel_sets()[0]}"


def _check_sparse(entry: Entry, program: KernelProgram) -> None:
    broken = None if entry.sparse_attention is None else why_not_sparse(program)
    if broken is not None:
        raise OptionError(
            "`sparse_attention` must be omitted for a model that does not support it, got "
            f"{entry.sparse_attention} for {entry.name}, which {broken}. Omit it for dense "
            "attention.",
            code="sparse-attention",
        )


def _most_blocks(entry: Entry, block_bytes: int) -> int:
    """Returns the number of blocks that fit into memory, at least those of the promised tokens."""
    spare = spare_bytes((entry.folder / STEP_WEIGHTS).stat().st_size)
    promised = min(SHORT_CONTEXT, entry.context_length or SHORT_CONTEXT)
    tokens = promised if entry.max_context is None else entry.max_context
    return max(spare // max(block_bytes, 1), -(-tokens // BLOCK_SLOTS), _FEWEST_BLOCKS)
