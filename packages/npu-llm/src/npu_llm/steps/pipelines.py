"""The two ways to run a model's steps, behind one interface.

Dynamic: one program for all sizes, which holds the cache itself. Static: programs of fixed sizes,
for devices that need those, on a cache in the host's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from npu_compiler.verification.verdict import Verdict
from npu_llm.errors import OptionError
from npu_llm.steps.slots import Relocation
from npu_llm.steps.static_layout import StaticSizes, StepSizes
from npu_llm.steps.static_programs import StaticPrograms
from npu_runtime import Program

if TYPE_CHECKING:
    from npu_llm.steps.session_cache import SessionCache
    from npu_llm.steps.static_cache import StaticCache
    from npu_llm.steps.step_cache import StepCache

__all__ = [
    "DynamicPipeline",
    "Pipeline",
    "PipelineName",
    "StaticPipeline",
    "choose_pipeline",
    "parse_pipeline",
]

PipelineName = Literal["dynamic", "static"]
_NAMES: tuple[PipelineName, ...] = ("dynamic", "static")


class Pipeline(Protocol):
    """How a model's steps run."""

    @property
    def name(self) -> PipelineName:
        """Which of the two this is."""

    @property
    def program(self) -> Program:
        """The program of a step of one token."""

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
    """

    program: Program
    relocation: Relocation
    verdict: Verdict
    name: PipelineName = "dynamic"

    def new_cache(self) -> SessionCache:
        """Returns an empty cache, in a session of its own."""
        # Late, here and below: caches need transformers, which is imported while a program loads.
        from npu_llm.steps.session_cache import SessionCache

        return SessionCache(self.program.session(), relocation=self.relocation)


@dataclass(frozen=True)
class StaticPipeline:
    """Steps in programs of fixed sizes.

    Attributes:
        programs: the programs, made as they are needed.
        sizes: the sizes in which they come.
        relocation: how they learn which slots count.
    """

    programs: StaticPrograms
    sizes: StaticSizes
    relocation: Relocation
    name: PipelineName = "static"

    @property
    def program(self) -> Program:
        """The program of a step of one token, on the smallest cache."""
        return self.programs.get(StepSizes(1, self.sizes.capacities[0], 1))

    @property
    def verdict(self) -> Verdict:
        """The worst outcome of comparing the programs so far with torch."""
        return self.programs.verdict

    def new_cache(self) -> StaticCache:
        """Returns an empty cache of the smallest capacity."""
        from npu_llm.steps.static_cache import StaticCache

        return StaticCache(self.programs, self.sizes, relocation=self.relocation)


def choose_pipeline(name: str | None, device: str) -> PipelineName:
    """Returns the pipeline that a user asked for, or the one that suits a device.

    Args:
        name: "dynamic" or "static"; None or "auto" to choose by the device.
        device: OpenVINO's name for the device.

    Raises:
        OptionError: [unknown-pipeline] for another name.
    """
    return parse_pipeline(name) or ("static" if device.startswith("NPU") else "dynamic")


def parse_pipeline(name: str | None) -> PipelineName | None:
    """Returns the pipeline that a user asked for; None to choose by the device.

    Args:
        name: "dynamic" or "static"; None or "auto".

    Raises:
        OptionError: [unknown-pipeline] for another name.
    """
    if name in (None, "auto"):
        return None
    for known in _NAMES:
        if name == known:
            return known
    raise OptionError(
        f'pipeline: must be "auto", "dynamic" or "static"; got {name!r}. Choose one of these.',
        code="unknown-pipeline",
    )
