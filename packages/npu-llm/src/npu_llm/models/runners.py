"""The ways to run a model's steps, behind one interface.

Kernels: a list of our own kernels for the rows of any number of sequences, on the host's cores.
Dynamic: one program for all sizes, which holds the cache itself. Static: programs of fixed sizes,
for devices that need those, on a cache in the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import torch

from npu_compiler.verification.result import Verdict
from npu_llm.choices import PipelineName
from npu_llm.kv_cache.cache import Relocation
from npu_llm.kv_cache.static_layout import StaticSizes, StepSizes
from npu_llm.models.static_programs import StaticPrograms
from npu_runtime import Program

if TYPE_CHECKING:
    from npu_llm.kv_cache.blocks import BlockPool
    from npu_llm.kv_cache.cache import StepCache
    from npu_llm.kv_cache.paged import PagedCache
    from npu_llm.kv_cache.request_cache import SessionCache
    from npu_llm.kv_cache.static import StaticCache, StepPrograms

__all__ = [
    "DynamicPipeline",
    "KernelPipeline",
    "Pipeline",
    "Start",
    "StaticPipeline",
    "dynamic_cache",
    "static_cache",
]


@dataclass(frozen=True)
class Start:
    """How a pipeline's program was loaded.

    Attributes:
        from_cache: whether nothing was compiled or compared.
        time_s: how long it took.
        device: OpenVINO's name for the device that serves as npu.
    """

    from_cache: bool
    time_s: float
    device: str

    @classmethod
    def of(cls, program: Program) -> Start:
        """Returns how one of OpenVINO's programs was loaded."""
        return cls(program.loaded_from_cache, program.compile_time_s, program.device)


class Pipeline(Protocol):
    """How a model's steps run."""

    @property
    def name(self) -> PipelineName:
        """Which of them this is."""

    @property
    def start(self) -> Start:
        """How the program of a step of one token was loaded."""

    @property
    def verdict(self) -> Verdict:
        """The outcome of comparing its programs with torch."""

    def new_cache(self) -> StepCache:
        """Returns an empty cache."""


@dataclass(frozen=True)
class DynamicPipeline:
    """Steps of any size in one program.

    Attributes:
        program: the program, which holds the cache of each of its sessions.
        relocation: how it learns which slots count.
        verdict: the outcome of comparing it with torch.
        states: names and sizes of what the model keeps beside keys and values.
        constants: inputs that are the same in each step: the adapters in use.
    """

    program: Program
    relocation: Relocation
    verdict: Verdict
    states: Mapping[str, Sequence[int]] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    name: PipelineName = "dynamic"

    @property
    def start(self) -> Start:
        """How its program was loaded."""
        return Start.of(self.program)

    def new_cache(self) -> SessionCache:
        """Returns an empty cache, in a session of its own."""
        return dynamic_cache(self.program, self.relocation, self.states, self.constants)


@dataclass(frozen=True)
class StaticPipeline:
    """Steps in programs of fixed sizes.

    Attributes:
        programs: the programs, made as they are needed.
        sizes: the sizes in which they come.
        relocation: how they learn which slots count.
        for_rank: returns those for adapters of a rank.
        given: what they read besides tokens and cache, for each row or once for all: adapters.
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
    def start(self) -> Start:
        """How the program of a step of one token was loaded."""
        return Start.of(self.program)

    @property
    def verdict(self) -> Verdict:
        """The worst outcome of comparing the programs so far with torch."""
        return self.programs.verdict

    def new_cache(self) -> StaticCache:
        """Returns an empty cache of the smallest capacity."""
        return static_cache(self.programs, self.sizes, self.relocation, self.given)


@dataclass(frozen=True)
class KernelPipeline:
    """Steps of any sequences' tokens, by our own kernels.

    Attributes:
        pool: the blocks of all its caches, and what runs the program on them.
        vocabulary: how many logits a token has.
        positions: positions are below this; None for no bound.
        counts_distances: whether attention depends on how many tokens lie between two.
        start: how it was loaded.
        verdict: the outcome of comparing it with torch.
    """

    pool: BlockPool
    vocabulary: int
    positions: int | None
    counts_distances: bool
    start: Start
    verdict: Verdict
    name: PipelineName = "kernels"

    def judged(self, verdict: Verdict) -> KernelPipeline:
        """Returns the same pipeline after it was compared with torch."""
        return replace(self, verdict=verdict)

    def new_cache(self) -> PagedCache:
        """Returns an empty cache on blocks of the pool."""
        from npu_llm.kv_cache.paged import PagedCache

        return PagedCache(
            self.pool,
            vocabulary=self.vocabulary,
            positions=self.positions,
            counts_distances=self.counts_distances,
        )


def dynamic_cache(
    program: Program,
    relocation: Relocation,
    states: Mapping[str, Sequence[int]],
    constants: Mapping[str, torch.Tensor],
) -> SessionCache:
    """Returns an empty cache of a dynamic pipeline's program; see DynamicPipeline."""
    # Late, here and below: a model needs one kind of cache.
    from npu_llm.kv_cache.request_cache import SessionCache, StateCache

    if states:
        return StateCache(
            program.session(), relocation=relocation, states=states, constants=constants
        )
    return SessionCache(program.session(), relocation=relocation, constants=constants)


def static_cache(
    programs: StepPrograms,
    sizes: StaticSizes,
    relocation: Relocation,
    given: Sequence[Mapping[str, torch.Tensor]] = (),
) -> StaticCache:
    """Returns an empty cache of a static pipeline's programs; see StaticPipeline."""
    from npu_llm.kv_cache.static import StaticCache, StaticStateCache

    made = StaticStateCache if programs.layout.states else StaticCache
    return made(programs, sizes, relocation=relocation, given=given)
