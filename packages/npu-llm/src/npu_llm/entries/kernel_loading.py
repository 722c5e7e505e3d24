"""Loads the kernel program of an entry, and compares it with torch before it is used."""

from __future__ import annotations

import json
import time
from pathlib import Path

import npu_runtime
from npu_compiler.verification.verdict import Verdict
from npu_llm.checkpoint.requirements import SHORT_CONTEXT, spare_bytes
from npu_llm.choices import Verify
from npu_llm.entries.entry import KERNEL_PROGRAM, STEP_WEIGHTS, CompiledForm, Entry
from npu_llm.entries.verified_loading import as_here
from npu_llm.errors import ModelError, OptionError
from npu_llm.precision import kernels_cache
from npu_llm.steps.block_tables import BlockPool
from npu_llm.steps.pipelines import KernelPipeline, Start
from npu_llm.verification.kept_verdict import keep_verdict, read_kept
from npu_llm.verification.verifier import wrong_result
from npu_ops.errors import DamagedFileError, OperatorInputError
from npu_ops.kernel_programs.execution import Execution, kernel_sets
from npu_ops.kernel_programs.instructions import Attend
from npu_ops.kernel_programs.program import KernelProgram
from npu_ops.kernel_programs.rows import BLOCK_SLOTS
from npu_ops.kernel_programs.sparse_attention import why_not_sparse
from npu_ops.kernel_programs.weight_file import read_weights

__all__ = ["is_compared", "load_kernels"]

# A comparison with torch uses some, and they come 16 at a time.
_FEWEST_BLOCKS = 16


def is_compared(form: CompiledForm) -> bool:
    """Whether a program was compared with torch as this processor runs it."""
    return read_kept(_verdict_folder(form)) is not None


def load_kernels(entry: Entry, form: CompiledForm, *, verify: Verify) -> KernelPipeline:
    """Loads an entry's kernel program.

    Args:
        entry: one of the pipeline "kernels".
        form: where the verdict is kept, one for each set of kernels.
        verify: when it is compared with torch.

    Raises:
        ModelError: [exported-damaged] if its files do not fit together.
        OptionError: [sparse-attention] for a model that it would break.
        WrongResultError: [wrong-result] if its results differ from torch's.
    """
    started = time.perf_counter()
    try:
        program = KernelProgram.from_dict(json.loads((entry.folder / KERNEL_PROGRAM).read_text()))
        _check_sparse(entry, program)
        weights = read_weights(entry.folder / STEP_WEIGHTS)
        cache = kernels_cache(entry.precision, entry.kv_cache)
        execution = Execution(
            program, weights, cache=cache, name=entry.name, sparse_attention=entry.sparse_attention
        )
    except OptionError:  # the user's, not the files'
        raise
    except (DamagedFileError, OperatorInputError, OSError, KeyError, TypeError, ValueError) as why:
        raise ModelError(
            f"{entry.folder}: must hold a kernel program and its weights, as they were written; "
            f"got: {why}. Export the model again, or remove the folder.",
            code="exported-damaged",
        ) from why
    folder = _verdict_folder(form)
    known = read_kept(folder)
    device = npu_runtime.device_info().device
    pipeline = KernelPipeline(
        pool=BlockPool(execution, most=_most_blocks(entry, execution.block_bytes)),
        vocabulary=program.vocabulary,
        positions=program.positions,
        counts_distances=_counts_distances(program),
        start=Start(known is not None, time.perf_counter() - started, device),
        verdict=known or Verdict("unchecked", 'verify is "off"'),
    )
    if verify == "off" or (known is not None and verify == "first"):
        return pipeline
    verdict = _compared(entry, pipeline)
    keep_verdict(folder, verdict)
    return pipeline.judged(verdict)


def _check_sparse(entry: Entry, program: KernelProgram) -> None:
    broken = None if entry.sparse_attention is None else why_not_sparse(program)
    if broken is not None:
        raise OptionError(
            f"sparse_attention: must be omitted for a model that it would break; got "
            f"{entry.sparse_attention} for {entry.name}, which {broken}. Omit it for dense "
            "attention.",
            code="sparse-attention",
        )


def _compared(entry: Entry, pipeline: KernelPipeline) -> Verdict:
    # Heavy, and not needed for a start from the cache.
    from npu_llm.entries.step_check import check_dynamic
    from npu_llm.verification.torch_reference import read_reference

    reference = read_reference(entry.reference_path)
    if reference is None:
        return Verdict("unchecked", "the model was built without torch's results")
    finding = check_dynamic(pipeline.new_cache, as_here(entry, reference), has_positions=True)
    if finding is not None:
        raise wrong_result(entry.name, str(finding))
    return Verdict("right")


def _most_blocks(entry: Entry, block_bytes: int) -> int:
    """Returns how many blocks memory has room for, at least those of the tokens promised."""
    spare = spare_bytes((entry.folder / STEP_WEIGHTS).stat().st_size)
    promised = min(SHORT_CONTEXT, entry.context_length or SHORT_CONTEXT)
    tokens = promised if entry.max_context is None else entry.max_context
    return max(spare // max(block_bytes, 1), -(-tokens // BLOCK_SLOTS), _FEWEST_BLOCKS)


def _counts_distances(program: KernelProgram) -> bool:
    """Whether attention depends on how many tokens lie between two, not only on their order."""
    attends = [one for one in program.instructions if isinstance(one, Attend)]
    return any(one.window is not None or one.slopes is not None for one in attends)


def _verdict_folder(form: CompiledForm) -> Path:
    return form.folder / f"kernels-{kernel_sets()[0]}"
