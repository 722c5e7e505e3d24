"""Memory and disk requirements of a model, available resources, and errors if it does not fit.

Requirements are computed from a model's facts (npu_llm.checkpoint.facts) before any weight is read.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from npu_command.host_memory import available_bytes
from npu_llm.checkpoint.facts import ModelFacts
from npu_llm.choices import KvCache
from npu_llm.errors import CacheError, MemoryNeedError
from npu_llm.precision import PRECISIONS, Precision, cache_dtype_name, kernels_cache

__all__ = [
    "SHORT_CONTEXT",
    "MemoryNeed",
    "cache_bytes_per_token",
    "check_disk",
    "check_memory",
    "estimate",
    "spare_bytes",
    "weights_bytes",
]

# Torch, transformers and OpenVINO in a process, before any model (measured 2026-11-22: 350 MB), and
# the working memory of a step of some hundred tokens.
_PROCESS_BYTES = 500_000_000
# The same for a kernel program, without OpenVINO: 370 MB before its first step (2026-11-23).
_KERNELS_PROCESS_BYTES = 450_000_000
_KERNELS_STEP_BYTES = 100_000_000
# A weight in float32 while it is packed or read back, with its integers and a rounded copy: 8.5
# bytes per element (Llama with 1.1B parameters, 2026-11-23).
_PACKING_BYTES = 9
# Without max_context a chat of this length must fit: the cache grows during generation.
SHORT_CONTEXT = 1024
# A group of 64 weights has 64 half bytes, a scale of 4 bytes, and half a byte of zero point.
_INT4_BYTES = 0.5 + 4.5 / 64
# In kernel programs a scale has 2 bytes and a zero point one; 32 weights share a scale if a file's
# blocks are kept.
_KERNELS_INT4_BYTES = 0.5 + 2 / 32
# Scale and zero point of a token's keys, or values, in one head, in float32.
_U8_BYTES = 8
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_GIGA = 1e9


@dataclass(frozen=True)
class MemoryNeed:
    """A model's requirements in bytes.

    Attributes:
        weights_bytes: its loaded weights.
        cache_bytes: keys and values of `context` tokens.
        working_bytes: the process and one step.
        building_bytes: additional memory of a first load: the program's file next to its compiled
            form, which kernel programs do not have, the largest weight during conversion, and the
            whole model in float32 if its files cannot be mapped.
        context: number of tokens in cache_bytes.
    """

    weights_bytes: int
    cache_bytes: int
    working_bytes: int
    building_bytes: int
    context: int

    @property
    def running_bytes(self) -> int:
        """Memory of a running model."""
        return self.weights_bytes + self.cache_bytes + self.working_bytes

    @property
    def first_start_bytes(self) -> int:
        """The peak of a first load: building comes before the cache fills."""
        built = self.weights_bytes + self.working_bytes + self.building_bytes
        return max(built, self.running_bytes)


def weights_bytes(facts: ModelFacts, precision: Precision, *, kernels: bool = False) -> int:
    """Returns the bytes of a model's weights in a precision.

    Args:
        facts: the model's facts.
        precision: storage type of the weights.
        kernels: whether it is a kernel program, with float16 tables besides integers.
    """
    if precision.weights == "file":
        return facts.own_bytes or facts.stored_bytes
    if precision.weights not in ("int8", "int4"):
        return facts.parameters * _ITEM_BYTES[precision.dtype_name]
    rest = facts.parameters - facts.matrix_parameters
    tied = facts.vocabulary * facts.hidden_size if facts.is_tied else 0
    matrices = facts.matrix_parameters - tied
    of_int4 = _KERNELS_INT4_BYTES if kernels else _INT4_BYTES
    per_element = 1.0 if precision.weights == "int8" else of_int4
    return int(matrices * per_element) + tied + rest * (2 if kernels else 4)


def cache_bytes_per_token(
    facts: ModelFacts,
    precision: Precision,
    kv_cache: KvCache | None = None,
    *,
    kernels: bool = False,
    has_bounds: bool = False,
) -> int:
    """Returns the bytes of keys and values of one token in all layers.

    With has_bounds, also its share of the bounds of a block's keys, which sparse attention needs.
    """
    if kv_cache == "u8":
        per_head = facts.head_dim + _U8_BYTES
    elif kernels:
        per_head = facts.head_dim * (4 if kernels_cache(precision) == "float32" else 2)
    else:
        per_head = facts.head_dim * _ITEM_BYTES[cache_dtype_name(precision)]
    # Minimum and maximum of each channel in bfloat16, for 16 tokens.
    bounds = facts.layers * facts.kv_heads * facts.head_dim // 4 if has_bounds else 0
    return 2 * facts.layers * facts.kv_heads * per_head + bounds


def estimate(
    facts: ModelFacts,
    precision: Precision,
    *,
    max_context: int | None = None,
    kv_cache: KvCache | None = None,
    kernels: bool = False,
    has_bounds: bool = False,
) -> MemoryNeed:
    """Estimates a model's requirements.

    Args:
        facts: the model's facts.
        precision: the precision of weights and arithmetic.
        max_context: number of tokens that must fit; None for a short chat, or the model's context
            if that is shorter.
        kv_cache: storage type of keys and values; None for the dtype of the arithmetic.
        kernels: whether the model is a kernel program instead of OpenVINO's.
        has_bounds: see cache_bytes_per_token.
    """
    per_token = cache_bytes_per_token(
        facts, precision, kv_cache, kernels=kernels, has_bounds=has_bounds
    )
    bound = facts.context_length
    context = max_context or min(SHORT_CONTEXT, bound or SHORT_CONTEXT)
    weights = weights_bytes(facts, precision, kernels=kernels)
    largest = facts.vocabulary * facts.hidden_size
    unpacked = 0 if facts.is_mapped else 4 * facts.parameters
    if kernels:
        # Written weights are mapped at run time: they have no other form.
        working, building = _KERNELS_PROCESS_BYTES, _PACKING_BYTES * largest + unpacked
    else:
        working, building = _PROCESS_BYTES, weights + (unpacked or 4 * largest)
    return MemoryNeed(
        weights_bytes=weights,
        cache_bytes=context * per_token,
        working_bytes=working,
        building_bytes=building,
        context=context,
    )


def check_memory(
    name: str,
    facts: ModelFacts,
    precision: Precision,
    *,
    max_context: int | None,
    is_built: bool,
    kv_cache: KvCache | None = None,
    kernels: bool = False,
    has_bounds: bool = False,
) -> None:
    """Rejects a model that does not fit into memory.

    Args:
        name: the model's name, for the message.
        facts: the model's facts.
        precision: the precision of weights and arithmetic.
        max_context: number of tokens that must fit, see estimate.
        is_built: whether the program already exists, so that nothing is converted.
        kv_cache: see estimate.
        kernels: see estimate.
        has_bounds: see estimate.

    Raises:
        MemoryNeedError: [memory-need] with the figures, and options that would fit.
    """
    need = estimate(
        facts, precision, max_context=max_context, kv_cache=kv_cache, kernels=kernels,
        has_bounds=has_bounds,
    )  # fmt: skip
    needed = need.running_bytes if is_built else need.first_start_bytes
    available = available_bytes()
    if needed <= available:
        return
    parts = [
        f"{need.weights_bytes / _GIGA:.1f} GB of weights in {precision.words}",
        f"{need.cache_bytes / _GIGA:.1f} GB of cache for {need.context:,} tokens",
        f"{need.working_bytes / _GIGA:.1f} GB of working memory",
    ]
    if not is_built and need.first_start_bytes > need.running_bytes:
        parts.append(f"{need.building_bytes / _GIGA:.1f} GB to build the program once")
    raise MemoryNeedError(
        f"`{name}` must fit into the available memory; it needs {needed / _GIGA:.1f} GB "
        f"({', '.join(parts)}), but {available / _GIGA:.1f} GB are available. "
        f"{_advice(facts, precision, need, available, is_built=is_built, kernels=kernels)}",
        code="memory-need",
    )


def check_disk(
    name: str, facts: ModelFacts, precision: Precision, folder: Path, *, kernels: bool = False
) -> None:
    """Rejects writing a model to a disk without room for it.

    Args:
        name: the model's name, for the message.
        facts: the model's facts.
        precision: precision of the written weights.
        folder: the output folder, which need not exist yet.
        kernels: see estimate; its weights are written twice, because their header comes first.

    Raises:
        CacheError: [disk-need] with the figures.
    """
    copies = 2 if kernels else 1
    needed = int(copies * weights_bytes(facts, precision, kernels=kernels) * 1.02) + 20_000_000
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise CacheError(
            f"`{folder}` must have room for {name} in {precision.words}, {needed / _GIGA:.2f} GB; "
            f"but {free / _GIGA:.2f} GB are free. Free space, choose a lower precision, or pass "
            "another folder (cache_dir, --cache-dir, NPU_LLM_CACHE_DIR).",
            code="disk-need",
        )


def spare_bytes(weights_bytes: int) -> int:
    """Returns the memory available for keys and values of a loaded kernel program.

    Args:
        weights_bytes: size of its weights file. Its pages count as available memory, but each step
            reads them.
    """
    return available_bytes() - weights_bytes - _KERNELS_STEP_BYTES


def _advice(
    facts: ModelFacts,
    precision: Precision,
    need: MemoryNeed,
    available: int,
    *,
    is_built: bool,
    kernels: bool,
) -> str:
    """Returns options that would fit: a lower precision, or a shorter context."""
    other = need.cache_bytes // max(need.context, 1)
    spare = available - need.weights_bytes - need.working_bytes
    fits = spare // other if other else 0
    if (is_built or need.first_start_bytes == need.running_bytes) and fits >= 1:
        return f"Pass max_context={fits} or less, a lower precision, or free memory."
    for name in ("int8", "int4"):
        lower = PRECISIONS[name]
        smaller = estimate(facts, lower, max_context=need.context, kernels=kernels)
        if smaller.weights_bytes >= need.weights_bytes:
            continue
        if (smaller.running_bytes if is_built else smaller.first_start_bytes) <= available:
            return f'Pass dtype="{name}", which fits, or free memory.'
    return "Free memory, or use a smaller model or a machine with more memory."
