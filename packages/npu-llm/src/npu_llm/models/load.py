"""Loads an entry's programs as a pipeline that runs a model's steps.

Kernels: our own CPU kernels, which process rows of any number of sequences. Dynamic: one program
for all sizes, which contains the cache. Static: programs of fixed sizes, for devices that need
these, with a cache in host memory. Programs are compared with torch before they are used.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import torch

import npu_runtime
from npu_command.host_memory import return_memory
from npu_compiler.programs.blobs import AheadBlobs
from npu_compiler.verification.comparison import ROUNDING
from npu_compiler.verification.result import Verdict
from npu_llm.adapters.lora import common_rank, idle_inputs, port_shapes
from npu_llm.choices import PipelineName, Verify
from npu_llm.kv_cache.blocks import BlockPool
from npu_llm.kv_cache.cache import Relocation
from npu_llm.kv_cache.static_layout import StaticLayout, StaticSizes, StepSizes
from npu_llm.kv_cache.step_weights import StepWeights, load_step_weights
from npu_llm.models.entry import VARIANTS, CompiledForm, Entry
from npu_llm.models.kernel_loading import load_kernels, verdict_folder
from npu_llm.models.load_report import LoadReport
from npu_llm.models.program_form import form_here
from npu_llm.models.static_programs import StaticPrograms, VerifyVariant, fixed_path, load_variant
from npu_llm.precision import compile_options, rounding_of
from npu_llm.verification.kept_verdict import keep_verdict, read_kept
from npu_llm.verification.verifier import Load, Verifier, wrong_result
from npu_ops.kernel_programs.program import Attend, KernelProgram
from npu_runtime import Program, layer_recording

if TYPE_CHECKING:
    from npu_llm.kv_cache.cache import StepCache
    from npu_llm.kv_cache.paged import PagedCache
    from npu_llm.kv_cache.request_cache import SessionCache
    from npu_llm.kv_cache.static import StaticCache
    from npu_llm.verification.reference import TorchReference
    from npu_llm.verification.verifier import Finding

__all__ = [
    "DynamicPipeline",
    "KernelPipeline",
    "LoadReport",
    "LoadedModel",
    "Pipeline",
    "StaticPipeline",
    "load_entry",
]


Programs = TypeVar("Programs", covariant=True)


@dataclass(frozen=True)
class LoadedModel(Generic[Programs]):
    """A loaded model.

    Attributes:
        entry: its folder.
        programs: its programs, loaded on the device; a Pipeline for a language model.
        report: load times and checks.
    """

    entry: Entry
    programs: Programs
    report: LoadReport

    def reporting(self, **changes: Any) -> Self:
        """Returns the model with other values in its report."""
        return replace(self, report=replace(self.report, **changes))


class Pipeline(Protocol):
    """An execution mode of a model's steps."""

    @property
    def name(self) -> PipelineName:
        """The name of the mode."""

    @property
    def verdict(self) -> Verdict:
        """The result of comparing its programs with torch."""

    def new_cache(self) -> StepCache:
        """Returns an empty cache."""


@dataclass(frozen=True)
class DynamicPipeline:
    """Steps of any size in one program.

    Attributes:
        program: the program, with the cache of each of its sessions.
        relocation: how it identifies the valid slots.
        verdict: result of comparing it with torch.
        states: names and sizes of the recurrent states.
        constants: inputs with the same value in each step: the active adapters.
    """

    program: Program
    relocation: Relocation
    verdict: Verdict
    states: Mapping[str, Sequence[int]] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    name: PipelineName = "dynamic"

    def new_cache(self) -> SessionCache:
        """Returns an empty cache in a new session."""
        # Imported late, also below: a model needs one kind of cache.
        from npu_llm.kv_cache.request_cache import dynamic_cache

        return dynamic_cache(self.program, self.relocation, self.states, self.constants)


@dataclass(frozen=True)
class StaticPipeline:
    """Steps in programs of fixed sizes.

    Attributes:
        programs: the programs, created on demand.
        sizes: their sizes.
        relocation: how they identify the valid slots.
        for_rank: returns the programs for adapters of a rank.
        given: inputs besides tokens and cache, per row or once for all: adapters.
    """

    programs: StaticPrograms
    sizes: StaticSizes
    relocation: Relocation
    for_rank: Callable[[int], StaticPrograms]
    given: Sequence[Mapping[str, torch.Tensor]] = ()
    name: PipelineName = "static"

    @property
    def program(self) -> Program:
        """The program of a step of one token, on the smallest cache."""
        return self.programs.get(StepSizes(1, self.sizes.capacities[0], 1))

    @property
    def verdict(self) -> Verdict:
        """The worst result of comparing the programs so far with torch."""
        return self.programs.verdict

    def new_cache(self) -> StaticCache:
        """Returns an empty cache of the smallest capacity."""
        from npu_llm.kv_cache.static import static_cache

        return static_cache(self.programs, self.sizes, self.relocation, self.given)


