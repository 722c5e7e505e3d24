"""Loads the programs of an entry, and compares them with torch before they are used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from npu_compiler.verification.comparison import ROUNDING
from npu_compiler.verification.verdict import Verdict
from npu_llm.adapters.adapter_ports import idle_inputs
from npu_llm.choices import Verify
from npu_llm.entries.entry import Entry
from npu_llm.precision import rounding_of
from npu_llm.steps.static_layout import StaticLayout, StepSizes
from npu_llm.steps.static_programs import VerifyVariant
from npu_llm.steps.step_weights import StepWeights
from npu_llm.verification.verifier import Load, Verifier
from npu_runtime import Program

if TYPE_CHECKING:
    from npu_llm.verification.finding import Finding
    from npu_llm.verification.torch_reference import TorchReference

__all__ = ["as_here", "verify_step", "verify_variant"]

# Most of what such a program rounds are its activations of 8 bits, whatever else it computes in.
_MOST_BESIDE_INTEGERS = 2.0
# Keys and values of 8 bits round as much again as what stands beside them.
_LEAST_WITH_CACHE = 2.0


def verify_step(entry: Entry, load: Load, folder: Path, when: Verify) -> tuple[Program, Verdict]:
    """Loads the program of an entry's dynamic pipeline; see Verifier.load."""

    def check(program: Program, reference: TorchReference) -> Finding | None:
        from npu_llm.entries.step_check import check_dynamic
        from npu_llm.steps.pipelines import dynamic_cache

        return check_dynamic(
            lambda: dynamic_cache(
                program, entry.relocation, entry.states, idle_inputs(entry.adapted)
            ),
            as_here(entry, reference),
            has_positions=any(port.name == "position_ids" for port in program.inputs),
        )

    return Verifier(entry.name, entry.reference_path, when).load(load, check, folder)


def verify_variant(
    entry: Entry, layout: StaticLayout, when: Verify, weights: StepWeights
) -> VerifyVariant:
    """Returns what loads the programs of an entry's static pipeline; see Verifier.load."""
    verifier = Verifier(entry.name, entry.reference_path, when)

    def verified(sizes: StepSizes, load: Load, folder: Path) -> tuple[Program, Verdict]:
        def check(program: Program, reference: TorchReference) -> Finding | None:
            from npu_llm.entries.step_check import check_static

            return check_static(
                program,
                layout,
                sizes,
                as_here(entry, reference),
                relocation=entry.relocation,
                weights=weights,
            )

        return verifier.load(load, check, folder)

    return verified


def as_here(entry: Entry, reference: TorchReference) -> TorchReference:
    """Returns the reference with the rounding of the device in use and of the entry's cache."""
    wanted = rounding_of(entry.precision)
    layout = entry.static_layout
    # One for an NPU keeps keys and values as that computes, on other devices as well.
    if layout is not None and ROUNDING[layout.dtype] > ROUNDING[_name(wanted)]:
        wanted = layout.torch_dtype
    if entry.kv_cache is not None:
        wanted = torch.bfloat16  # rounds about as much as 8 bits of a token's largest value
    factor = ROUNDING[_name(wanted)] / ROUNDING[reference.precision]
    if entry.precision.activation_group:
        factor = min(factor, _MOST_BESIDE_INTEGERS)
    if entry.kv_cache is not None:
        factor = max(factor, _LEAST_WITH_CACHE)
    if factor <= 1:
        return reference
    return reference.with_more_rounding(factor, _name(wanted))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