@dataclass(frozen=True)
class KernelPipeline:
    """Steps of tokens from any sequences, by our own kernels.

    Attributes:
        pool: the blocks of all its caches; runs the program on them.
        vocabulary: number of logits per token.
        positions: upper bound of positions; None for no bound.
        counts_distances: whether attention depends on the number of tokens between two.
        verdict: result of comparing it with torch.
    """

    pool: BlockPool
    vocabulary: int
    positions: int | None
    counts_distances: bool
    verdict: Verdict
    name: PipelineName = "kernels"

    def new_cache(self) -> PagedCache:
        """Returns an empty cache in the pool's blocks."""
        from npu_llm.kv_cache.paged import PagedCache

        return PagedCache(
            self.pool,
            vocabulary=self.vocabulary,
            positions=self.positions,
            counts_distances=self.counts_distances,
        )


def load_entry(
    entry: Entry,
    form: CompiledForm,
    *,
    verify: Verify = "first",
    blobs: AheadBlobs | None = None,
) -> LoadedModel[Pipeline]:
    """Loads an entry's programs, and compiles them if the compiled form is missing or unusable.

    In a static pipeline only the program for one token is loaded; the others follow on demand. Each
    is compared with torch according to `verify`, see npu_llm.verification.verifier.

    Args:
        entry: the program.
        form: location of its compiled form; for a kernel program, of its verdicts.
        verify: when programs are compared with torch.
        blobs: programs that were compiled ahead of time; None for none.

    Raises:
        ModelError: [exported-damaged] if a kernel program's files are inconsistent.
        OptionError: [sparse-attention] for a model that does not support it.
        WrongResultError: [wrong-result] if a program's results differ from torch's.
    """
    if entry.pipeline == "kernels":
        return _load_kernels(entry, form, verify)
    if layer_recording.is_wanted():
        layer_recording.tell_origins(entry.name, entry.origins)
    loaded: StaticPipeline | DynamicPipeline
    if entry.static_layout is None:
        loaded = _load_dynamic(entry, form, verify)
    else:
        loaded = _load_static(entry, entry.static_layout, form, verify, blobs)
    program = loaded.program  # loads a static program here, and raises if it cannot run
    report = LoadReport(
        program.loaded_from_cache, program.compile_time_s, program.device, loaded.verdict,
        weights=entry.how_weights_run,
    )  # fmt: skip
    return LoadedModel(entry, loaded, report)


def _load_static(
    entry: Entry,
    layout: StaticLayout,
    form: CompiledForm,
    verify: Verify,
    blobs: AheadBlobs | None,
) -> StaticPipeline:
    load = load_variant(entry.name, compile_options(entry.precision, entry.kv_cache), blobs)
    weights = load_step_weights(entry.weights_path, layout)

    @functools.cache
    def for_rank(rank: int) -> StaticPrograms:
        name = f"{VARIANTS}/rank-{rank}" if entry.adapted else VARIANTS
        given = replace(layout, given=port_shapes(entry.adapted, rank))
        return StaticPrograms(
            entry.model_path,
            given,
            form.folder / name,
            load,
            verify=_verify_variant(entry, given, verify, weights),
            spare=form.spare and form.spare / name,
            weights=weights,
            form=form_here(),
        )

    idle = idle_inputs(entry.adapted)
    programs = for_rank(common_rank(idle) if idle else 0)
    return StaticPipeline(programs, entry.static_sizes, entry.relocation, for_rank)


def _load_dynamic(entry: Entry, form: CompiledForm, verify: Verify) -> DynamicPipeline:
    options = compile_options(entry.precision, entry.kv_cache)

    def load(amendments: Mapping[str, str]) -> Program:
        form.clear_unless_sound()
        with fixed_path(entry.folder) as folder:
            program = npu_runtime.load_program(
                folder / entry.model_path.name,
                name=entry.name,
                # The compiled form excludes the weights, which stay mapped from the IR's own file.
                options={**options, **amendments, "CACHE_MODE": "OPTIMIZE_SIZE"},
                cache_dir=form.blobs,
            )
        if not program.loaded_from_cache:
            form.record()
        return program

    program, verdict = _verify_step(entry, load, form.folder, verify)
    return DynamicPipeline(
        program, entry.relocation, verdict, entry.states, idle_inputs(entry.adapted)
    )


def _load_kernels(entry: Entry, form: CompiledForm, verify: Verify) -> LoadedModel[Pipeline]:
    """Loads a kernel program; `form` has the verdicts, one per set of kernels."""
    started = time.perf_counter()
    program, pool = load_kernels(entry)
    folder = verdict_folder(form)
    known = read_kept(folder)
    pipeline = KernelPipeline(
        pool=pool,
        vocabulary=program.vocabulary,
        positions=program.positions,
        counts_distances=_counts_distances(program),
        verdict=known or Verdict("unchecked", 'verify is "off"'),
    )
    time_s = time.perf_counter() - started
    if verify == "always" or (verify == "first" and known is None):
        pipeline = replace(pipeline, verdict=_compared(entry, pipeline))
        keep_verdict(folder, pipeline.verdict)
    return_memory()  # of the comparison and the device detection
    device = npu_runtime.device_info().device
    report = LoadReport(
        known is not None, time_s, device, pipeline.verdict, weights=entry.how_weights_run
    )
    return LoadedModel(entry, pipeline, report)


def _compared(entry: Entry, pipeline: KernelPipeline) -> Verdict:
    # A slow import, not needed to load from the cache.
    from npu_llm.models.step_check import check_dynamic
    from npu_llm.verification.reference import read_reference

    reference = read_reference(entry.reference_path)
    if reference is None:
        return Verdict("unchecked", "the model was built without torch's results")
    finding = check_dynamic(pipeline.new_cache, _as_here(entry, reference), has_positions=True)
    if finding is not None:
        raise wrong_result(entry.name, str(finding))
    return Verdict("right")


def _counts_distances(program: KernelProgram) -> bool:
    """Whether attention depends on token distances, not only on order."""
    attends = [one for one in program.instructions if isinstance(one, Attend)]
    return any(one.window is not None or one.slopes is not None for one in attends)


# Most rounding in such a program is that of 8-bit activations, whatever its dtype.
_MOST_BESIDE_INTEGERS = 2.0
# 8-bit keys and values add as much rounding error again.
_LEAST_WITH_CACHE = 2.0


def _verify_step(entry: Entry, load: Load, folder: Path, when: Verify) -> tuple[Program, Verdict]:
    """Loads the program of an entry's dynamic pipeline; see Verifier.load."""

    def check(program: Program, reference: TorchReference) -> Finding | None:
        from npu_llm.kv_cache.request_cache import dynamic_cache
        from npu_llm.models.step_check import check_dynamic

        return check_dynamic(
            lambda: dynamic_cache(
                program, entry.relocation, entry.states, idle_inputs(entry.adapted)
            ),
            _as_here(entry, reference),
            has_positions=any(port.name == "position_ids" for port in program.inputs),
        )

    return Verifier(entry.name, entry.reference_path, when).load(load, check, folder)


def _verify_variant(
    entry: Entry, layout: StaticLayout, when: Verify, weights: StepWeights
) -> VerifyVariant:
    """Returns the loader of an entry's static programs; see Verifier.load."""
    verifier = Verifier(entry.name, entry.reference_path, when)

    def verified(sizes: StepSizes, load: Load, folder: Path) -> tuple[Program, Verdict]:
        def check(program: Program, reference: TorchReference) -> Finding | None:
            from npu_llm.models.step_check import check_static

            return check_static(
                program,
                layout,
                sizes,
                _as_here(entry, reference),
                relocation=entry.relocation,
                weights=weights.of_program(folder),
            )

        return verifier.load(load, check, folder)

    return verified


def _as_here(entry: Entry, reference: TorchReference) -> TorchReference:
    """Returns the reference with the rounding of the device in use and of the entry's cache."""
    wanted = rounding_of(entry.precision)
    layout = entry.static_layout
    # A program for an NPU stores keys and values in the NPU's dtype, on other devices as well.
    if layout is not None and ROUNDING[layout.dtype] > ROUNDING[_name(wanted)]:
        wanted = layout.torch_dtype
    if entry.kv_cache is not None:
        wanted = torch.bfloat16  # rounding error similar to 8 bits of a token's largest value
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
